"""The steps that training and ablation share: from raw text to M_de and the query–passage graph."""

from dataclasses import dataclass
from typing import NamedTuple

from gnn_encoder.flow.graph import Graph, Output
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.rungs import TRAIN
from gnn_encoder.settings.shared import needs_dev


@dataclass(frozen=True)
class Foundation:
    """Artifacts of the shared steps that later steps read."""

    dataset: Output
    bm25_index: Output
    bm25_run: Output
    dpr: Output
    dpr_run: Output
    cross_encoder: Output
    pair_scores: Output
    training_set: Output
    dual_encoder: Output
    graph: Output
    passage_vectors: Output


class Words(NamedTuple):
    """The data set, and what words alone give: BM25's index and its ranking of the queries of all splits."""

    dataset: Output
    bm25_index: Output
    bm25_run: Output


class Generated(NamedTuple):
    """A trained query generator, and the queries that it wrote."""

    generator: Output
    queries: Output


def lay_foundation(
    graph: Graph, settings: Settings, build_graph: BuildGraph, words: Words | None = None, encoder: Output | None = None
) -> Foundation:
    """Adds the shared steps. `build_graph` has the edges that every later variant of the graph needs.

    words: what the graph has already; None: nothing. encoder: in the place of the dual encoders' backbone.
    """
    # Candidates: BM25, then a dual encoder trained on BM25's negatives (GNN-encoder 3.1).
    dataset, bm25_index, bm25_run = words or search_by_words(graph, settings)
    graph.begin(TRAIN)
    dpr = graph.add("train_dpr", settings.train_dpr, dataset=dataset, bm25_run=bm25_run, encoder=encoder).output
    retrieve = settings.dense_retrieve.model_copy(update=build_graph.of_windows)
    dpr_run = graph.parallel("dense_retrieve", retrieve, dataset=dataset, dpr=dpr)

    # The cross-encoder's score of every candidate pair.
    runs = {"bm25_run": bm25_run, "dpr_run": dpr_run}
    cross_encoder = graph.add("train_cross_encoder", settings.train_cross_encoder, dataset=dataset, **runs).output
    pair_scores = graph.parallel(
        "score_candidates", settings.score_candidates, dataset=dataset, cross_encoder=cross_encoder, **runs
    )

    # Generated queries, and the training set, selected by these queries and the scores (SS-BERT 3, RocketQA).
    generated = write_queries(graph, settings, dataset, candidates=pair_scores)
    read = {"candidates": pair_scores, "generated_queries": generated.queries}
    training_set = graph.add("select_training_set", settings.select_training_set, dataset=dataset, **read).output

    # M_de, and the graph of its neighbours (GNN-encoder 3.2).
    selected = {"training_set": training_set, "start": dpr, "pair_scores": pair_scores, "encoder": encoder}
    dual_encoder = graph.add("train_dual_encoder", settings.train_dual_encoder, dataset=dataset, **selected).output
    read = {"dataset": dataset, "dual_encoder": dual_encoder}
    scored = {"pair_scores": pair_scores, "cross_encoder": cross_encoder}
    if build_graph.shards > 1:
        scored["neighbours"] = graph.parallel("find_neighbours", build_graph.find_neighbours, **read)
    built = graph.add("build_graph", build_graph.model_copy(update={"shards": 1}), **read, **scored)
    return Foundation(
        dataset=dataset,
        bm25_index=bm25_index,
        bm25_run=bm25_run,
        dpr=dpr,
        dpr_run=dpr_run,
        cross_encoder=cross_encoder,
        pair_scores=pair_scores,
        training_set=training_set,
        dual_encoder=dual_encoder,
        graph=built["graph"],
        passage_vectors=built["passage_vectors"],
    )


def search_by_words(graph: Graph, settings: Settings, trains: bool = True) -> Words:
    """Adds the reading of the data, BM25's index, and its ranking of the queries of all splits."""
    read = read_data(graph, settings, trains)
    return Words(**read, bm25_run=graph.parallel("bm25_retrieve", settings.bm25_retrieve, **read))


def read_data(graph: Graph, settings: Settings, trains: bool = True) -> dict[str, Output]:
    """Adds the reading of the data, BM25's index, and queries if a generator writes some; returns data and index."""
    dataset = graph.add("ingest", settings.ingest_of(trains)).output
    index = graph.add("index_bm25", settings.index_bm25, dataset=dataset).output
    if settings.write_queries.generator:
        read = {"passages": dataset, "bm25_index": index}
        read["written_queries"] = graph.add("write_queries", settings.write_queries, dataset=dataset).output
        dataset = graph.add("select_queries", settings.select_queries, **read).output
    return {"dataset": dataset, "bm25_index": index}


def write_queries(
    graph: Graph, settings: Settings, dataset: Output, candidates: Output, negative_depth: int = 0
) -> Generated:
    """Adds the query generator and a query for each candidate that may be a negative (SS-BERT 3)."""
    generate = settings.generate_queries
    if negative_depth:
        generate = generate.model_copy(update={"negative_depth": negative_depth})
    generator = graph.add("train_query_generator", settings.train_query_generator, dataset=dataset).output
    queries = graph.parallel(
        "generate_queries", generate, dataset=dataset, candidates=candidates, query_generator=generator
    )
    return Generated(generator, queries)


def with_early_refusals(graph: Graph, *variants: object) -> Graph:
    """Tells `ingest` which trainings choose an epoch by dev queries, and returns the graph.

    Data without such queries are refused then, and not after hours. A dual encoder with `patience` stays as it is
    without dev queries, so it needs none. `variants`: settings of trainings within a step.
    """
    # `try_variant` has a variant's training, of the section `train_gnn`.
    trainings = [(node.step.replace("try_variant", "train_gnn"), node.settings) for node in graph.nodes]
    trainings += [("train_gnn", variant) for variant in variants]  # type: ignore[misc]
    names = [f"{step}.keep" for step, training in trainings if needs_dev(training)]
    ingest = graph["ingest"]
    ingest.settings = ingest.settings.model_copy(update={"chosen_on_dev": tuple(dict.fromkeys(names))})
    return graph
