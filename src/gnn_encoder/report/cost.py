"""Measures what a search costs with each system of a run: milliseconds a question, and megabytes of its bundle."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_encoder.artifacts import Bundle, Run
from gnn_encoder.artifacts.bundle import QUERY_ENCODER
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.artifacts.history import History, Record
from gnn_encoder.artifacts.tables import CONVEX
from gnn_encoder.models.backbone import ADDRESS
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.retrieval.search import ASKED, NO_VECTORS, Searcher, bm25_of, ranking
from gnn_encoder.settings.reranking_systems import SYSTEMS as RERANKERS

if TYPE_CHECKING:
    from gnn_encoder.retrieval.bm25 import Bm25

QUESTIONS, HITS = 8, 10
"""Most questions that are asked of each system, and hits of each."""
LEAST, BUDGET = 3, 3.0
"""Fewest questions of each system, and the seconds after which no system is asked more than these."""


def costs(bundles: Sequence[Path], fusions: Mapping[str, Any], questions: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns {system: `ms`, `megabytes`}, of the bundles and of their weighted sums with BM25.

    `ms`: median time of one question alone, from its text to the rows of the first hits; the encoding of a question is
    measured once for bundles with the same query encoder. Bundles whose vectors a service made, or were given, are left
    out. `megabytes` (10⁶ bytes): the files of the bundle; for a sum those of the bundle of vectors, with BM25's index.
    """
    until, texts = time.perf_counter() + BUDGET, list(questions[:QUESTIONS])
    encoded: dict[tuple[str, ...], tuple[float, list[np.ndarray]]] = {}
    table: dict[str, dict[str, float]] = {}
    for path in bundles:
        if not texts or not read_manifest(path).rows:
            continue
        bundle = Bundle.read(path)
        files = bundle.manifest.files
        encoder = tuple(facts.sha256 for name, facts in files.items() if name.startswith(f"{QUERY_ENCODER}/"))
        index = PassageIndex.read(bundle)
        if index.reads_vectors and (bundle.query_encoder_path / ADDRESS).is_file():
            continue  # these questions' vectors are stored, and a service would be paid for others
        if encoder and encoder not in encoded and index.reads_vectors:
            encode = Searcher(bundle).encode
            encode(texts[0])
            encoded[encoder] = _timed(encode, [(text,) for text in texts], math.inf)
        no_vectors = (0.0, [NO_VECTORS] * len(texts))
        encoding, vectors = encoded.get(encoder, no_vectors) if index.reads_vectors else no_vectors
        for system, weight in _served(bundle, fusions):
            bm25 = None if weight is None else bm25_of(bundle)
            pairs = list(zip(texts, vectors, strict=True))
            search = partial(_search, index, bm25, weight)
            search(*pairs[0])
            searching, _ = _timed(search, pairs, until)
            size = sum(facts.bytes for facts in files.values()) / 1e6
            table[system] = {"ms": encoding + searching, "megabytes": size}
    return table


def reranking_costs(history: History) -> dict[str, dict[str, float]]:
    """Returns {re-ranker: `ms`}: milliseconds to re-rank a question's hits, of many questions at a time.

    A system that changes another's ranking takes as long as that one and its own step. `propagate_sections` adds
    numbers that are stored with the passages, so its step takes no time.
    """
    records = [record for title, record in history.items() if title.partition(": ")[0] == "rerank"]
    table = {str(record.settings["system"]): _of_question(record) for record in records}
    for of in RERANKERS.values():
        before = table.get(RERANKERS[of.evaluates].title) if of.evaluates else None
        if before and (record := history.get(f"{of.step}: {of.title}")):
            table[of.title] = before + (_of_question(record) if of.step == "evaluate_passages" else 0.0)
    return {system: {"ms": ms} for system, ms in table.items() if ms}


def _of_question(record: Record) -> float:
    """Returns the milliseconds of a question's pairs; 0 if none was scored."""
    pairs, rate = record.metrics["pairs"], record.metrics["pairs_per_second"]
    return 1000 * pairs / record.metrics["queries"] / rate if pairs and rate else 0.0


def _served(bundle: Bundle, fusions: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yields the systems that a bundle serves, with the weight of its vectors."""
    yield bundle.system, None if bundle.has_vectors else 0.0
    for system, facts in fusions.items() if bundle.bm25_path else ():
        if facts["method"] == CONVEX and facts["dense"] == bundle.system:
            yield system, facts["weight"]


def _search(index: PassageIndex, bm25: "Bm25 | None", weight: float | None, text: str, vector: np.ndarray) -> Run:
    return ranking(index, bm25, ASKED, [text], vector, HITS, weight)


def _timed(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], until: float) -> tuple[float, list[Any]]:
    """Returns the median milliseconds of calls, and their results; from `until` on, there are only `LEAST` calls."""
    seconds, results = list[float](), list[Any]()
    for arguments in calls:
        began = time.perf_counter()
        if began > until and len(seconds) >= LEAST:
            break
        results.append(function(*arguments))
        seconds.append(time.perf_counter() - began)
    return 1000 * float(np.median(seconds)), results
