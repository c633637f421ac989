"""Measures the latency of one query: the time to encode the query, and to search the passages with its vector.

Queries are measured one at a time, as users send them. The systems take turns at each query, in alternating order, so
that other load on the machine affects all systems equally.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnn_encoder.artifacts import Bundle, Run, read_manifest
from gnn_encoder.artifacts.arrays import read_scored
from gnn_encoder.artifacts.history import Record, read_history
from gnn_encoder.inference.encoding import encode_question
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder, device
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.retrieval.reranking import reranked_by_bundle, reranked_depth, reranker_of
from gnn_encoder.retrieval.search import ASKED, NO_VECTORS, Searcher, bm25_of, ranking
from gnn_encoder.settings.systems import DUAL_ENCODER, GNN_ENCODER

QUERIES = 200
"""Most queries measured."""
HITS = 10
WARM_UP = 3
"""Queries before the measurement, because first calls load code and touch memory."""
BUDGET_SECONDS = 6.0
"""After this time no further query is measured."""


class QueryPath(NamedTuple):
    """The two stages of a query: text → vector [1, d] → hits. With BM25, the second stage gets the text, too."""

    encode: Callable[[str], Any]
    search: Callable[[Any], Any]


def measure_latency(
    systems: Mapping[str, QueryPath],
    questions: Sequence[str],
    *,
    budget: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Returns {"queries": n, "systems": {system: {"encode_ms", "search_ms"}}}, medians over n queries.

    The warm-up counts towards `budget` [seconds]; at least one query is measured.
    """
    until = clock() + budget
    for question in questions[:WARM_UP]:
        for path in systems.values():
            path.search(path.encode(question))
        if clock() > until:
            break
    seconds: dict[str, list[tuple[float, float]]] = {system: [] for system in systems}
    names = list(systems)
    for turn, question in enumerate(questions[:QUERIES]):
        for system in names if turn % 2 == 0 else names[::-1]:
            began = clock()
            vector = systems[system].encode(question)
            encoded = clock()
            systems[system].search(vector)
            seconds[system].append((encoded - began, clock() - encoded))
        if clock() > until:
            break
    systems_ms = {}
    for system, taken in seconds.items():
        encode, search = 1000 * np.median(taken, axis=0)
        systems_ms[system] = {"encode_ms": float(encode), "search_ms": float(search)}
    return {"queries": len(seconds[names[0]]), "systems": systems_ms}


def systems_latency(
    questions: Sequence[str], dual_encoder: Path, passage_vectors: Path, bundle: Path
) -> dict[str, Any]:
    """Milliseconds per query, and the one-time milliseconds per passage, of the dual encoder and the GNN-encoder.

    For both systems torch encodes each query alone in fp32, and the search returns `HITS` hits. (`gnn-encoder search`
    encodes its one query in NumPy, because loading torch would take longer than everything else.)
    """
    searcher, (vectors, of) = Searcher(Bundle.read(bundle)), read_scored(passage_vectors)
    paths = {
        DUAL_ENCODER: query_path(DualEncoder.load(dual_encoder).query_encoder, PassageIndex(vectors, vectors, of)),
        GNN_ENCODER: query_path(searcher.encoder, searcher.index),
    }
    measured = measure_latency(paths, questions)
    plain, graph = read_manifest(passage_vectors).metrics, searcher.bundle.manifest.metrics
    nodes = read_history(bundle).get("encode_nodes", Record()).metrics
    measured["systems"][DUAL_ENCODER]["passage_encode_ms"] = _passage_ms(plain, "encoded", "passages_per_second")
    measured["systems"][GNN_ENCODER] |= {
        "passage_encode_ms": _passage_ms(nodes, "encoded", "encoded_per_second"),
        "passage_propagate_ms": _passage_ms(graph, "propagated", "propagated_per_second"),
    }
    return {**measured, "hits": HITS, "precision": "fp32", "device": device().type}


def query_path(encoder: TextEncoder, index: PassageIndex) -> QueryPath:
    """A system that encodes by torch in fp32 and searches for `HITS` hits."""
    return QueryPath(partial(encode_question, encoder), partial(index.search, k=HITS))


def served_path(searcher: Searcher) -> QueryPath:
    """A bundle as `gnn-encoder search` ranks by default, but with torch in fp32, and searched for `HITS` hits."""
    bundle, weight = searcher.bundle, searcher.bundle.serving.weight
    words = None if weight is None else bm25_of(bundle)
    scorer, depth = (reranker_of(bundle), reranked_depth(bundle)) if bundle.serving.reranks else (None, HITS)
    reads_vectors = weight != 0 and searcher.index.reads_vectors

    def encode(question: str) -> tuple[str, np.ndarray]:
        return question, encode_question(searcher.encoder, question) if reads_vectors else NO_VECTORS

    def search(encoded: tuple[str, np.ndarray]) -> Run:
        question, vector = encoded
        run = ranking(searcher.index, words, ASKED, [question], vector, depth, weight)
        return reranked_by_bundle(bundle, scorer, ASKED, [question], run) if scorer else run

    return QueryPath(encode, search)


def _passage_ms(metrics: Mapping[str, Any], count: str, rate: str) -> float | None:
    """Milliseconds per passage from a step's metrics; None if the step read no passage or recorded no rate."""
    passages, per_second = metrics.get(count, 0), metrics.get(rate, 0.0)
    return 1000 / per_second if passages and per_second else None
