"""The steps that training and ablation share: from raw text to M_de and the query–passage graph."""

from dataclasses import dataclass
from typing import Any

from kfp import dsl

import components


@dataclass(frozen=True)
class Foundation:
    """Outputs of the shared steps that later steps read."""

    dataset: Any
    bm25_index: Any
    bm25_run: Any
    dpr: Any
    dpr_run: Any
    cross_encoder: Any
    pair_scores: Any
    training_set: Any
    dual_encoder: Any
    graph: Any
    passage_vectors: Any


def lay_foundation(
    *,
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
) -> Foundation:
    """Adds the twelve shared steps to a pipeline. A list has the arguments of the tasks that share a step's work."""
    dataset = components.ingest(arguments=ingest).output

    # Candidates: BM25, then a dual encoder trained on BM25's negatives (GNN-encoder 3.1).
    bm25_index = components.index_bm25(arguments=index_bm25, dataset=dataset).output
    with dsl.ParallelFor(bm25_retrieve) as arguments:
        hits = components.bm25_retrieve(arguments=arguments, dataset=dataset, bm25_index=bm25_index).output
    bm25_run = components.merge(arguments=merge_bm25_retrieve, parts=dsl.Collected(hits), dataset=dataset).output
    with dsl.ParallelFor(train_dpr) as arguments:
        model = components.train_dpr(arguments=arguments, dataset=dataset, bm25_run=bm25_run).output
    dpr = components.merge(arguments=merge_train_dpr, parts=dsl.Collected(model), dataset=dataset).output
    with dsl.ParallelFor(dense_retrieve) as arguments:
        found = components.dense_retrieve(arguments=arguments, dataset=dataset, dpr=dpr).output
    dpr_run = components.merge(arguments=merge_dense_retrieve, parts=dsl.Collected(found), dataset=dataset).output

    # The cross-encoder's score of every candidate pair.
    with dsl.ParallelFor(train_cross_encoder) as arguments:
        scorer = components.train_cross_encoder(
            arguments=arguments, dataset=dataset, bm25_run=bm25_run, dpr_run=dpr_run
        ).output
    cross_encoder = components.merge(
        arguments=merge_train_cross_encoder, parts=dsl.Collected(scorer), dataset=dataset
    ).output
    with dsl.ParallelFor(score_candidates) as arguments:
        scored = components.score_candidates(
            arguments=arguments, dataset=dataset, bm25_run=bm25_run, dpr_run=dpr_run, cross_encoder=cross_encoder
        ).output
    pair_scores = components.merge(
        arguments=merge_score_candidates, parts=dsl.Collected(scored), dataset=dataset
    ).output

    # Generated queries, and the training set, selected by these queries and the scores (SS-BERT 3, RocketQA).
    with dsl.ParallelFor(train_query_generator) as arguments:
        writer = components.train_query_generator(arguments=arguments, dataset=dataset).output
    query_generator = components.merge(
        arguments=merge_train_query_generator, parts=dsl.Collected(writer), dataset=dataset
    ).output
    with dsl.ParallelFor(generate_queries) as arguments:
        written = components.generate_queries(
            arguments=arguments, dataset=dataset, candidates=pair_scores, query_generator=query_generator
        ).output
    generated_queries = components.merge(
        arguments=merge_generate_queries, parts=dsl.Collected(written), dataset=dataset
    ).output
    training_set = components.select_training_set(
        arguments=select_training_set, dataset=dataset, candidates=pair_scores, generated_queries=generated_queries
    ).output

    # M_de, and the graph of its neighbours (GNN-encoder 3.2).
    with dsl.ParallelFor(train_dual_encoder) as arguments:
        encoders = components.train_dual_encoder(
            arguments=arguments, dataset=dataset, training_set=training_set, start=dpr, pair_scores=pair_scores
        ).output
    dual_encoder = components.merge(
        arguments=merge_train_dual_encoder, parts=dsl.Collected(encoders), dataset=dataset
    ).output
    built = components.build_graph(
        arguments=build_graph,
        dataset=dataset,
        dual_encoder=dual_encoder,
        cross_encoder=cross_encoder,
        pair_scores=pair_scores,
    ).outputs
    return Foundation(
        dataset,
        bm25_index,
        bm25_run,
        dpr,
        dpr_run,
        cross_encoder,
        pair_scores,
        training_set,
        dual_encoder,
        built["graph"],
        built["passage_vectors"],
    )
