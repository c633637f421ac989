"""How long one question takes: encoding it, and searching the passages with its vector.

Systems are asked each question in turn, and who goes first changes from question to question, so that a machine
that is busy with something else disturbs all of them alike. One question at a time, as a user asks them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Bundle, Manifest, read_manifest, read_vectors
from gnn_encoder.inference.encoding import encode_question
from gnn_encoder.models.dual_encoder import DualEncoder, device
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.index_file import search_index
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.outcome import DUAL_ENCODER, GNN_ENCODER

QUERIES = 200
"""At most."""
HITS = 10
"""Asked for by each search."""
WARM_UP = 3
"""Questions asked before the clock runs: first calls load code and touch memory."""
BUDGET_SECONDS = 6.0
"""No further question is asked after that."""


@dataclass(frozen=True)
class QueryPath:
    """A dense system as a question goes through it."""

    encode: Callable[[str], np.ndarray]
    """A text → its vector [1, d]."""
    search: Callable[[np.ndarray], Any]
    """A vector [1, d] → hits."""


def measure_latency(
    systems: Mapping[str, QueryPath],
    questions: Sequence[str],
    *,
    budget: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """{"queries": n, "systems": {system: {"encode_ms", "search_ms"}}}, medians over n questions.

    The warm-up counts towards `budget` [seconds]; at least one question is measured.
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
        for system in names if turn % 2 == 0 else reversed(names):
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
    """What a question costs the plain dual encoder and the GNN-encoder, and what a passage cost once, in milliseconds.

    A question is encoded alone, in fp32, by torch for both systems, and searched for `HITS` hits. (For a single
    question `gnn-encoder search` encodes in NumPy, where loading torch would take longer than all else.)
    """
    plain, plain_encoder = read_vectors(passage_vectors), DualEncoder.load(dual_encoder).query_encoder
    searcher = Searcher(Bundle.read(bundle))
    paths = {
        DUAL_ENCODER: QueryPath(
            partial(encode_question, plain_encoder),
            lambda vector: exact.search(plain, vector, HITS),
        ),
        GNN_ENCODER: bundle_path(searcher),
    }
    found = measure_latency(paths, questions)
    made, graph_made = read_manifest(passage_vectors), searcher.bundle.manifest
    once = {
        DUAL_ENCODER: {"passage_encode_ms": _ms_each(made, "encoded", "passages_per_second")},
        GNN_ENCODER: {
            "passage_encode_ms": _ms_each(graph_made, "encoded", "encoded_per_second"),
            "passage_propagate_ms": _ms_each(graph_made, "propagated", "propagated_per_second"),
        },
    }
    systems = {system: {**took, **once[system]} for system, took in found["systems"].items()}
    return {"queries": found["queries"], "hits": HITS, "precision": "fp32", "device": device().type, "systems": systems}


def bundle_path(searcher: Searcher) -> QueryPath:
    """A bundle asked one question at a time: fp32, by torch, `HITS` hits."""
    return QueryPath(
        partial(encode_question, searcher.encoder),
        lambda vector: search_index(searcher.index, vector, HITS),
    )


def _ms_each(manifest: Manifest, count: str, rate: str) -> float | None:
    """Milliseconds a passage by what a step recorded, None where it made none or does not say."""
    made, per_second = manifest.metrics.get(count, 0), manifest.metrics.get(rate, 0.0)
    return 1000 / per_second if made and per_second else None
