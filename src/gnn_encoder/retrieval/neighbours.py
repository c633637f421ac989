"""The nearest passages of the queries that are trained on, which several tasks may find in shares of the passages."""

from functools import partial, reduce
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.arrays import NEIGHBOUR_SCORES, NEIGHBOURS, read_rows
from gnn_encoder.artifacts.parts import part_folders
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.exact import QUERIES
from gnn_encoder.retrieval.hits import Hits, merge
from gnn_encoder.retrieval.identical import search_without
from gnn_encoder.tracking.progress import Progress


def nearest(
    data: Dataset, vectors: np.ndarray, queries: np.ndarray, k: int, *, first: int = 0, progress: Progress | None = None
) -> Hits:
    """Searches consecutive passages, leaving out the passage that is the query itself.

    Args:
        vectors: [r, d] of the passages. queries: [n, d] of `Dataset.trained`. first: row of the first passage.

    Returns:
        As `exact.search`.
    """
    search = partial(exact.search, vectors, queries, progress=progress)
    scores, rows = search_without(search, data.identical[data.trained] - first, k)
    return scores, np.where(rows < 0, rows, rows + np.int32(first))


def joined_neighbours(merged: Path) -> np.ndarray:
    """Returns the rows of the hits [n, k] of all passages, of which each part of an artifact has those of a share."""
    parts = [[read_rows(folder, name) for name in (NEIGHBOUR_SCORES, NEIGHBOURS)] for folder in part_folders(merged)]
    rows = np.empty(parts[0][1].shape, np.int32)
    for start in range(0, len(rows), QUERIES):
        some = slice(start, start + QUERIES)
        hits = ((scores[some], passages[some]) for scores, passages in parts)
        rows[some] = reduce(lambda best, more: merge(*best, *more), hits)[1]
    return rows
