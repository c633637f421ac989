"""Hits of n queries: scores fp32 [n, k] and passage rows int32 [n, k], best first; -inf and -1: no more hits."""

import numpy as np

Hits = tuple[np.ndarray, np.ndarray]


def no_hits(queries: int, k: int) -> Hits:
    """Returns empty lists, to fill."""
    return np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int32)


def best_first(scores: np.ndarray, rows: np.ndarray, k: int | None = None) -> Hits:
    """Returns the best `k`, or all, of lists in any order [n, l], best first; ties by ascending row."""
    order = np.lexsort((rows, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def merge(scores: np.ndarray, rows: np.ndarray, more_scores: np.ndarray, more_rows: np.ndarray) -> Hits:
    """Returns the best k of two lists [n, k] and [n, j]."""
    all_scores = np.concatenate([scores, more_scores], axis=1)
    all_rows = np.concatenate([rows, more_rows.astype(np.int32)], axis=1)
    return best_first(all_scores, all_rows, scores.shape[1])
