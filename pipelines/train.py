"""The training pipeline: the paper's algorithm, top to bottom.

Every parameter is a step's settings and the digests of what else its result depends on, as JSON
(`gnn_encoder.runs.provenance.step_arguments`). `gnn-encoder compile` writes train.yaml, which is what runs.
"""

from kfp import dsl

import components
from pipelines.foundation import lay_foundation


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
    base = lay_foundation(
        ingest=ingest,
        bm25_retrieve=bm25_retrieve,
        train_dpr=train_dpr,
        dense_retrieve=dense_retrieve,
        train_cross_encoder=train_cross_encoder,
        score_candidates=score_candidates,
        train_query_generator=train_query_generator,
        generate_queries=generate_queries,
        select_training_set=select_training_set,
        train_dual_encoder=train_dual_encoder,
        build_graph=build_graph,
    )
    dataset, passage_vectors, graph = base.dataset, base.passage_vectors, base.graph

    # The dual encoder and the GNN over the graph, together (GNN-encoder 3.3 and 3.4).
    gnn_encoder = components.train_gnn(
        arguments=train_gnn,
        dataset=dataset,
        training_set=base.training_set,
        dual_encoder=base.dual_encoder,
        passage_vectors=passage_vectors,
        graph=graph,
    ).output

    # All passages by the full graph, the index, the comparison, the decision.
    encoded = components.encode_corpus(
        arguments=encode_corpus, dataset=dataset, gnn_encoder=gnn_encoder, passage_vectors=passage_vectors, graph=graph
    ).outputs
    bundle = encoded["bundle"]
    report = components.evaluate(
        arguments=evaluate,
        dataset=dataset,
        bm25_run=base.bm25_run,
        dpr_run=base.dpr_run,
        dual_encoder=base.dual_encoder,
        passage_vectors=passage_vectors,
        graph=graph,
        gnn_encoder=gnn_encoder,
        encoding=encoded["encoding"],
        bundle=bundle,
        cross_encoder=base.cross_encoder,
    ).output
    components.promote(arguments=promote, dataset=dataset, report=report, bundle=bundle)
