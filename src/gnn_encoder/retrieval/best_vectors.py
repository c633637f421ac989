"""Passages with several vectors, such as those of their windows: a passage scores as its best vector.

The functions take vectors [v, d] and the passage `of` int32 [v], ascending, of each; None: vector i is of passage i.
"""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from gnn_encoder.artifacts.arrays import Rows, rows_of
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.hits import Hits, merge, no_hits

PAIRS = 512
"""Pairs of a query and a passage with all vectors in memory at a time."""


def search(vectors: Rows, of: np.ndarray | None, queries: np.ndarray, k: int) -> Hits:
    """The best passages of `queries` [n, d] by an exact search, in the form of `exact.search`."""
    if of is None:
        return exact.search(vectors, queries, k)
    return distinct(partial(exact.search, vectors), of, queries, k)


def nearest_rows(
    vectors: Rows, of: np.ndarray | None, queries: Rows, query: np.ndarray, passage: np.ndarray
) -> np.ndarray:
    """Returns the row int64 [p] of the best vector of `passage` [p] for the query at row `query` [p] of `queries`."""
    if of is None:
        return passage
    best = np.empty(len(passage), np.int64)
    for start in range(0, len(passage), PAIRS):
        some = slice(start, start + PAIRS)
        position, rows = rows_of(of, passage[some])
        sides = np.asarray(queries[query[some][position]], np.float32), np.asarray(vectors[rows], np.float32)
        best[some] = rows[largest_of_each(np.einsum("rd,rd->r", *sides), position)]
    return best


def largest_of_each(values: np.ndarray, segment: np.ndarray) -> np.ndarray:
    """Returns the place of the largest of `values` [e] in each segment [s], the first of equal ones."""
    order = np.lexsort((-values, segment))
    _, starts = np.unique(segment[order], return_index=True)
    return order[starts]


def distinct(search: Callable[[np.ndarray, int], Hits], of: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """The `k` best passages of each query by the best of their vectors, in the form of `exact.search`.

    Args:
        search: gives the best vectors of some queries [q, d], in the form of `exact.search`.
        of: passage [v] of each vector, ascending, so that equal scores are ordered by passage.
    """
    total, passages = len(of), min(len(of), 1) + np.count_nonzero(of[1:] != of[:-1])
    scores, passage_rows = no_hits(len(queries), k)
    todo, depth, most = np.arange(len(queries)), min(2 * k, total), min(k, passages)
    while len(todo) and most:
        vector_scores, rows = search(queries[todo], depth)
        owner = np.where(rows >= 0, of[rows], -1)
        row, column, rank, found = first_of_each(owner, k)
        at = (todo[row], rank)
        scores[at], passage_rows[at] = vector_scores[row, column], owner[row, column]
        complete = found >= most
        if depth == total:
            break
        # An approximate index may have found less than it was asked for; more of it does not help.
        todo = todo[~complete & (rows[:, -1] >= 0)]
        depth = min(2 * depth, total)
    return scores, passage_rows


def first_of_each(owner: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns where the `k` first different passages of each query are: row, column and rank, from 0, [e] each.

    `owner` [q, r] is the passage of each hit, best first; -1: none. The last array is the number of different passages
    of each query [q].
    """
    order = np.argsort(owner, axis=1, kind="stable")
    grouped = np.take_along_axis(owner, order, axis=1)
    new = np.empty(owner.shape, bool)
    np.put_along_axis(new, order, np.diff(grouped, axis=1, prepend=-1) != 0, axis=1)
    rank = np.cumsum(new, axis=1) - 1
    row, column = np.nonzero(new & (rank < k))
    return row, column, rank[row, column], rank[:, -1] + 1


def best_of_blocks(blocks: Iterable[tuple[np.ndarray, np.ndarray]], queries: np.ndarray, k: int) -> Hits:
    """The `k` best passages of `queries` [n, d] over blocks of vectors; all vectors of a passage are in one block.

    Each block is the vectors [r, d] and the passage rows [r], ascending.
    """
    scores, rows = no_hits(len(queries), k)
    for vectors, of in blocks:
        scores, rows = merge(scores, rows, *distinct(partial(exact.search, vectors), of, queries, k))
    return scores, rows
