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
from gnn_encoder.retrieval.best_vectors import nearest_rows
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.hits import Hits, merge
from gnn_encoder.retrieval.index_file import Index
from gnn_encoder.retrieval.query_index import nearest_queries

QUERIES = 512
"""Queries with all candidates in memory at a time."""


@dataclass(frozen=True)
class Labelled:
    """What the memory finds for some queries [n], whatever the weights of its uses.

    scores fp32, rows int32 [n, k]: the k best passages by s(q, p)
    near: the nearest training queries, in the form of `exact.search`; `place` [e] of each labelled pair in them, and
        `lifted` [e], its place among `lifts` lifts, one for each passage of a query
    hit [n, k]: the lift of each hit; -1: none
    left, asker, passage, score [l]: the other lifts, the place of the query, the passage and s(q, p) of each
    """

    scores: np.ndarray
    rows: np.ndarray
    near: Hits
    position: np.ndarray
    lifted: np.ndarray
    lifts: int
    hit: np.ndarray
    left: np.ndarray
    asker: np.ndarray
    passage: np.ndarray
    score: np.ndarray


def find_labelled(
    labels: LabelledQueries,
    vectors: np.ndarray,
    queries: np.ndarray,
    hits: Hits,
    nearest: Hits,
    of: np.ndarray | None = None,
    only: Selection | None = None,
) -> list[Labelled]:
    """Looks up what the labelled queries `nearest` to each query are labelled for; the rest as in `Memory.search`."""

    def of_block(some: slice) -> Labelled:
        asking, (scores, rows), near = (
            queries[some],
            (hits[0][some], hits[1][some]),
            (nearest[0][some], nearest[1][some]),
        )
        position, passages = labels.by_query.into(near[1].ravel())
        if only:
            position, passages = position[only.mask[passages]], passages[only.mask[passages]]
        keys, pair = np.unique(pair_keys(position // near[1].shape[1], passages), return_inverse=True)
        # A hit that is labelled is lifted; a labelled passage that is no hit becomes one.
        hit = find_pairs(keys, np.arange(len(asking))[:, None], rows)
        left = np.setdiff1d(np.arange(len(keys)), hit)
        asker, passage = keys[left] >> 32, keys[left] & 0xFFFFFFFF
        best = nearest_rows(vectors, of, asking, asker, passage)
        used, widened = np.unique(best, return_inverse=True)  # many queries share a passage, which is widened once
        score = np.einsum("pd,pd->p", asking[asker], np.asarray(vectors[used], np.float32)[widened])
        return Labelled(scores, rows, near, position, pair, len(keys), hit, left, asker, passage, score)

    return [of_block(slice(start, start + QUERIES)) for start in range(0, len(queries), QUERIES)]


@dataclass(frozen=True)
class Memory:
    """The labelled queries that a search looks up, and how it uses them; `use.method` is `softmax`."""

    labels: LabelledQueries
    use: LabelUse
    index: Index | None = None
    """Over the labelled queries, see `nearest_queries`."""

    def neighbours(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest memory queries, rows int32 [n, k], and what each adds to its passages, fp32 [n, k]."""
        scores, rows = self._nearest(queries)
        return rows, self._weights(scores, rows)

    def search(
        self,
        vectors: np.ndarray,
        queries: np.ndarray,
        hits: Hits,
        of: np.ndarray | None = None,
        only: Selection | None = None,
    ) -> Hits:
        """The best passages of `queries` [n, d] by the whole score, in the form of `exact.search`.

        A passage outside the k best by s(q, p) gets among the k best only if a neighbour's label lifts it. So the
        result is exact if `hits` are.

        Args:
            vectors: one vector per passage [m, d]. hits: the k best passages of each query by s(q, p).
            of: the passage of each vector, if some have several (`best_vectors`); s(q, p) is that of the best one.
            only: passages that a label may lift, those that `hits` were searched among; None: all.
        """
        if not len(self.labels) or not len(queries):
            return hits
        return self.lift(find_labelled(self.labels, vectors, queries, hits, self._nearest(queries), of, only))

    def lift(self, labelled: list[Labelled]) -> Hits:
        """As `search`, where `labelled` are what `find_labelled` finds with as many neighbours as the use has."""
        parts = [self._lift(part) for part in labelled]
        return np.concatenate([scores for scores, _ in parts]), np.concatenate([rows for _, rows in parts])

    def _nearest(self, queries: np.ndarray) -> Hits:
        return nearest_queries(self.labels, self.index, queries, self.use.neighbours)

    def _weights(self, scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
        scores = np.where(rows[:, :1] >= 0, scores, np.float32(0))  # an index may find nothing
        weights: np.ndarray = np.exp((scores - scores[:, :1]) / np.float32(self.use.temperature * self.labels.scale))
        weights *= np.float32(self.use.weight * self.labels.scale) / weights.sum(axis=1, keepdims=True)
        if self.use.threshold:
            weights[scores < np.float32(self.use.threshold * self.labels.scale)] = 0
        return weights

    def _lift(self, labelled: Labelled) -> Hits:
        weights = self._weights(*labelled.near).ravel()[labelled.position]
        lift = np.bincount(labelled.lifted, weights=weights, minlength=labelled.lifts).astype(np.float32)
        scores = labelled.scores + np.append(lift, np.float32(0))[labelled.hit]
        score = labelled.score + lift[labelled.left]
        slot = np.arange(len(score)) - np.searchsorted(labelled.asker, labelled.asker)
        more = np.full((len(scores), int(slot.max(initial=-1)) + 1), -1, np.int32)
        more_scores = np.full(more.shape, -np.inf, np.float32)
        more[labelled.asker, slot], more_scores[labelled.asker, slot] = labelled.passage, score
        return merge(scores, labelled.rows, more_scores, more)
