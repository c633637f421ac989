"""The index over labelled training queries: finds those nearest to a question, for the memory and for fusions.

Few vectors are searched exactly, unless the passages have an index of another kind than `flat`: then the queries have
one of this kind. Many vectors have inverted lists (`IndexKind.of_queries`). An index proposes `SPARE` queries more than
needed, and the stored fp32 vectors score what it proposes. So codes of 16 bits give what an exact search gives; what
other kinds miss is measured. Queries that labels added are searched exactly, and those that lost their last label are
left out, so the index stays as the run built it.
"""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts.labelled_queries import QUERY_INDEX, LabelledQueries
from gnn_encoder.artifacts.parts import stored_parts
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.hits import Hits, best_first, merge, no_hits
from gnn_encoder.retrieval.index_file import Index, build_index, load_index, search_index
from gnn_encoder.settings.outcome import IndexKind

SPARE, PROPOSED = 16, 2**24
"""Queries that an index proposes more than needed, and numbers of the vectors that are in memory at a time."""
SAMPLE, DEPTH = 256, 50
"""Queries whose recall is measured, and the depth."""


def build_query_index(labels: LabelledQueries, folder: Path, kind: IndexKind) -> float | None:
    """Writes the index into a folder of `LabelledQueries.write`; returns its recall, None if all queries are read."""
    n, d = labels.stored.shape
    kind = kind.of_queries(4 * n * d)
    if kind.index == "flat" or not n:
        return None
    build_index(labels.stored, folder / QUERY_INDEX, kind)
    index, rows = open_query_index(labels, folder), np.linspace(0, n - 1, min(n, SAMPLE)).astype(int)
    some, k = np.asarray(labels.stored[rows]), min(n, DEPTH)
    (_, near), (_, best) = nearest_queries(labels, index, some, k), exact.search(labels.stored, some, k)
    return float(np.mean([np.isin(*pair).mean() for pair in zip(best, near, strict=True)]))


def said(recall: float | None) -> str:
    """Returns the recall in words, for a headline; nothing without an index."""
    return "" if recall is None else f"; the index of training queries finds {recall:.1%} of the {DEPTH} nearest"


def open_query_index(labels: LabelledQueries, folder: Path) -> Index | None:
    """Opens what `build_query_index` wrote; None if it wrote nothing. Errors as `load_index`."""
    file = folder / QUERY_INDEX
    return load_index(file, labels.stored.shape) if stored_parts(file) else None


def nearest_queries(labels: LabelledQueries, index: Index | None, questions: np.ndarray, most: int) -> Hits:
    """Returns the `most` labelled queries nearest to `questions` [b, d], in the form of `exact.search`.

    With fewer queries there are fewer columns; those that lost their labels leave a row of -1.

    index: over `labels.stored`; None: an exact search.
    """
    k = min(most, len(labels))
    if index is None:
        scores, rows = exact.search(labels.stored, questions, k + labels.unlabelled)
    else:
        scores, rows = _scored(labels.stored, index, questions, k + labels.unlabelled)
    if len(labels.added):
        more_scores, more = exact.search(labels.added, questions, k + labels.unlabelled)
        scores, rows = merge(scores, rows, more_scores, np.where(more >= 0, more + len(labels.stored), -1))
    if labels.unlabelled:
        starts, stops = labels.by_query.bounds(rows)
        scores, rows = np.where(stops > starts, scores, -np.inf), np.where(stops > starts, rows, -1)
        scores, rows = best_first(scores, rows)
    return scores[:, :k], rows[:, :k]


def _scored(vectors: np.ndarray, index: Index, questions: np.ndarray, k: int) -> Hits:
    """Returns the best `k` by the vectors [n, d] among those that the index proposes."""
    parts, at_once = [], max(PROPOSED // ((k + SPARE) * vectors.shape[1]), 1)
    for start in range(0, len(questions), at_once):
        some = questions[start : start + at_once]
        _, rows = search_index(index, some, k + SPARE)
        scores = np.einsum("bkd,bd->bk", vectors[np.maximum(rows, 0)], some)
        parts.append(merge(*no_hits(len(some), k), np.where(rows >= 0, scores, -np.inf), rows))
    scores, rows = (np.concatenate(arrays) for arrays in zip(no_hits(0, k), *parts, strict=True))
    return scores, rows
