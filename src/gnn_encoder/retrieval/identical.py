"""Leaves the passage that is the query itself out of a query's hits: BEIR's rule `ignore_identical_ids`.

`Dataset.identical` says which passage that is. A search is asked for one more hit, so that a ranking keeps its depth.
"""

from collections.abc import Callable

import numpy as np

from gnn_encoder.artifacts import Run
from gnn_encoder.retrieval.hits import Hits


def search_without(search: Callable[[int], Hits], left_out: np.ndarray | None, k: int) -> Hits:
    """Returns the `k` best passages of n queries, without one passage of each.

    Args:
        search: gives the best passages in the form of `exact.search`, as many as it is asked for.
        left_out: passage row [n] that is no hit; -1: none. None: none of any query.
    """
    if left_out is None or not (left_out >= 0).any():
        return search(k)
    scores, rows = search(k + 1)
    same = (rows == left_out[:, None]) & (rows >= 0)
    order = np.argsort(same, axis=1, kind="stable")
    scores, rows = np.where(same, -np.inf, scores).astype(scores.dtype), np.where(same, -1, rows).astype(rows.dtype)
    return np.take_along_axis(scores, order, axis=1)[:, :k], np.take_along_axis(rows, order, axis=1)[:, :k]


def run_by(search: Callable[[int], Hits], queries: np.ndarray, left_out: np.ndarray | None, k: int) -> Run:
    """Returns the hits of `search_without` as the run of some `queries` [n], rows of the data."""
    scores, rows = search_without(search, left_out, k)
    return Run.from_hits(queries, rows, scores)


def run_without(run: Run, identical: np.ndarray) -> Run:
    """Returns a run without the hits that are the query itself; `identical` as `Dataset.identical`."""
    keep = identical[run.query] != run.passage
    return run if keep.all() else Run.by_score(run.query[keep], run.passage[keep], run.score[keep])
