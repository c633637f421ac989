"""The training pipeline: the paper's algorithm, top to bottom.

Every parameter is a step's settings and the digests of what else its result depends on, as JSON
(`gnn_encoder.provenance.step_arguments`). `gnn-encoder compile` writes train.yaml, which is what runs.
"""

from kfp import dsl

import components


@dsl.pipeline(name="gnn-encoder-train", description="Trains a GNN-encoder and compares it on queries it never saw.")
def train(
    ingest: str,
    bm25_retrieve: str,
    train_dpr: str,
    dense_retrieve: str,
    train_cross_encoder: str,
    score_candidates: str,
    train_query_generator: str,
    generate_queries: str,
    select_training_set: str,
    train_dual_encoder: str,
    build_graph: str,
    train_gnn: str,
    encode_corpus: str,
    evaluate: str,
    promote: str,
) -> None:
    """Fifteen steps from raw text to a decision about the trained bundle."""
    dataset = components.ingest(arguments=ingest).output

    # Candidates: BM25, then a dual encoder trained on BM25's negatives (GNN-encoder 3.1).
    bm25_run = components.bm25_retrieve(arguments=bm25_retrieve, dataset=dataset).output
    dpr = components.train_dpr(arguments=train_dpr, dataset=dataset, bm25_run=bm25_run).output
    dpr_run = components.dense_retrieve(arguments=dense_retrieve, dataset=dataset, dpr=dpr).output

    # The cross-encoder's judgement of every candidate pair.
    cross_encoder = components.train_cross_encoder(
        arguments=train_cross_encoder, dataset=dataset, bm25_run=bm25_run, dpr_run=dpr_run
    ).output
    pair_scores = components.score_candidates(
        arguments=score_candidates, dataset=dataset, bm25_run=bm25_run, dpr_run=dpr_run, cross_encoder=cross_encoder
    ).output

    # Generated queries, and the training set that they and the judgement select (SS-BERT 3, RocketQA).
    query_generator = components.train_query_generator(arguments=train_query_generator, dataset=dataset).output
    generated_queries = components.generate_queries(
        arguments=generate_queries, dataset=dataset, pair_scores=pair_scores, query_generator=query_generator
    ).output
    training_set = components.select_training_set(
        arguments=select_training_set, dataset=dataset, pair_scores=pair_scores, generated_queries=generated_queries
    ).output

    # M_de, the graph of its neighbours, and both trained together with the GNN (GNN-encoder 3.2 to 3.4).
    dual_encoder = components.train_dual_encoder(
        arguments=train_dual_encoder, dataset=dataset, training_set=training_set, dpr=dpr
    ).output
    built = components.build_graph(
        arguments=build_graph,
        dataset=dataset,
        dual_encoder=dual_encoder,
        cross_encoder=cross_encoder,
        pair_scores=pair_scores,
    ).outputs
    graph, passage_vectors = built["graph"], built["passage_vectors"]
    gnn_encoder = components.train_gnn(
        arguments=train_gnn,
        dataset=dataset,
        training_set=training_set,
        dual_encoder=dual_encoder,
        passage_vectors=passage_vectors,
        graph=graph,
    ).output

    # All passages by the full graph, the index, the comparison, the decision.
    bundle = components.encode_corpus(
        arguments=encode_corpus, dataset=dataset, gnn_encoder=gnn_encoder, passage_vectors=passage_vectors, graph=graph
    ).outputs["bundle"]
    report = components.evaluate(
        arguments=evaluate,
        dataset=dataset,
        bm25_run=bm25_run,
        dpr_run=dpr_run,
        dual_encoder=dual_encoder,
        passage_vectors=passage_vectors,
        bundle=bundle,
        cross_encoder=cross_encoder,
    ).output
    components.promote(arguments=promote, report=report, bundle=bundle)
