"""The ablation pipeline: compares variants of the graph and of the training; all earlier steps run once.

`variants` is a list of arguments of `try_variant`, one per variant and seed. On a cluster the variants run in parallel.
The other parameters are as in train.py.
"""

from kfp import dsl

import components
from pipelines.foundation import lay_foundation


@dsl.pipeline(name="gnn-encoder-ablation", description="Compares variants of the GNN-encoder on one foundation.")
def ablation(
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
    encode_queries: str,
    variants: list,
    compare_variants: str,
) -> None:
    """From raw text to one table of all variants."""
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
    query_vectors = components.encode_queries(
        arguments=encode_queries, dataset=base.dataset, dual_encoder=base.dual_encoder
    ).output
    with dsl.ParallelFor(variants) as variant:
        figures = components.try_variant(
            arguments=variant,
            dataset=base.dataset,
            training_set=base.training_set,
            dual_encoder=base.dual_encoder,
            passage_vectors=base.passage_vectors,
            query_vectors=query_vectors,
            graph=base.graph,
        ).output
    components.compare_variants(arguments=compare_variants, figures=dsl.Collected(figures))
