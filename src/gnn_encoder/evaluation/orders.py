"""Compares the orders that two sets of queries give the same systems, such as generated and people's queries.

Pairs of systems that differ in a set are found by paired t-tests: for Holm's correction, a randomization would need a
hundred times as many draws as there are pairs, and for a hundred queries or more both tests agree (`significance`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.significance import SIGNIFICANT, holm, paired_t


@dataclass(frozen=True)
class Orders:
    """The orders of s systems by two sets of queries.

    systems    name → its mean in each set, best in the second set first
    alike      name → systems that are left out, since they have its value of every query in both sets
    tau        Kendall's τ-b of the means; None: all are equal in one set
    distinct   pairs of systems that differ in the second set (p < 0.05, Holm-corrected for all pairs)
    same       those of them that the first set orders alike; an equal mean is neither alike nor reversed
    reversed   those that it orders the other way
    proved, proved_same  pairs that differ in both sets, and how many of them both order alike
    lost       mean in the second set of the best system there, less that of the best one of the first set
    """

    systems: dict[str, tuple[float, float]]
    alike: dict[str, list[str]]
    tau: float | None
    distinct: int
    same: int
    reversed: int
    proved: int
    proved_same: int
    lost: float

    @property
    def tau_distinct(self) -> float | None:
        """τ of the pairs that are no noise, (same − reversed) / distinct; None: there are none."""
        return (self.same - self.reversed) / self.distinct if self.distinct else None


def orders(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> Orders:
    """Returns how two sets of queries order the systems that both have.

    Args:
        first, second: system → a measure's value for each query of a set; both sets have queries of their own.

    Raises:
        UserError: the sets have fewer than two systems in common.
    """
    same: dict[bytes, list[str]] = {}
    for name in first:
        if name in second:
            same.setdefault(np.round(np.concatenate([first[name], second[name]]), 9).tobytes(), []).append(name)
    names = [name for name, *_ in same.values()]
    if len(names) < 2:
        raise UserError(
            f"{len(names)} of the systems {', '.join({**first, **second})} are in both and differ: an order needs two"
        )
    means = {name: (float(first[name].mean()), float(second[name].mean())) for name in names}
    pairs = list(combinations(names, 2))
    signs, differs = [], []
    for values in (first, second):
        differences = np.stack([values[one] - values[other] for one, other in pairs], axis=1)
        signs.append(np.sign(np.round(differences.mean(axis=0), 12)))
        differs.append(holm(paired_t(differences)) < SIGNIFICANT)
    alike, both_differ = signs[0] * signs[1], differs[0] & differs[1]
    best = max(names, key=lambda name: means[name][0])
    ranked = sorted(names, key=lambda name: -means[name][1])
    return Orders(
        systems={name: means[name] for name in ranked},
        alike={name: others for name, *others in same.values() if others},
        tau=kendall_tau(list(means.values())),
        distinct=int(differs[1].sum()),
        same=int((alike[differs[1]] > 0).sum()),
        reversed=int((alike[differs[1]] < 0).sum()),
        proved=int(both_differ.sum()),
        proved_same=int((alike[both_differ] > 0).sum()),
        lost=means[ranked[0]][1] - means[best][1],
    )


def kendall_tau(means: Sequence[tuple[float, float]]) -> float | None:
    """Returns Kendall's τ-b of two values of each system [s, 2]; None: fewer than two, or all are equal in one set."""
    from scipy.stats import kendalltau

    if len(means) < 2:
        return None
    value = float(kendalltau(*np.round(np.transpose(means), 12)).statistic)
    return value if np.isfinite(value) else None
