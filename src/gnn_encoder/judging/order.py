"""The order in which people judge queries: those first whose labels would decide most between systems.

A query is judged in full: all pooled passages, so that its measures are known. Where all systems have the same hits in
the same order, no label makes a difference, and the query is left out of the order: its gain is 0. A system alone is
compared with one without hits.

The weight of another query is how uncertain its gain is: the standard deviation of a system's gain over the first one,
in the first measure, over draws of the labels, in which a passage is relevant with the probability (grade + ½) / 4 of
the model's grade, or ½ without one. As in active statistical inference (Zrnic and Candès, ICML 2024, arXiv 2403.03208:
chances in proportion to the expected error, mixed with equal ones, because a small weight that is wrong makes a large
count), the mean of it and of equal weights is taken. A wrong weight costs width and no correctness.

The order must be random, or the first queries would stand for the others: query i has a uniform number u_i, and the
order is by u_i / w_i (priority sampling: Duffield, Lund and Thorup, J. ACM 54(6), 2007). With the number τ of the first
query that is not judged, query i was drawn with the chance min(1, w_i τ); sums of values divided by these chances are
unbiased and their terms uncorrelated, for any number of judged queries that does not depend on their grades
(`prediction_powered.corrected_sample`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from gnn_encoder.judging.agreement import Labels, figures_of
from gnn_encoder.judging.pool import Pool

DRAWS = 32
"""Draws of a query's labels."""
TOGETHER = 256
"""Queries whose draws are in memory at a time."""
EQUAL = 0.5
"""Share of equal weights in the mixture."""


@dataclass(frozen=True)
class Place:
    """A query's place in the order, which is by `key` = u / `weight`."""

    query_id: str
    weight: float
    key: float


def order_of(pool: Pool, grades: Labels, measure: str, seed: int) -> list[Place]:
    """Returns the order of the queries whose labels can make a difference.

    Args:
        grades: of a model; empty without one.
        measure: name of the first measure.
        seed: of the draws, and of the order.
    """
    first, *rest = pool.hits.values()
    others = rest or [[[]] * len(first)]
    numbers = [n for n, hits in enumerate(first) if any(of_system[n] != hits for of_system in others)]
    spread = np.zeros(len(numbers))
    random, ids = np.random.default_rng(seed), list(pool.queries)
    for start in range(0, len(numbers), TOGETHER):
        block = numbers[start : start + TOGETHER]
        spread[start : start + len(block)] = _spread(pool, [(ids[n], n) for n in block], grades, measure, random)
    share = spread / spread.mean() if spread.any() else np.ones(len(numbers))
    places = [
        Place(ids[n], float(weight), _uniform(ids[n], seed) / float(weight))
        for n, weight in zip(numbers, (1 - EQUAL) * share + EQUAL, strict=True)
    ]
    return sorted(places, key=lambda place: (place.key, place.query_id))


def _spread(
    pool: Pool, queries: Sequence[tuple[str, int]], grades: Labels, measure: str, random: np.random.Generator
) -> np.ndarray:
    """Returns the standard deviation of the gains of queries (id, number) over draws of their labels, [n]."""
    labels: dict[tuple[str, str], int] = {}
    for query_id, _ in queries:
        chance = [(grades.get((query_id, p), 1.5) + 0.5) / 4 for p in pool.passages[query_id]]
        for draw, is_relevant in enumerate(random.random((DRAWS, len(chance))) < chance):
            drawn = zip(pool.passages[query_id], is_relevant.tolist(), strict=True)
            labels |= {(f"{query_id} {draw}", passage): 1 for passage, relevant in drawn if relevant}
    hits = {system: [of[n] for _, n in queries for _ in range(DRAWS)] for system, of in pool.hits.items()}
    names = [f"{query_id} {draw}" for query_id, _ in queries for draw in range(DRAWS)]
    differences = gains_of(figures_of(hits, names, labels, [measure])).values()
    gains = np.stack([of_system.reshape(-1, DRAWS) for of_system in differences])  # [systems, n, draws]
    return np.asarray(np.sqrt(gains.var(axis=2).sum(axis=0)))


def gains_of(figures: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns {system: its figures minus those of the first one}; of one system alone, its figures."""
    first, *rest = figures
    return {system: figures[system] - figures[first] for system in rest} or dict(figures)


def _uniform(query_id: str, seed: int) -> float:
    """Returns a number in (0, 1) that neither other queries nor anything but the seed changes."""
    digest = blake2b(query_id.encode(), digest_size=8, key=str(seed).encode()).digest()
    return (int.from_bytes(digest) + 0.5) / 2**64


def chances(order: Sequence[Place], drawn: int) -> np.ndarray:
    """Returns the chance [drawn] of each of the first queries of an order to be among them."""
    if drawn == len(order):
        return np.ones(drawn)
    return np.minimum(1, order[drawn].key * np.array([place.weight for place in order[:drawn]]))
