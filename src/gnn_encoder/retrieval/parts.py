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
from itertools import pairwise, tee

import numpy as np

from gnn_encoder.artifacts import PassageTable
from gnn_encoder.artifacts.arrays import Rows, ranges, rows_of
from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse
from gnn_encoder.artifacts.tables import find_pairs, pair_keys
from gnn_encoder.retrieval.adapter import Moments
from gnn_encoder.retrieval.best_vectors import nearest_rows
from gnn_encoder.retrieval.bm25 import Bm25, top_positive
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.hits import Hits, no_hits
from gnn_encoder.retrieval.index_file import Index
from gnn_encoder.retrieval.label_field import LabelField, TextsAt
from gnn_encoder.retrieval.labelled_vectors import windows_with_labels
from gnn_encoder.retrieval.query_index import nearest_queries

TOGETHER = 32
"""Queries whose candidates' vectors are in memory at a time."""
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
FROM_LABELS = np.array([name.split()[0] in ("labelled", "summed", "memory") for name in FEATURES])
"""The features, bool [f], that a passage's labels raise: a fusion may use them as evidence for a passage, never against
it. Otherwise they would tell how the split was made, too."""


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

    vectors  of the passages [m, d]; `search` gives the passages of largest inner product, as `exact.search` does, and
             takes a selection as third argument where a search has a filter
    words    BM25 over the passages; `passages` are their texts
    labels   labelled training queries, `texts` theirs; `field` BM25 with labels; `query_index` over the queries
    adapter  W fp32 [d, d]
    lengths  ln(1 + the number of characters) of each passage, fp32 [m]
    pulls    of the labelled queries, which the adapter was learnt with; None: 0
    of       the passage of each vector, if some have several (`best_vectors`)
    """

    vectors: Rows
    search: Callable[..., Hits]
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
        position, passage = self.labels.by_query.into(query)
        weights = None if weight_of is None else weight_of[passage]
        targets = nearest_rows(self.vectors, self.of, self.labels.vectors, query[position], passage)
        pairs = Moments.of_pairs(self.labels.vectors, query[position], self.vectors, targets, weights, self.pulls)
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
        self,
        questions: Sequence[str],
        queries: np.ndarray,
        left_out: np.ndarray | None = None,
        only: Selection | None = None,
    ) -> Candidates:
        """Returns the candidates of questions and their vectors [n, d].

        left_out: passage row [n] that is no hit of each query; -1: none. only: passages that may be candidates.
        """
        adapted = queries @ self.adapter
        both = np.concatenate([queries, adapted])
        by_dense, by_adapted = np.split(self.nearest_passages(both, KEPT + 1, only)[1], 2)
        near_scores, near = self.nearest(queries)
        nearest = np.where(near[:, :1] >= 0, near_scores[:, :1], 0).sum(axis=1)  # 0 without a labelled query
        known, similar = self._memory(near_scores, near, only)
        ends = np.searchsorted(known, np.arange(len(questions) + 1) << 32)
        groups, of_words = [np.empty(0, np.int32)], [np.empty((2, 0), np.float32)]
        plain, again = tee(self.word_scores(questions))
        for i, (words, labelled) in enumerate(zip(plain, self.field.totals(questions, again), strict=True)):
            mine = slice(ends[i], ends[i + 1])
            remembered = (known[mine] & 0xFFFFFFFF)[np.argsort(-similar[mine], kind="stable")]
            tops = [
                *(top_positive(part, KEPT + 1, only) for part in (words, labelled)),
                by_dense[i],
                by_adapted[i],
                remembered,
            ]
            out = -1 if left_out is None else left_out[i]
            groups.append(np.unique(np.concatenate([top[(top >= 0) & (top != out)][:KEPT] for top in tops])))
            of_words.append(np.stack([words[groups[-1]], labelled[groups[-1]]]))
        starts, rows = np.cumsum([len(group) for group in groups]), np.concatenate(groups).astype(np.int32)
        asker = np.repeat(np.arange(len(questions)), np.diff(starts))
        scores = [
            self._by_vectors(
                rows[starts[first] : starts[last]], starts[first : last + 1], queries[first:last], adapted[first:last]
            )
            for first in range(0, len(questions), TOGETHER)
            for last in [min(first + TOGETHER, len(questions))]
        ]
        dense, turned, summed = np.concatenate([np.empty((3, 0), np.float32), *scores], axis=1)
        words, labelled = np.concatenate(of_words, axis=1)
        columns = [
            *(dense, dense - _best_of_each(dense, starts), _reciprocal_ranks(dense, starts)),
            *(words, _share(words, starts), _reciprocal_ranks(words, starts)),
            *(labelled, _share(labelled, starts), _reciprocal_ranks(labelled, starts)),
            *(turned, turned - _best_of_each(turned, starts), _reciprocal_ranks(turned, starts)),
            *(summed, summed - _best_of_each(summed, starts)),
            np.append(similar, np.float32(0))[find_pairs(known, asker, rows)],
            *(column[asker] for column in (nearest, np.array([len(question.split()) for question in questions]))),
            self.lengths[rows],
        ]
        return Candidates(starts, rows, np.stack(columns, axis=1).astype(np.float32))

    def nearest_passages(self, queries: np.ndarray, k: int, only: Selection | None = None) -> Hits:
        """The passages with the largest inner products with `queries` [n, d], in the form of `exact.search`."""
        return self.search(queries, k, only) if only else self.search(queries, k)

    def _memory(self, scores: np.ndarray, near: np.ndarray, only: Selection | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs [c] of a query and a passage that one of its nearest training queries is labelled for, as
        `pair_keys`, ascending, and the best similarity [c] of each."""
        position, passage = self.labels.by_query.into(near.ravel())
        if only:
            position, passage = position[only.mask[passage]], passage[only.mask[passage]]
        keys, pair = np.unique(pair_keys(position // max(near.shape[1], 1), passage), return_inverse=True)
        best = np.zeros(len(keys), np.float32)
        np.maximum.at(best, pair, scores.ravel()[position])
        return keys, best

    def _by_vectors(self, rows: np.ndarray, starts: np.ndarray, queries: np.ndarray, adapted: np.ndarray) -> np.ndarray:
        """Returns the parts `dense`, `adapted` and `summed`, fp32 [3, r], of some queries' candidates at `rows` [r]."""
        position, vector_rows = rows_of(self.of, rows)
        windows = np.asarray(self.vectors[vector_rows], np.float32)
        summed = self._summed(rows, windows, position)
        bounds = np.searchsorted(position, starts - starts[0])
        scores = np.empty((3, len(windows)), np.float32)
        for i, (first, last) in enumerate(pairwise(bounds.tolist())):
            mine = slice(first, last)
            scores[:, mine] = windows[mine] @ queries[i], windows[mine] @ adapted[i], summed[mine] @ queries[i]
        return np.stack([self._best(part, position) for part in scores])

    def _best(self, scores: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Returns the best of the scores [r] of each passage's vectors; `place` [r] of their passages, ascending."""
        if self.of is None or not len(scores):
            return scores
        return np.maximum.reduceat(scores, np.flatnonzero(np.diff(position, prepend=-1)))

    def _summed(self, rows: np.ndarray, windows: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Returns the vectors [r, d] of the passages at `rows` plus w times the sum of their last `SUMMED` queries.

        The last ones, because queries of added labels have the highest numbers. windows: the vectors without labels,
        passage by passage. place: of the passage of each in `rows`.
        """
        starts, stops = self.labels.by_passage.bounds(rows)
        starts = np.maximum(starts, stops - SUMMED)
        owner = np.repeat(np.arange(len(rows)), stops - starts)
        query = self.labels.by_passage.numbers[ranges(starts, stops)]
        use = LabelUse("sum", self.sum_weight)
        several = None if self.of is None else position
        return windows_with_labels(use, windows, several, owner, np.asarray(self.labels.vectors[query]))[0]

    def by_labelled_words(self, questions: Sequence[str], k: int, only: Selection | None = None) -> Hits:
        """The passages with the largest scores of BM25 with labels, in the form of `exact.search`."""
        scores, rows = no_hits(len(questions), k)
        for i, totals in enumerate(self.field.totals(questions, self.word_scores(questions))):
            best = top_positive(totals, k, only)
            scores[i, : len(best)], rows[i, : len(best)] = totals[best], best
        return scores, rows

    def word_scores(self, questions: Sequence[str]) -> Iterator[np.ndarray]:
        """Yields BM25's scores fp32 [m] of all passages for each question."""
        for totals in self.words.totals(questions):
            yield np.zeros(len(self.lengths), np.float32) if totals is None else totals


def length_of(texts: Sequence[str]) -> np.ndarray:
    """Returns the feature `length` of passages, fp32 [b]."""
    return np.log1p(np.array([len(text) for text in texts], np.float32))


def _best_of_each(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns, for each value [r], the largest one of its query; query i has those of [starts[i], starts[i + 1])."""
    sizes = np.diff(starts)
    filled = starts[:-1][sizes > 0]
    return np.repeat(np.maximum.reduceat(values, filled), sizes[sizes > 0]) if len(filled) else values


def _share(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns values [r] from 0 on as shares of the largest one of each query."""
    return np.asarray(values / np.maximum(_best_of_each(values, starts), 1e-9))


def _reciprocal_ranks(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns 1 / rank [r] among each query's candidates; equal values have the rank of the first of them."""
    ranks = np.empty(len(values))
    for first, last in pairwise(starts.tolist()):
        mine = -values[first:last]
        ranks[first:last] = 1 + np.searchsorted(np.sort(mine), mine)
    return 1 / ranks
