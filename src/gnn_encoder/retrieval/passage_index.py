"""Searches the passages of a bundle: by one vector a passage, by several, or by a vector and a query memory.

A passage with several vectors scores as its best vector. The search is as exact as the index is: it asks for more
vectors until each query has `k` different passages.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gnn_encoder.artifacts import Bundle
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.exact import Hits
from gnn_encoder.retrieval.index_file import Index, bundle_index, search_index
from gnn_encoder.retrieval.memory import Memory
from gnn_encoder.retrieval.query_index import open_query_index

if TYPE_CHECKING:
    from gnn_encoder.retrieval.learned_search import LearnedSearch


@dataclass(frozen=True)
class PassageIndex:
    """An index over `vectors` [v, d], the vectors themselves, and a memory.

    `of` int32 [v] is the passage of each vector, ascending; None: vector i is of passage i. If passages have several
    vectors, added labels may have `changed` all vectors of some: these vectors [c, d], and the passage [c] of each.
    """

    index: Index
    vectors: np.ndarray
    of: np.ndarray | None = None
    memory: Memory | None = None
    changed: tuple[np.ndarray, np.ndarray] | None = None
    learned: "LearnedSearch | None" = None
    """The fusion by which the bundle ranks. `search` gives the passages by vectors alone."""

    @classmethod
    def read(cls, bundle: Bundle) -> "PassageIndex":
        """Opens a bundle's index; raises UserError as `load_index`."""
        index, of, use = bundle_index(bundle), bundle.stored_vector_passages, bundle.label_use
        if of is not None:
            changes, stored = bundle.changes, bundle.stored_vectors
            changed = (changes.vectors.astype(stored.dtype), changes.rows) if changes and len(changes.rows) else None
            return cls(index, stored, of, changed=changed)
        if bundle.fusion_path:
            from gnn_encoder.retrieval.learned_search import LearnedSearch  # imports bm25s

            learned = LearnedSearch.read(bundle, partial(search_index, index))
            return cls(index, bundle.vectors, learned=learned)
        if use and use.method == "softmax" and use.weight and (labelled := bundle.labelled):
            near = open_query_index(labelled.queries, labelled.folder)
            return cls(index, bundle.vectors, memory=Memory(labelled.queries, use, near))
        return cls(index, bundle.vectors)

    @property
    def reads_vectors(self) -> bool:
        """Whether the bundle's ranking depends on a query's vector."""
        return not self.learned or self.learned.reads_vectors

    def search(self, queries: np.ndarray, k: int) -> Hits:
        """The best passages of `queries` [n, d], in the form of `exact.search`."""
        if self.of is not None:
            return self._several(queries, k, self.of)
        hits = search_index(self.index, queries, k)
        return self.memory.search(self.vectors, queries, hits) if self.memory else hits

    def _several(self, queries: np.ndarray, k: int, of: np.ndarray) -> Hits:
        """Searches passages with several vectors; the changed ones are searched exactly, as in `ChangedIndex`."""
        search = partial(search_index, self.index)
        if self.changed is None:
            return distinct(search, of, queries, k)
        vectors, changed_passages = self.changed
        scores, rows = distinct(search, of, queries, k + len(np.unique(changed_passages)))
        former = np.isin(rows, changed_passages)
        scores, rows = np.where(former, -np.inf, scores), np.where(former, -1, rows)
        scores, rows = exact.merge(
            scores, rows, *distinct(partial(exact.search, vectors), changed_passages, queries, k)
        )
        return scores[:, :k], rows[:, :k]


def distinct(search: Callable[[np.ndarray, int], Hits], of: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """The `k` best passages of each query by the best of their vectors, in the form of `exact.search`.

    Args:
        search: gives the best vectors of some queries [q, d], in the form of `exact.search`.
        of: passage [v] of each vector, ascending, so that equal scores are ordered by passage.
    """
    total, passages = len(of), int((np.diff(of, prepend=-1) != 0).sum())
    scores = np.full((len(queries), k), -np.inf, np.float32)
    passage_rows = np.full((len(queries), k), -1, np.int32)
    todo, depth, most = np.arange(len(queries)), min(2 * k, total), min(k, passages)
    while len(todo) and most:
        vector_scores, rows = search(queries[todo], depth)
        owner = np.where(rows >= 0, of[rows], -1)
        complete = _keep_first(scores, passage_rows, todo, vector_scores, owner) >= most
        if depth == total:
            break
        # An approximate index may have found less than it was asked for; more of it does not help.
        todo = todo[~complete & (rows[:, -1] >= 0)]
        depth = min(2 * depth, total)
    return scores, passage_rows


def _keep_first(
    scores: np.ndarray, passage_rows: np.ndarray, queries: np.ndarray, vector_scores: np.ndarray, owner: np.ndarray
) -> np.ndarray:
    """Writes the first hit of each passage to the rows `queries` [q] of `scores` and `passage_rows` [n, k].

    `owner` [q, r] is the passage of each vector found, best first, -1 after the last one. Returns the number of
    different passages of each query [q].
    """
    order = np.argsort(owner, axis=1, kind="stable")
    grouped = np.take_along_axis(owner, order, axis=1)
    new = np.empty(owner.shape, bool)
    np.put_along_axis(new, order, np.diff(grouped, axis=1, prepend=-1) != 0, axis=1)
    rank = np.cumsum(new, axis=1) - 1
    row, column = np.nonzero(new & (rank < passage_rows.shape[1]))
    at = (queries[row], rank[row, column])
    scores[at], passage_rows[at] = vector_scores[row, column], owner[row, column]
    numbers: np.ndarray = rank[:, -1] + 1
    return numbers


def best_of_blocks(blocks: Iterable[tuple[np.ndarray, np.ndarray]], queries: np.ndarray, k: int) -> Hits:
    """The `k` best passages of `queries` [n, d] over blocks of vectors; all vectors of a passage are in one block.

    Each block is the vectors [r, d] and the passage rows [r], ascending.
    """
    scores = np.full((len(queries), k), -np.inf, np.float32)
    rows = np.full((len(queries), k), -1, np.int32)
    for vectors, of in blocks:
        scores, rows = exact.merge(scores, rows, *distinct(partial(exact.search, vectors), of, queries, k))
    return scores, rows
