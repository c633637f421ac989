"""Fuses two rankings. BM25 matches the query's words, and a dense retriever matches the query's meaning.

The convex combination is score = (1 − w) · first + w · second, with scores min-max normalised per query and system
(Bruch, Gai and Ingber, 2023), over the first `DEPTH` hits: so the first hits are the same for any number of hits.
Reciprocal rank fusion adds 1 / (60 + rank) (Cormack, Clarke and Büttcher, 2009) and has
no parameter that is tuned here. A passage absent from a ranking gets 0 for that ranking.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gnn_encoder.artifacts import Run, pair_keys

DEPTH = 1000
"""Hits of each ranking that are normalised and summed. Passages behind them in both rankings follow in an order of
their own, by scores from -2 to -1."""
RRF_K = 60
UNTUNED = 0.5
"""The weight if there are no dev queries."""
GRID = tuple(sorted((round(0.05 * step, 2) for step in range(21)), key=lambda weight: abs(weight - UNTUNED)))
"""Candidate weights. Among equal figures the first one wins, so that chance does not favour a system."""
QUERIES, THREADS = 512, 2
"""Queries fused at a time, and threads that fuse."""


@dataclass(frozen=True)
class Pool:
    """The distinct hits of two rankings, sorted by query and passage.

    query, passage  int32 [u]
    first, second   int64 [r]: row in the pool of each hit of the first (second) ranking
    starts, sizes   int64 [n]: query i has `sizes[i]` rows from row `starts[i]` on
    """

    query: np.ndarray
    passage: np.ndarray
    first: np.ndarray
    second: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, first: Run, second: Run) -> "Pool":
        """The union of two rankings."""
        keys = np.concatenate([pair_keys(run.query, run.passage) for run in (first, second)])
        order = np.argsort(keys)  # does the work of np.unique in half the time
        new = np.diff(keys[order], prepend=-1) != 0
        rows = np.empty_like(order)
        rows[order] = np.cumsum(new) - 1
        distinct = keys[order[new]]
        query, passage = (distinct >> 32).astype(np.int32), (distinct & 0xFFFFFFFF).astype(np.int32)
        hits = len(first.query)
        return cls(query, passage, rows[:hits], rows[hits:], *_groups(query))

    def sum(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The sum of both values [r] of each hit, float64 [u]."""
        total = np.zeros(len(self.query))
        total[self.first] += first
        total[self.second] += second
        return total

    def ranked(self, total: np.ndarray, depth: int) -> Run:
        """The `depth` best hits of each query by their totals [u]; ties by ascending passage row."""
        score = total.astype(np.float32)  # the type of a `Run`, so that equal stored scores are ties
        row = np.repeat(np.arange(len(self.starts)), self.sizes)
        widest = int(self.sizes.max(initial=0))
        if widest > depth:  # sort only the hits that can be among the best `depth`
            table = np.full((len(self.starts), widest), -np.inf, dtype=np.float32)
            table[row, np.arange(len(row)) - self.starts[row]] = score
            least = np.partition(table, widest - depth, axis=1)[:, widest - depth]
            kept = np.flatnonzero(score >= least[row])
        else:
            kept = np.arange(len(score))
        # One integer for query and score: the bits of floats have the order of the floats, those of negative ones
        # the reverse order.
        bits = score[kept].view(np.int32).astype(np.int64)
        falling = row[kept] << 32 | (0x7FFFFFFF - np.where(bits < 0, bits ^ 0x7FFFFFFF, bits))
        order = kept[np.argsort(falling, kind="stable")]
        rank = np.arange(1, len(order) + 1) - np.repeat(*_groups(self.query[order]))
        order, rank = order[rank <= depth], rank[rank <= depth].astype(np.int32)
        return Run(self.query[order], self.passage[order], rank, score[order])


def _groups(query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first row and the number of rows of each query; `query` [r] is sorted."""
    starts = np.flatnonzero(np.diff(query, prepend=-1))
    return starts, np.diff(np.append(starts, len(query)))


def min_max(run: Run) -> np.ndarray:
    """Min-max normalised scores per query, float64 [r]; all 1 if a query's scores are equal."""
    starts, sizes = _groups(run.query)
    score = run.score.astype(np.float64)
    low = np.repeat(np.minimum.reduceat(score, starts), sizes)
    span = np.repeat(np.maximum.reduceat(score, starts), sizes) - low
    return np.where(span > 0, (score - low) / np.where(span > 0, span, 1.0), 1.0)


class _Convex:
    """The convex combination of two rankings with any weight."""

    def __init__(self, pool: Pool, first: Run, second: Run) -> None:
        self._pool, self._is_behind = pool, np.ones(len(pool.query), bool)
        self._summed, self._behind = list[np.ndarray](), list[np.ndarray]()
        for run, rows in ((first, pool.first), (second, pool.second)):
            is_summed = run.rank <= DEPTH
            self._is_behind[rows[is_summed]] = False
            self._summed.append(_min_max_where(is_summed, run))
            self._behind.append(_min_max_where(~is_summed, run))

    def ranked(self, weight: float, depth: int) -> Run:
        """The ranking, cut at `depth`."""
        total = self._total(self._summed, weight)
        if self._is_behind.any():
            total = np.where(self._is_behind, self._total(self._behind, weight) - 2, total)
        return self._pool.ranked(total, depth)

    def _total(self, values: list[np.ndarray], weight: float) -> np.ndarray:
        return self._pool.sum((1 - weight) * values[0], weight * values[1])


def _min_max_where(kept: np.ndarray, run: Run) -> np.ndarray:
    """Min-max normalised scores of the hits that a mask [r] keeps, 0 for all others."""
    values = np.zeros(len(run.query))
    values[kept] = min_max(run.where(kept))
    return values


def convex(first: Run, second: Run, weight: float, depth: int) -> Run:
    """Returns the convex combination, cut at `depth`."""
    return _Convex(Pool.of(first, second), first, second).ranked(weight, depth)


def fuse(first: Run, second: Run, weight: float, depth: int) -> tuple[Run, Run]:
    """Returns two runs: the convex combination and reciprocal rank fusion, each cut at `depth`.

    Memory holds the runs and two blocks of queries.
    """

    def of_block(bounds: tuple[int, int]) -> tuple[Run, Run]:
        parts = [run.between(bounds[0], bounds[1] - 1) for run in (first, second)]
        pool = Pool.of(*parts)
        reciprocal = pool.sum(1 / (RRF_K + parts[0].rank), 1 / (RRF_K + parts[1].rank))
        return _Convex(pool, *parts).ranked(weight, depth), pool.ranked(reciprocal, depth)

    starts = np.union1d(first.query, second.query)[::QUERIES].tolist() or [0]
    blocks = list(pairwise([*starts, np.iinfo(np.int32).max]))
    if len(blocks) == 1:
        return of_block(blocks[0])
    with ThreadPoolExecutor(THREADS) as threads:  # most of the time is NumPy's, which lets other threads run
        weighted, reciprocal = zip(*threads.map(of_block, blocks), strict=True)
    return Run.concatenate(list(weighted)), Run.concatenate(list(reciprocal))


def values_by_weight(first: Run, second: Run, values: Callable[[Run], np.ndarray], depth: int) -> np.ndarray:
    """Returns the `values` [n] of the convex combination, cut at `depth`, with each weight in `GRID` [w, n]."""
    combination = _Convex(Pool.of(first, second), first, second)
    return np.stack([values(combination.ranked(weight, depth)) for weight in GRID])
