"""Query memory at search: a passage gains by the training queries nearest to the query, if it is labelled for them.

    score(q, p) = s(q, p) + w · Σ softmax(s(q, q') / T) · [p is labelled for q']      over the k nearest q' in training

A q' whose s(q, q') is below a threshold adds nothing, and nothing gets its share of the softmax. Without a threshold
every question lifts some passages, even if the nearest training queries ask for something else, and new passages pay.

(LADER: Jin, Shin and Lu, "LADER: Log-Augmented DEnse Retrieval for Biomedical Literature Search", SIGIR 2023. LADER
averages both parts and has no threshold; w, k, T and the threshold are chosen on dev here.) For vectors that have no
unit length, w, T and the threshold are multiples of the mean squared length of the memory's vectors, so that their
values mean the same.
"""

from dataclasses import dataclass

import numpy as np

from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse
from gnn_encoder.artifacts.tables import find_pairs, pair_keys
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.best_vectors import nearest_rows
from gnn_encoder.retrieval.exact import Hits
from gnn_encoder.retrieval.index_file import Index
from gnn_encoder.retrieval.query_index import nearest_queries

QUERIES = 512
"""Queries with all candidates in memory at a time."""


@dataclass(frozen=True)
class Memory:
    """The labelled queries that a search looks up, and how it uses them; `use.method` is `softmax`."""

    labels: LabelledQueries
    use: LabelUse
    index: Index | None = None
    """Over the labelled queries, see `nearest_queries`."""

    def neighbours(self, queries: np.ndarray, nearest: Hits | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The nearest memory queries, rows int32 [n, k], and what each adds to its passages, fp32 [n, k].

        nearest: the result of `nearest_queries`, if it is known.
        """
        scores, rows = nearest or nearest_queries(self.labels, self.index, queries, self.use.neighbours)
        scores = np.where(rows[:, :1] >= 0, scores, np.float32(0))  # an index may find nothing
        weights = np.exp((scores - scores[:, :1]) / np.float32(self.use.temperature * self.labels.scale))
        weights *= np.float32(self.use.weight * self.labels.scale) / weights.sum(axis=1, keepdims=True)
        if self.use.threshold:
            weights[scores < np.float32(self.use.threshold * self.labels.scale)] = 0
        return rows, weights

    def search(
        self,
        vectors: np.ndarray,
        queries: np.ndarray,
        hits: Hits,
        nearest: Hits | None = None,
        of: np.ndarray | None = None,
    ) -> Hits:
        """The best passages of `queries` [n, d] by the whole score, in the form of `exact.search`.

        A passage outside the k best by s(q, p) gets among the k best only if a neighbour's label lifts it. So the
        result is exact if `hits` are.

        Args:
            vectors: one vector per passage [m, d]. hits: the k best passages of each query by s(q, p).
            nearest: the result of `nearest_queries`, if it is known: it is the same for all uses of so many neighbours.
            of: the passage of each vector, if some have several (`best_vectors`); s(q, p) is that of the best one.
        """
        if not len(self.labels):
            return hits
        parts = []
        for start in range(0, len(queries), QUERIES):
            some = slice(start, start + QUERIES)
            near = nearest and (nearest[0][some], nearest[1][some])
            parts.append(self._search(vectors, queries[some], hits[0][some], hits[1][some], near, of))
        if not parts:
            return hits
        return np.concatenate([scores for scores, _ in parts]), np.concatenate([rows for _, rows in parts])

    def _search(
        self,
        vectors: np.ndarray,
        queries: np.ndarray,
        scores: np.ndarray,
        rows: np.ndarray,
        nearest: Hits | None,
        of: np.ndarray | None,
    ) -> Hits:
        near, weights = self.neighbours(queries, nearest)
        place, passages = self.labels.by_query.into(near.ravel())
        keys, pair = np.unique(pair_keys(place // near.shape[1], passages), return_inverse=True)
        lift = np.bincount(pair, weights=weights.ravel()[place], minlength=len(keys))
        lift = lift.astype(np.float32)
        # A hit that is labelled is lifted; a labelled passage that is no hit becomes one.
        index = find_pairs(keys, np.arange(len(queries))[:, None], rows)
        scores = scores + np.append(lift, np.float32(0))[index]
        left = np.setdiff1d(np.arange(len(keys)), index)
        asker, passage = keys[left] >> 32, keys[left] & 0xFFFFFFFF
        best = nearest_rows(vectors, of, queries, asker, passage)
        used, widened = np.unique(best, return_inverse=True)  # many queries share a passage, which is widened once
        wide = np.asarray(vectors[used], np.float32)
        score = np.einsum("pd,pd->p", queries[asker], wide[widened]) + lift[left]
        slot = np.arange(len(left)) - np.searchsorted(asker, asker)
        more = np.full((len(queries), int(slot.max(initial=-1)) + 1), -1, np.int32)
        more_scores = np.full(more.shape, -np.inf, np.float32)
        more[asker, slot], more_scores[asker, slot] = passage, score
        return exact.merge(scores, rows, more_scores, more)
