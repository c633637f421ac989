"""The training pipeline: the paper's algorithm, top to bottom.

Every parameter is JSON with a step's settings and the digests of everything else that affects the step's result
(`gnn_encoder.runs.provenance.step_arguments`), or a list of them, one for each task that shares the step's work.
`gnn-encoder compile` writes train.yaml; a run uses that file.
"""

from kfp import dsl

import components
from pipelines.foundation import lay_foundation


@dsl.pipeline(name="gnn-encoder-train", description="Trains a GNN-encoder and compares it on queries it never saw.")
def train(
    ingest: str,
    index_bm25: str,
    bm25_retrieve: list,
    merge_bm25_retrieve: str,
    train_dpr: list,
    merge_train_dpr: str,
    dense_retrieve: list,
    merge_dense_retrieve: str,
    train_cross_encoder: list,
    merge_train_cross_encoder: str,
    score_candidates: list,
    merge_score_candidates: str,
    train_query_generator: list,
    merge_train_query_generator: str,
    generate_queries: list,
    merge_generate_queries: str,
    select_training_set: str,
    train_dual_encoder: list,
    merge_train_dual_encoder: str,
    build_graph: str,
    choose_graph: str,
    encode_query_sum: str,
    encode_query_memory: str,
    encode_query_clusters: str,
    train_gnn: list,
    merge_train_gnn: str,
    encode_nodes: list,
    merge_encode_nodes: str,
    encode_corpus: str,
    bundle_dual_encoder: str,
    train_converged: list,
    merge_train_converged: str,
    bundle_converged: str,
    rank_untrained: str,
    rank_dual_encoder: str,
    rank_converged: str,
    rank_query_sum: str,
    rank_query_memory: str,
    rank_query_clusters: str,
    rank_gnn_encoder: str,
    rerank: list,
    merge_rerank: str,
    fuse_dpr: str,
    fuse_dual_encoder: str,
    fuse_converged: str,
    fuse_query_sum: str,
    fuse_query_memory: str,
    fuse_query_clusters: str,
    fuse_gnn_encoder: str,
    evaluate: str,
    recommend: str,
    bundle_dpr: str,
    choose_bundle: str,
    measure_latency: str,
    report: str,
    promote: str,
) -> None:
    """From raw text to a decision about the trained bundle."""
    base = lay_foundation(
        ingest=ingest,
        index_bm25=index_bm25,
        bm25_retrieve=bm25_retrieve,
        merge_bm25_retrieve=merge_bm25_retrieve,
        train_dpr=train_dpr,
        merge_train_dpr=merge_train_dpr,
        dense_retrieve=dense_retrieve,
        merge_dense_retrieve=merge_dense_retrieve,
        train_cross_encoder=train_cross_encoder,
        merge_train_cross_encoder=merge_train_cross_encoder,
        score_candidates=score_candidates,
        merge_score_candidates=merge_score_candidates,
        train_query_generator=train_query_generator,
        merge_train_query_generator=merge_train_query_generator,
        generate_queries=generate_queries,
        merge_generate_queries=merge_generate_queries,
        select_training_set=select_training_set,
        train_dual_encoder=train_dual_encoder,
        merge_train_dual_encoder=merge_train_dual_encoder,
        build_graph=build_graph,
    )
    dataset, passage_vectors, bm25_index = base.dataset, base.passage_vectors, base.bm25_index

    # What labels give without training: bundles in which labelled training queries lift their passages.
    by_labels = {
        name: components.encode_with_labels(
            arguments=arguments,
            dataset=dataset,
            dual_encoder=base.dual_encoder,
            passage_vectors=passage_vectors,
            bm25_index=bm25_index,
        ).output
        for name, arguments in {
            "query_sum": encode_query_sum,
            "query_memory": encode_query_memory,
            "query_clusters": encode_query_clusters,
        }.items()
    }

    # The graph and the training that are best with frozen encoders, if the settings name several.
    tried = components.choose_graph(
        arguments=choose_graph,
        dataset=dataset,
        training_set=base.training_set,
        dual_encoder=base.dual_encoder,
        passage_vectors=passage_vectors,
        graph=base.graph,
    ).outputs
    graph = tried["chosen_graph"]

    # Joint training of the dual encoder and the GNN (GNN-encoder 3.3 and 3.4), in one pod or several.
    with dsl.ParallelFor(train_gnn) as arguments:
        trained = components.train_gnn(
            arguments=arguments,
            dataset=dataset,
            training_set=base.training_set,
            dual_encoder=base.dual_encoder,
            passage_vectors=passage_vectors,
            graph=graph,
            graph_choice=tried["graph_choice"],
        ).output
    gnn_encoder = components.merge(arguments=merge_train_gnn, parts=dsl.Collected(trained), dataset=dataset).output

    # Vectors of all passages with the full graph, and the index.
    with dsl.ParallelFor(encode_nodes) as arguments:
        vectors = components.encode_nodes(
            arguments=arguments, dataset=dataset, gnn_encoder=gnn_encoder, passage_vectors=passage_vectors, graph=graph
        ).output
    encoding = components.merge(arguments=merge_encode_nodes, parts=dsl.Collected(vectors), dataset=dataset).output
    bundle = components.encode_corpus(
        arguments=encode_corpus,
        dataset=dataset,
        gnn_encoder=gnn_encoder,
        passage_vectors=passage_vectors,
        graph=graph,
        encoding=encoding,
        bm25_index=bm25_index,
    ).output

    # The dual encoder as it is, and trained further until it is no better on dev.
    plain_bundle = components.bundle_dual_encoder(
        arguments=bundle_dual_encoder,
        dataset=dataset,
        dual_encoder=base.dual_encoder,
        passage_vectors=passage_vectors,
        bm25_index=bm25_index,
    ).output

    with dsl.ParallelFor(train_converged) as arguments:
        further = components.train_dual_encoder(
            arguments=arguments,
            dataset=dataset,
            training_set=base.training_set,
            start=base.dual_encoder,
            pair_scores=base.pair_scores,
        ).output
    converged = components.merge(arguments=merge_train_converged, parts=dsl.Collected(further), dataset=dataset).output
    converged_bundle = components.bundle_dual_encoder(
        arguments=bundle_converged, dataset=dataset, dual_encoder=converged, bm25_index=bm25_index
    ).output

    # One run per system. The runs of BM25 and DPR exist already.
    bm25, dpr = base.bm25_run, base.dpr_run
    untrained = components.rank(arguments=rank_untrained, dataset=dataset).output
    plain = components.rank(arguments=rank_dual_encoder, dataset=dataset, bundle=plain_bundle).output
    converged_run = components.rank(arguments=rank_converged, dataset=dataset, bundle=converged_bundle).output
    ranked = {
        name: components.rank(arguments=arguments, dataset=dataset, bundle=by_labels[name]).output
        for name, arguments in {
            "query_sum": rank_query_sum,
            "query_memory": rank_query_memory,
            "query_clusters": rank_query_clusters,
        }.items()
    }
    graphed = components.rank(arguments=rank_gnn_encoder, dataset=dataset, bundle=bundle).output
    with dsl.ParallelFor(rerank) as arguments:
        hits = components.rerank(
            arguments=arguments, dataset=dataset, first_run=graphed, scorer=base.cross_encoder
        ).output
    reranked = components.merge(arguments=merge_rerank, parts=dsl.Collected(hits), dataset=dataset).output
    dpr_fused = components.fuse(arguments=fuse_dpr, dataset=dataset, lexical_run=bm25, dense_run=dpr).outputs
    plain_fused = components.fuse(
        arguments=fuse_dual_encoder, dataset=dataset, lexical_run=bm25, dense_run=plain
    ).outputs
    converged_fused = components.fuse(
        arguments=fuse_converged, dataset=dataset, lexical_run=bm25, dense_run=converged_run
    ).outputs["convex_run"]
    fused = {
        f"{name}_fused": components.fuse(
            arguments=arguments, dataset=dataset, lexical_run=bm25, dense_run=ranked[name]
        ).outputs["convex_run"]
        for name, arguments in {
            "query_sum": fuse_query_sum,
            "query_memory": fuse_query_memory,
            "query_clusters": fuse_query_clusters,
        }.items()
    }
    graphed_fused = components.fuse(
        arguments=fuse_gnn_encoder, dataset=dataset, lexical_run=bm25, dense_run=graphed
    ).outputs

    # The comparison, the recommended system with its bundle, the report page and the decision.
    evaluation = components.evaluate(
        arguments=evaluate,
        dataset=dataset,
        bm25=bm25,
        untrained=untrained,
        dpr=dpr,
        dual_encoder=plain,
        converged=converged_run,
        **ranked,
        gnn_encoder=graphed,
        reranked=reranked,
        dpr_fused=dpr_fused["convex_run"],
        dual_encoder_fused=plain_fused["convex_run"],
        converged_fused=converged_fused,
        **fused,
        gnn_encoder_fused=graphed_fused["convex_run"],
        dual_encoder_fused_by_rank=plain_fused["reciprocal_run"],
        gnn_encoder_fused_by_rank=graphed_fused["reciprocal_run"],
    ).output
    recommendation = components.recommend(arguments=recommend, dataset=dataset, evaluation=evaluation).output
    dpr_bundle = components.bundle_dual_encoder(
        arguments=bundle_dpr,
        dataset=dataset,
        dual_encoder=base.dpr,
        bm25_index=bm25_index,
        recommendation=recommendation,
    ).output
    chosen_bundle = components.choose_bundle(
        arguments=choose_bundle,
        dataset=dataset,
        recommendation=recommendation,
        evaluation=evaluation,
        graph=graph,
        dpr=dpr_bundle,
        dual_encoder=plain_bundle,
        converged=converged_bundle,
        **by_labels,
        gnn_encoder=bundle,
    ).output
    latency = components.measure_latency(
        arguments=measure_latency,
        dataset=dataset,
        dual_encoder=base.dual_encoder,
        passage_vectors=passage_vectors,
        bundle=bundle,
    ).output
    page = components.report(
        arguments=report,
        dataset=dataset,
        evaluation=evaluation,
        latency=latency,
        graph=graph,
        gnn_encoder=gnn_encoder,
        passage_vectors=passage_vectors,
        encoding=encoding,
        bundle=bundle,
        recommendation=recommendation,
        graph_choice=tried["graph_choice"],
    )
    # The decision does not read the page, but runs after it, so that the page exists if the decision fails.
    components.promote(
        arguments=promote,
        dataset=dataset,
        evaluation=evaluation,
        recommendation=recommendation,
        graph=graph,
        bundle=chosen_bundle,
    ).after(page)
