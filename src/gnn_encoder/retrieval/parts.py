"""The parts of the ladder: every score that a passage can have for a query when no encoder is trained.

A query's candidates are the union of the first `KEPT` passages of each part, and every part scores every candidate
exactly. So what a bundle answers does not depend on how many hits are asked for, nor on which hits are at hand.
The vector p of a passage in windows is that of the window with the best score.

    dense     s(q, p), the vectors as the encoder gives them
    words     BM25 over the passage
    labelled  BM25 over the passage and its labelled training queries (`label_field`)
    adapted   s(Wᵀq, p) with the query adapter (`adapter`)
    summed    s(q, p + w Σ q') over the training queries q' that p is labelled for, at the length of p
    memory    max s(q, q') over the `NEAREST` training queries nearest to q that p is labelled for

Query memory follows LADER (Jin, Shin and Lu, SIGIR 2023). A feature is a part's score, its distance from or share of
the best candidate's, or 1 / rank among the candidates: all of them are known when a single question is answered.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import tee

import numpy as np

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.artifacts.arrays import Rows, ranges, rows_of
from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse
from gnn_encoder.retrieval.adapter import Moments
from gnn_encoder.retrieval.best_vectors import nearest_rows
from gnn_encoder.retrieval.bm25 import Bm25, top_positive
from gnn_encoder.retrieval.exact import Hits
from gnn_encoder.retrieval.index_file import Index
from gnn_encoder.retrieval.label_field import LabelField, TextsAt
from gnn_encoder.retrieval.labelled_vectors import windows_with_labels
from gnn_encoder.retrieval.query_index import nearest_queries

KEPT = 30
"""Candidates of each part."""
NEAREST, SUMMED = 50, 64
"""Training queries that the memory looks at, and labelled queries of a passage that are summed, at most."""
FEATURES = (
    "dense", "dense below best", "dense rank", "words", "words of best", "words rank",
    "labelled", "labelled of best", "labelled rank", "adapted", "adapted below best", "adapted rank",
    "summed", "summed below best", "memory", "nearest", "terms", "length",
)  # fmt: skip
"""Columns of the features. The number of a passage's labels is left out: where a data set has about one query for each
passage, it would tell how the split was made."""


@dataclass(frozen=True)
class Candidates:
    """Candidates [r] of some queries with their features [r, f], grouped by query: [starts[i], starts[i + 1])."""

    starts: np.ndarray
    passage: np.ndarray
    features: np.ndarray

    @property
    def query(self) -> np.ndarray:
        """The position int64 [r] of each candidate's query."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))


@dataclass(frozen=True)
class Parts:
    """What the parts read.

    vectors  of the passages [m, d]; `search` gives the passages of largest inner product, as `exact.search` does
    words    BM25 over the passages; `passages` are their texts
    labels   labelled training queries, `texts` theirs; `field` BM25 with labels; `query_index` over the queries
    adapter  W fp32 [d, d]
    lengths  ln(1 + the number of characters) of each passage, fp32 [m]
    pulls    of the labelled queries, which the adapter was learnt with; None: 0
    of       the passage of each vector, if some have several (`best_vectors`)
    """

    vectors: Rows
    search: Callable[[np.ndarray, int], Hits]
    words: Bm25
    passages: PassageTable
    labels: LabelledQueries
    texts: TextsAt
    field: LabelField
    adapter: np.ndarray
    lengths: np.ndarray
    query_index: Index | None = None
    sum_weight: float = 0.3
    pulls: Rows | None = None
    of: np.ndarray | None = None

    def without(
        self, held: np.ndarray, moments: Moments, strength: float, weight_of: np.ndarray | None = None
    ) -> "Parts":
        """Returns the parts without the labels of the training queries `held`, bool [n].

        Args:
            moments: of the pairs of all labels. strength: of the adapter.
            weight_of: the weight [m] in the moments of a label of each passage; None: 1.
        """
        rest = self.labels.without(held)
        passages = rest.by_passage.changed
        query = np.flatnonzero(held)
        place, passage = self.labels.by_query.into(query)
        weights = None if weight_of is None else weight_of[passage]
        targets = nearest_rows(self.vectors, self.of, self.labels.vectors, query[place], passage)
        pairs = Moments.of_pairs(self.labels.vectors, query[place], self.vectors, targets, weights, self.pulls)
        return replace(
            self,
            labels=rest,
            field=self.field.changed(self.words, self.passages, rest, self.texts, passages),
            adapter=(moments - pairs).adapter(strength),
        )

    def nearest(self, queries: np.ndarray) -> Hits:
        """Returns the `NEAREST` labelled training queries of each query [n, d], in the form of `exact.search`."""
        return nearest_queries(self.labels, self.query_index, queries, NEAREST)

    def candidates(
        self, questions: Sequence[str], queries: np.ndarray, left_out: np.ndarray | None = None
    ) -> Candidates:
        """Returns the candidates of questions and their vectors [n, d].

        left_out: passage row [n] that is no hit of each query; -1: none.
        """
        adapted = queries @ self.adapter
        by_dense, by_adapted = (self.search(vectors, KEPT + 1)[1] for vectors in (queries, adapted))
        near_scores, near = self.nearest(queries)
        groups, features = [], []
        plain, again = tee(self.word_scores(questions))
        for i, (words, labelled) in enumerate(zip(plain, self.field.totals(questions, again), strict=True)):
            known, similar = self._memory(near_scores[i], near[i])
            tops = [top_positive(part, KEPT + 1) for part in (words, labelled)]
            tops += [by_dense[i], by_adapted[i], known[np.argsort(-similar, kind="stable")]]
            out = -1 if left_out is None else left_out[i]
            rows = np.unique(np.concatenate([top[(top >= 0) & (top != out)][:KEPT] for top in tops]))
            memory = np.zeros(len(rows), np.float32)
            position = np.searchsorted(known, rows)
            has = position < len(known)
            has[has] = known[position[has]] == rows[has]
            memory[has] = similar[position[has]]
            place, vector_rows = rows_of(self.of, rows)
            windows = np.asarray(self.vectors[vector_rows], np.float32)
            dense, turned = (self._best(windows @ vector, place) for vector in (queries[i], adapted[i]))
            summed = self._best(self._summed(rows, windows, place) @ queries[i], place)
            groups.append(rows)
            features.append(
                np.stack(
                    [
                        *(dense, dense - dense.max(initial=-np.inf), _reciprocal_rank(dense)),
                        *(words[rows], _share(words[rows]), _reciprocal_rank(words[rows])),
                        *(labelled[rows], _share(labelled[rows]), _reciprocal_rank(labelled[rows])),
                        *(turned, turned - turned.max(initial=-np.inf), _reciprocal_rank(turned)),
                        *(summed, summed - summed.max(initial=-np.inf), memory),
                        np.full(len(rows), near_scores[i, 0] if near[i, 0] >= 0 else 0),
                        np.full(len(rows), len(questions[i].split())),
                        self.lengths[rows],
                    ],
                    axis=1,
                ).astype(np.float32)
            )
        starts = np.concatenate([[0], np.cumsum([len(rows) for rows in groups])]).astype(np.int64)
        empty = np.empty((0, len(FEATURES)), np.float32)
        return Candidates(
            starts, np.concatenate([starts[:0].astype(np.int32), *groups]), np.concatenate([empty, *features])
        )

    def _memory(self, scores: np.ndarray, near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the passages [c], ascending, of the nearest training queries, and the best similarity [c] of each."""
        scores, near = scores[near >= 0], near[near >= 0]
        place, passage = self.labels.by_query.into(near)
        rows, position = np.unique(passage, return_inverse=True)
        best = np.zeros(len(rows), np.float32)
        np.maximum.at(best, position, scores[place])
        return rows.astype(np.int32), best

    def _best(self, scores: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Returns the best of the scores [r] of each passage's vectors; `place` [r] of their passages, ascending."""
        if self.of is None or not len(scores):
            return scores
        best: np.ndarray = np.maximum.reduceat(scores, np.flatnonzero(np.diff(place, prepend=-1)))
        return best

    def _summed(self, rows: np.ndarray, windows: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Returns the vectors [r, d] of the passages at `rows` plus w times the sum of their last `SUMMED` queries.

        The last ones, because queries of added labels have the highest numbers. windows: the vectors without labels,
        passage by passage. place: of the passage of each in `rows`.
        """
        starts, stops = self.labels.by_passage.bounds(rows)
        starts = np.maximum(starts, stops - SUMMED)
        owner = np.repeat(np.arange(len(rows)), stops - starts)
        query = self.labels.by_passage.numbers[ranges(starts, stops)]
        use = LabelUse("sum", self.sum_weight)
        several = None if self.of is None else place
        return windows_with_labels(use, windows, several, owner, np.asarray(self.labels.vectors[query]))[0]

    def by_labelled_words(self, questions: Sequence[str], k: int) -> Hits:
        """The passages with the largest scores of BM25 with labels, in the form of `exact.search`."""
        scores = np.full((len(questions), k), -np.inf, np.float32)
        rows = np.full((len(questions), k), -1, np.int32)
        for i, totals in enumerate(self.field.totals(questions, self.word_scores(questions))):
            best = top_positive(totals, k)
            scores[i, : len(best)], rows[i, : len(best)] = totals[best], best
        return scores, rows

    def word_scores(self, questions: Sequence[str]) -> Iterator[np.ndarray]:
        """Yields BM25's scores fp32 [m] of all passages for each question."""
        for totals in self.words.totals(questions):
            yield np.zeros(len(self.lengths), np.float32) if totals is None else totals


def length_of(texts: Sequence[str]) -> np.ndarray:
    """Returns the feature `length` of passages, fp32 [b]."""
    return np.log1p(np.array([len(text) for text in texts], np.float32))


def _share(values: np.ndarray) -> np.ndarray:
    """Returns values [c] from 0 on as shares of the largest one."""
    return values / max(float(values.max(initial=0)), 1e-9)


def _reciprocal_rank(values: np.ndarray) -> np.ndarray:
    """Returns 1 / rank [c]; equal values have the rank of the first of them."""
    falling = -np.sort(-values)
    return 1 / (1 + np.searchsorted(-falling, -values))
