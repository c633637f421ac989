"""Exact inner-product search by FAISS, over arrays larger than memory, with ties in a defined order.

The vectors are read in chunks, so memory never holds a whole memory-mapped corpus. Hits are ordered by score; hits with
equal fp32 scores are ordered by passage row. If several passages have the score at the cut-off, FAISS keeps arbitrary
ones, so these queries are scored again in NumPy. Passages with equal exact scores but different last bits of the fp32
sums are no tie; the last bit depends on the BLAS and on `CHUNK`.
"""

import faiss
import numpy as np

from gnn_encoder.tracking.progress import Progress

CHUNK = 65_536
"""Passages searched at a time."""
QUERIES = 4096
"""Queries with the hits of one chunk in memory at a time."""

Hits = tuple[np.ndarray, np.ndarray]


def search(
    vectors: np.ndarray, queries: np.ndarray, k: int, *, chunk: int = CHUNK, progress: Progress | None = None
) -> Hits:
    """The `k` passages of largest inner product with each query.

    Args:
        vectors: [m, d], fp32 or fp16, in memory or memory-mapped; each is read once. queries: [n, d].
        chunk: passages searched at a time. progress: counts passages.

    Returns:
        Scores fp32 [n, k] and passage rows int32 [n, k], best first, ties by ascending row. With k > m the remaining
        scores are -inf and the remaining rows -1.
    """
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    rows = np.full((len(queries), k), -1, dtype=np.int32)
    for start in range(0, len(vectors), chunk):
        block = np.ascontiguousarray(vectors[start : start + chunk], dtype=np.float32)
        for first in range(0, len(queries), QUERIES):
            some = slice(first, first + QUERIES)
            more_scores, more_rows = _top(block, np.ascontiguousarray(queries[some], dtype=np.float32), k)
            scores[some], rows[some] = merge(scores[some], rows[some], more_scores, more_rows + start)
        if progress:
            progress.advance(len(block))
    return scores, rows


def _top(block: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """The best min(k, b) of a block [b, d], in any order; at the cut-off the lower row of a tie is kept."""
    depth = min(k + 1, len(block))
    scores, rows = faiss.knn(queries, block, depth, metric=faiss.METRIC_INNER_PRODUCT)
    if depth <= k:
        return scores, rows
    for query in np.flatnonzero(scores[:, k - 1] == scores[:, k]):
        exact = block @ queries[query]
        best = np.argsort(-exact, kind="stable")[:k]
        scores[query, :k], rows[query, :k] = exact[best], best
    return scores[:, :k], rows[:, :k]


def merge(scores: np.ndarray, rows: np.ndarray, more_scores: np.ndarray, more_rows: np.ndarray) -> Hits:
    """The best k of two hit lists [n, k] and [n, j]; padding has score -inf and sorts last."""
    all_scores = np.concatenate([scores, more_scores], axis=1)
    all_rows = np.concatenate([rows, more_rows.astype(np.int32)], axis=1)
    order = np.lexsort((all_rows, -all_scores), axis=1)[:, : scores.shape[1]]
    return np.take_along_axis(all_scores, order, axis=1), np.take_along_axis(all_rows, order, axis=1)
