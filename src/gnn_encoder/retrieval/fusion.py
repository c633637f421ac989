"""Fusing two rankings: BM25 finds passages with the question's words, a dense retriever passages with its meaning.

The convex combination adds scores, min-max normalised per query and system (Bruch, Gai and Ingber, 2023): (1 - w) of
the first system, w of the second. Reciprocal rank fusion adds 1 / (60 + rank) (Cormack, Clarke and Büttcher, 2009) and
has nothing to tune. A passage that a system did not find gets 0 from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gnn_encoder.artifacts import Run, pair_keys

RRF_K = 60
GRID = tuple(round(0.05 * step, 2) for step in range(21))
"""The weights to choose from."""
UNTUNED = 0.5
"""The weight without dev queries."""
QUERIES = 512
"""Queries fused at a time."""


@dataclass(frozen=True)
class Pool:
    """The distinct hits of two rankings, sorted by query and passage.

    query, passage  int32 [u]; the i-th query has `sizes[i]` rows from `starts[i]` on
    first, second   int64 [r], the row of each hit of either ranking
    """

    query: np.ndarray
    passage: np.ndarray
    first: np.ndarray
    second: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, first: Run, second: Run) -> "Pool":
        """Union of two rankings."""
        keys = np.concatenate([pair_keys(run.query, run.passage) for run in (first, second)])
        order = np.argsort(keys)  # as np.unique does, in half its time
        new = np.diff(keys[order], prepend=-1) != 0
        rows = np.empty_like(order)
        rows[order] = np.cumsum(new) - 1
        distinct = keys[order[new]]
        query, passage = (distinct >> 32).astype(np.int32), (distinct & 0xFFFFFFFF).astype(np.int32)
        hits = len(first.query)
        return cls(query, passage, rows[:hits], rows[hits:], *_groups(query))

    def ranked(self, first: np.ndarray, second: np.ndarray, depth: int) -> Run:
        """The best `depth` of each query by the sum of both rankings' values [r] ≥ 0, ties by ascending passage row."""
        total = np.zeros(len(self.query))
        total[self.first] += first
        total[self.second] += second
        score = total.astype(np.float32)  # as a `Run` stores it, so that scores equal there are ties here
        row = np.repeat(np.arange(len(self.starts)), self.sizes)
        widest = int(self.sizes.max(initial=0))
        if widest > depth:  # sort only the hits that can be among the best `depth`
            table = np.full((len(self.starts), widest), -np.inf, dtype=np.float32)
            table[row, np.arange(len(row)) - self.starts[row]] = score
            least = np.partition(table, widest - depth, axis=1)[:, widest - depth]
            kept = np.flatnonzero(score >= least[row])
        else:
            kept = np.arange(len(score))
        # One integer for query and score: the bits of non-negative floats are ordered as the floats are.
        falling = row[kept] << 32 | (0x7FFFFFFF - score[kept].view(np.int32))
        order = kept[np.argsort(falling, kind="stable")]
        rank = np.arange(1, len(order) + 1) - np.repeat(*_groups(self.query[order]))
        order, rank = order[rank <= depth], rank[rank <= depth].astype(np.int32)
        return Run(self.query[order], self.passage[order], rank, score[order])


def _groups(query: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each query's rows start, and how many there are; `query` [r] is sorted."""
    starts = np.flatnonzero(np.diff(query, prepend=-1))
    return starts, np.diff(np.append(starts, len(query)))


def min_max(run: Run) -> np.ndarray:
    """Each hit's score between its query's lowest, 0, and highest, 1; float64 [r]. 1 where both are equal."""
    starts, sizes = _groups(run.query)
    score = run.score.astype(np.float64)
    low = np.repeat(np.minimum.reduceat(score, starts), sizes)
    span = np.repeat(np.maximum.reduceat(score, starts), sizes) - low
    values: np.ndarray = np.where(span > 0, (score - low) / np.where(span > 0, span, 1.0), 1.0)
    return values


def fuse(first: Run, second: Run, weight: float, depth: int) -> tuple[Run, Run]:
    """The first `depth` hits of each query by (1 - weight) · first + weight · second, and by reciprocal ranks.

    Besides the runs, a block of queries is in memory at a time.
    """
    convex, reciprocal = [], []
    starts = np.union1d(first.query, second.query)[::QUERIES].tolist() or [0]
    for start, stop in pairwise([*starts, np.iinfo(np.int32).max]):
        parts = [run.between(start, stop - 1) for run in (first, second)]
        pool = Pool.of(*parts)
        convex.append(pool.ranked((1 - weight) * min_max(parts[0]), weight * min_max(parts[1]), depth))
        reciprocal.append(pool.ranked(1 / (RRF_K + parts[0].rank), 1 / (RRF_K + parts[1].rank), depth))
    return Run.concatenate(convex), Run.concatenate(reciprocal)


def tuned_weight(
    first: Run, second: Run, figure: Callable[[Run], float], depth: int
) -> tuple[float, dict[float, float]]:
    """The weight of `GRID` whose convex combination, cut at `depth`, has the highest figure, and all figures.

    Of equal ones the weight nearest to a half, so that chance does not favour a system.
    """
    pool, of_first, of_second = Pool.of(first, second), min_max(first), min_max(second)
    figures = {weight: figure(pool.ranked((1 - weight) * of_first, weight * of_second, depth)) for weight in GRID}
    best = max(figures, key=lambda weight: (round(figures[weight], 12), -abs(weight - UNTUNED)))
    return best, figures
