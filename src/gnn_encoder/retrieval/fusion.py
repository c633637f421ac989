"""Two rankings made one: BM25 finds what has the words, a dense retriever what has the meaning.

Two ways. The convex combination adds up scores, each system's brought to 0…1 per query by its lowest and its highest
(Bruch, Gai and Ingber, 2023), (1 - w) of the first and w of the second. Reciprocal rank fusion adds up
1 / (60 + rank) (Cormack, Clarke and Büttcher, 2009) and has nothing to tune. A passage that one system did not
find has 0 from that one.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gnn_encoder.artifacts import Run, pair_keys

RRF_K = 60
GRID = tuple(round(0.05 * step, 2) for step in range(21))
"""Weights tried."""
UNTUNED = 0.5
"""The weight where there are no dev queries."""
QUERIES = 512
"""Queries fused at a time."""


@dataclass(frozen=True)
class Pool:
    """The hits of two rankings side by side; `passage`s of a query ascending.

    query, passage  int32 [u], distinct pairs; query i has the rows from starts[i] on, sizes[i] of them
    first, second   int64 [r], row of each hit of either ranking
    """

    query: np.ndarray
    passage: np.ndarray
    first: np.ndarray
    second: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, first: Run, second: Run) -> "Pool":
        """Of two rankings."""
        keys = np.concatenate([pair_keys(run.query, run.passage) for run in (first, second)])
        order = np.argsort(keys)  # as np.unique does, in half its time
        new = np.diff(keys[order], prepend=-1) != 0
        rows = np.empty_like(order)
        rows[order] = np.cumsum(new) - 1
        distinct = keys[order[new]]
        query = (distinct >> 32).astype(np.int32)
        starts = np.flatnonzero(np.diff(query, prepend=-1))
        sizes = np.diff(np.append(starts, len(query)))
        passage = (distinct & 0xFFFFFFFF).astype(np.int32)
        of_first, of_second = np.split(rows, [len(first.query)])
        return cls(query, passage, of_first, of_second, starts, sizes)

    def ranked(self, first: np.ndarray, second: np.ndarray, depth: int) -> Run:
        """The best `depth` of each query by the sum of both rankings' values [r] ≥ 0; ties by ascending passage row."""
        total = np.zeros(len(self.query))
        total[self.first] += first
        total[self.second] += second
        score = total.astype(np.float32)  # as it is kept: what is equal there must be a tie here
        row = np.repeat(np.arange(len(self.starts)), self.sizes)
        widest = int(self.sizes.max(initial=0))
        if widest > depth:  # sort only what no more than `depth` others exceed
            table = np.full((len(self.starts), widest), -np.inf, dtype=np.float32)
            table[row, np.arange(len(row)) - self.starts[row]] = score
            least = np.partition(table, widest - depth, axis=1)[:, widest - depth]
            kept = np.flatnonzero(score >= least[row])
        else:
            kept = np.arange(len(score))
        # One integer for query and score: the bits of floats that are not negative are ordered as they are.
        falling = row[kept] << 32 | (0x7FFFFFFF - score[kept].view(np.int32))
        order = kept[np.argsort(falling, kind="stable")]
        begins = np.flatnonzero(np.diff(self.query[order], prepend=-1))
        rank = np.arange(1, len(order) + 1) - np.repeat(begins, np.diff(np.append(begins, len(order))))
        order, rank = order[rank <= depth], rank[rank <= depth].astype(np.int32)
        return Run(self.query[order], self.passage[order], rank, score[order])


def min_max(run: Run) -> np.ndarray:
    """Each hit's score between its query's lowest, 0, and highest, 1; float64 [r]. 1 where both are the same."""
    if not len(run.query):
        return np.zeros(0)
    starts = np.flatnonzero(np.diff(run.query, prepend=-1))
    sizes = np.diff(np.append(starts, len(run.query)))
    score = run.score.astype(np.float64)
    low = np.repeat(np.minimum.reduceat(score, starts), sizes)
    span = np.repeat(np.maximum.reduceat(score, starts), sizes) - low
    values: np.ndarray = np.where(span > 0, (score - low) / np.where(span > 0, span, 1.0), 1.0)
    return values


def reciprocal_ranks(run: Run) -> np.ndarray:
    """1 / (60 + rank) of each hit, float64 [r]."""
    values: np.ndarray = 1.0 / (RRF_K + run.rank)
    return values


def fuse(first: Run, second: Run, weight: float, depth: int) -> tuple[Run, Run]:
    """The first `depth` hits of each query by (1 - weight) · first + weight · second, and by reciprocal ranks.

    A block of queries is in memory at a time, besides what goes in and comes out.
    """
    queries = np.union1d(first.query, second.query)
    parts: list[tuple[Run, Run]] = [_fused(first.between(0, -1), second.between(0, -1), weight, depth)]
    for start in range(0, len(queries), QUERIES):
        ends = int(queries[start]), int(queries[min(start + QUERIES, len(queries)) - 1])
        parts.append(_fused(first.between(*ends), second.between(*ends), weight, depth))
    convex, reciprocal = (
        Run(*(np.concatenate([getattr(run, name) for run in runs]) for name in Run.__dataclass_fields__))
        for runs in zip(*parts, strict=True)
    )
    return convex, reciprocal


def _fused(first: Run, second: Run, weight: float, depth: int) -> tuple[Run, Run]:
    pool = Pool.of(first, second)
    return (
        pool.ranked((1 - weight) * min_max(first), weight * min_max(second), depth),
        pool.ranked(reciprocal_ranks(first), reciprocal_ranks(second), depth),
    )


def tuned_weight(
    first: Run, second: Run, figure: Callable[[Run], float], depth: int
) -> tuple[float, dict[float, float]]:
    """The weight of `GRID` whose convex combination, cut at `depth`, has the highest figure; and every figure.

    Of equal ones the weight nearest to a half, which leans on neither system by chance.
    """
    pool, of_first, of_second = Pool.of(first, second), min_max(first), min_max(second)
    figures = {weight: figure(pool.ranked((1 - weight) * of_first, weight * of_second, depth)) for weight in GRID}
    best = max(figures, key=lambda weight: (round(figures[weight], 12), -abs(weight - UNTUNED)))
    return best, figures
