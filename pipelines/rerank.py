"""The re-ranking pipeline: trains re-rankers on one first stage, side by side, and compares them with it.

`systems` is a list with an entry per re-ranker: `train`, the arguments of `train_reranker`, `rerank`, the arguments of
`rerank`, and `propagate_sections`. `generated_systems` is such a list of the re-rankers that train on generated
queries, too (SS-BERT 3); its entries have `select`, the arguments of `select_training_set`, and `evaluate_passages`
besides. `distilled_systems` is one of the re-rankers that learn from a teacher: `teacher` has the arguments of the
teacher's `train_reranker`, and `score` those of `score_candidates`. The cache has a teacher that is also one of the
systems. `document_systems` is one of the re-rankers that read a passage's context in its documents, with
`encode_context`. `bundle` is the URI of the first stage's bundle, if it has one. The other parameters are as in
train.py.
"""

from kfp import dsl

import components


@dsl.pipeline(name="gnn-encoder-rerank", description="Trains re-rankers and compares them on queries they never saw.")
def rerank(
    ingest: str,
    index_bm25: str,
    bm25_retrieve: list,
    merge_bm25_retrieve: str,
    first_stage: str,
    systems: list,
    train_query_generator: list,
    merge_train_query_generator: str,
    generate_queries: list,
    merge_generate_queries: str,
    generated_systems: list,
    distilled_systems: list,
    build_document_graph: str,
    document_systems: list,
    evaluate: str,
    report: str,
    compare_rerankers: str,
    choose_reranker: str,
    bundle_reranker: str,
    bundle: str,
) -> None:
    """From raw text to one table of all re-rankers, and the best of them."""
    dataset = components.ingest(arguments=ingest).output
    bm25_index = components.index_bm25(arguments=index_bm25, dataset=dataset).output
    with dsl.ParallelFor(bm25_retrieve) as arguments:
        hits = components.bm25_retrieve(arguments=arguments, dataset=dataset, bm25_index=bm25_index).output
    bm25_run = components.merge(arguments=merge_bm25_retrieve, parts=dsl.Collected(hits), dataset=dataset).output
    first_run = components.first_stage(
        arguments=first_stage, dataset=dataset, bm25_run=bm25_run, bm25_index=bm25_index
    ).output
    with dsl.ParallelFor(systems) as system:
        reranker = components.train_reranker(arguments=system.train, dataset=dataset, first_run=first_run).output
        run = components.rerank(arguments=system.rerank, dataset=dataset, first_run=first_run, scorer=reranker).output
        propagated_run = components.propagate_sections(
            arguments=system.propagate_sections, dataset=dataset, ranking=run
        ).output

    # A query for each negative says how hard the negative is, and is a new query that the negative answers.
    with dsl.ParallelFor(train_query_generator) as arguments:
        writer = components.train_query_generator(arguments=arguments, dataset=dataset).output
    query_generator = components.merge(
        arguments=merge_train_query_generator, parts=dsl.Collected(writer), dataset=dataset
    ).output
    with dsl.ParallelFor(generate_queries) as arguments:
        written = components.generate_queries(
            arguments=arguments, dataset=dataset, candidates=first_run, query_generator=query_generator
        ).output
    generated_queries = components.merge(
        arguments=merge_generate_queries, parts=dsl.Collected(written), dataset=dataset
    ).output
    with dsl.ParallelFor(generated_systems) as system:
        training_set = components.select_training_set(
            arguments=system.select, dataset=dataset, candidates=first_run, generated_queries=generated_queries
        ).output
        generated_reranker = components.train_reranker(
            arguments=system.train, dataset=dataset, first_run=first_run, training_set=training_set
        ).output
        generated_run = components.rerank(
            arguments=system.rerank, dataset=dataset, first_run=first_run, scorer=generated_reranker
        ).output
        evaluated_run = components.evaluate_passages(
            arguments=system.evaluate_passages, dataset=dataset, ranking=generated_run, query_generator=query_generator
        ).output

    with dsl.ParallelFor(distilled_systems) as system:
        teacher = components.train_reranker(arguments=system.teacher, dataset=dataset, first_run=first_run).output
        pair_scores = components.score_candidates(
            arguments=system.score, dataset=dataset, bm25_run=first_run, cross_encoder=teacher
        ).output
        student = components.train_reranker(
            arguments=system.train, dataset=dataset, first_run=first_run, pair_scores=pair_scores
        ).output
        student_run = components.rerank(
            arguments=system.rerank, dataset=dataset, first_run=first_run, scorer=student
        ).output

    document_graph = components.build_document_graph(arguments=build_document_graph, dataset=dataset).output
    with dsl.ParallelFor(document_systems) as system:
        document_reranker = components.train_reranker(
            arguments=system.train, dataset=dataset, first_run=first_run, document_graph=document_graph
        ).output
        document_scorer = components.encode_context(
            arguments=system.encode_context, dataset=dataset, document_graph=document_graph, reranker=document_reranker
        ).output
        document_run = components.rerank(
            arguments=system.rerank, dataset=dataset, first_run=first_run, scorer=document_scorer
        ).output

    evaluation = components.evaluate(
        arguments=evaluate,
        dataset=dataset,
        bm25=first_run,
        rerankers=dsl.Collected(run),
        propagated_rerankers=dsl.Collected(propagated_run),
        generated_rerankers=dsl.Collected(generated_run),
        evaluated_rerankers=dsl.Collected(evaluated_run),
        distilled_rerankers=dsl.Collected(student_run),
        document_rerankers=dsl.Collected(document_run),
    ).output
    components.report(arguments=report, dataset=dataset, evaluation=evaluation)
    components.compare_rerankers(
        arguments=compare_rerankers,
        dataset=dataset,
        first_run=first_run,
        evaluation=evaluation,
        rerankers=dsl.Collected(reranker),
        generated_rerankers=dsl.Collected(generated_reranker),
        distilled_rerankers=dsl.Collected(student),
        document_rerankers=dsl.Collected(document_reranker),
        generated_queries=generated_queries,
    )
    best = components.choose_reranker(
        arguments=choose_reranker,
        dataset=dataset,
        runs=dsl.Collected(run),
        scorers=dsl.Collected(reranker),
        generated_runs=dsl.Collected(generated_run),
        generated_scorers=dsl.Collected(generated_reranker),
        distilled_runs=dsl.Collected(student_run),
        distilled_scorers=dsl.Collected(student),
        document_runs=dsl.Collected(document_run),
        document_scorers=dsl.Collected(document_scorer),
    ).output
    with dsl.If(bundle != ""):
        searched = dsl.importer(artifact_uri=bundle, artifact_class=dsl.Model).output
        components.bundle_reranker(arguments=bundle_reranker, first_stage=searched, reranker=best)
