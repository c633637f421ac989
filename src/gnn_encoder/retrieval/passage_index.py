"""Searches the passages of a bundle: by one vector a passage, by several, or by a vector and a query memory.

A passage with several vectors scores as its best vector (`best_vectors`). The search is as exact as the index is: it
asks for more vectors until each query has `k` different passages.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from gnn_encoder.artifacts import Bundle
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.best_vectors import distinct
from gnn_encoder.retrieval.filters import Selection, most_kept
from gnn_encoder.retrieval.hits import Hits, merge
from gnn_encoder.retrieval.index_file import Index, approximates, bundle_index, search_index
from gnn_encoder.retrieval.memory import Memory
from gnn_encoder.retrieval.query_index import open_query_index

if TYPE_CHECKING:
    from gnn_encoder.retrieval.learned_search import LearnedSearch


FEW = 65_536
"""Vectors left by a filter that are compared one by one in the place of ivf or hnsw, which then miss none."""


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
        vectors = bundle.vectors if of is None else bundle.stored_vectors
        if bundle.fusion_path:
            from gnn_encoder.retrieval.learned_search import LearnedSearch  # imports bm25s

            by_vectors = cls(index, vectors, of)
            return replace(by_vectors, learned=LearnedSearch.read(bundle, vectors, by_vectors.search))
        if use and use.method == "softmax" and use.weight and (labelled := bundle.labelled):
            near = open_query_index(labelled.queries, labelled.folder)
            return cls(index, vectors, of, Memory(labelled.queries, use, near))
        changed = None
        if of is not None and (changes := bundle.changes) and len(changes.rows):
            changed = changes.vectors.astype(vectors.dtype), changes.rows
        return cls(index, vectors, of, changed=changed)

    @property
    def reads_vectors(self) -> bool:
        """Whether the bundle's ranking depends on a query's vector."""
        return not self.learned or self.learned.reads_vectors

    def search(self, queries: np.ndarray, k: int, only: Selection | None = None) -> Hits:
        """The best passages of `queries` [n, d], in the form of `exact.search`; with `only`, the best of these."""
        if self.of is None:
            hits = search_index(self._index(only), queries, k, only)
        else:
            hits = self._several(queries, k, self.of, only)
        return self.memory.search(self.vectors, queries, hits, of=self.of, only=only) if self.memory else hits

    def _index(self, only: Selection | None) -> Index:
        """What a search reads. The vectors of few passages take less time than ivf or hnsw over all."""
        few = only is not None and len(only.rows) <= FEW
        return self.vectors if few and approximates(self.index) else self.index

    @cached_property
    def _vectors_of(self) -> Callable[[Selection], Selection]:
        """The selection of the vectors of selected passages; recent ones are kept, as they take as long as a search."""
        return lru_cache(most_kept(len(self.vectors)))(lambda only: only.at(self.of))

    def _several(self, queries: np.ndarray, k: int, of: np.ndarray, only: Selection | None) -> Hits:
        """Searches passages with several vectors; the changed ones are searched exactly, as in `ChangedIndex`."""
        inside = only and self._vectors_of(only)
        search = partial(search_index, self._index(inside), only=inside)
        if self.changed is None:
            return distinct(search, of, queries, k)
        vectors, changed_passages = self.changed
        scores, rows = distinct(search, of, queries, k + len(np.unique(changed_passages)))
        former = np.isin(rows, changed_passages)
        scores, rows = np.where(former, -np.inf, scores), np.where(former, -1, rows)
        among_changed = only and only.at(changed_passages).rows
        changed = distinct(partial(exact.search, vectors, only=among_changed), changed_passages, queries, k)
        scores, rows = merge(scores, rows, *changed)
        return scores[:, :k], rows[:, :k]
