"""Selects positives and hard negatives among candidates by M_ce's probability (RocketQA's rule).

An unlabelled candidate with a probability above one threshold is a denoised positive. A candidate with a probability
below a second threshold is a hard negative, unless it is a known positive. Other candidates are not used.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, KnownPositives, PairScores, Qrels, Run, pair_keys
from gnn_encoder.artifacts.folder import read_manifest


@dataclass(frozen=True)
class Pairs:
    """Pairs of dataset rows, `query` and `passage` int32 [r], sorted by query; the best passages of a query first."""

    query: np.ndarray
    passage: np.ndarray

    def __len__(self) -> int:
        return len(self.query)

    def where(self, keep: np.ndarray) -> "Pairs":
        """The pairs where `keep`, bool [r], is true."""
        return Pairs(self.query[keep], self.passage[keep])

    def ranks(self) -> np.ndarray:
        """Each pair's rank among the pairs of its query, from 0, int64 [r]."""
        begins = np.flatnonzero(np.diff(self.query, prepend=-1))
        lengths = np.diff(begins, append=len(self.query))
        return np.arange(len(self.query)) - np.repeat(begins, lengths)

    def first(self, count: int) -> "Pairs":
        """At most `count` pairs of each query."""
        return self.where(self.ranks() < count)

    def table(self, queries: np.ndarray, width: int) -> np.ndarray:
        """Passages int32 [n, width] of `queries` [n] (any order, may repeat); -1: fewer passages."""
        names, row_of_query = np.unique(queries, return_inverse=True)
        pairs = self.where(np.isin(self.query, names)).first(width)
        rows = np.full((len(names), width), -1, dtype=np.int32)
        rows[np.searchsorted(names, pairs.query), pairs.ranks()] = pairs.passage
        return rows[row_of_query]


def read_candidates(path: Path, dataset: Dataset, depth: int, seed: int) -> PairScores:
    """The candidates that M_ce scored; of a run, the first `depth` hits of each labelled query that is trained on.

    SS-BERT takes every unlabelled hit as a negative: a hit has probability 0. Nothing says which hits are hard, so the
    score that orders them is drawn.
    """
    if read_manifest(path).schema != "run":
        return PairScores.read(path)
    hits = Run.read(path).of(np.unique(dataset.trained_labels.query), depth)
    rows = np.argsort(pair_keys(hits.query, hits.passage))
    drawn = np.random.default_rng(seed).random(len(rows), dtype=np.float32)
    return PairScores(hits.query[rows], hits.passage[rows], drawn, np.zeros_like(drawn), np.empty((len(rows), 0)))


def labelled_positives(labels: Qrels) -> Pairs:
    """The pairs with a relevant label, sorted by query and passage."""
    positive = labels.positive()
    order = np.lexsort((positive.passage, positive.query))
    return Pairs(positive.query[order], positive.passage[order])


def hard_negatives(pairs: PairScores, known: KnownPositives, below: float) -> Pairs:
    """Candidates with a probability below `below` that are not known positives, highest score first."""
    return _by_score(pairs, (pairs.probability < below) & ~known.contains(pairs.query, pairs.passage))


def denoised_positives(
    pairs: PairScores, labels: Qrels, above: float, groups: np.ndarray, passage_groups: np.ndarray | None = None
) -> Pairs:
    """Candidates with a probability above `above` and without any label, highest score first.

    A label of one query is also a label of the query's twins, and of the passage's copies (`groups`, `passage_groups`:
    as of `Dataset`).
    """
    judged = KnownPositives(labels.query, labels.passage, groups, passage_groups)  # of any relevance
    return _by_score(pairs, (pairs.probability > above) & ~judged.contains(pairs.query, pairs.passage))


def _by_score(pairs: PairScores, keep: np.ndarray) -> Pairs:
    rows = np.flatnonzero(keep)
    rows = rows[np.lexsort((pairs.passage[rows], -pairs.score[rows], pairs.query[rows]))]
    return Pairs(pairs.query[rows], pairs.passage[rows])
