"""The parsimony rule: recommends the simplest system that is about as good as the best one, on dev queries.

A system may be recommended if all of this holds for its first measure on the dev queries:

1. Its mean is at most `margin` below the best system's mean.
2. It is not significantly worse than the best system, in the paired two-sided test of the run, not corrected.
3. In no stratum (warm, cold) does it fall below the plain dual encoder by more than `margin`, unless chance explains
   the fall (p > `floor_significance`, two-sided, so half of it for a fall alone).

The simplest such system is recommended. The best system itself meets 1 and 2. If 3 excludes every system, the plain
dual encoder is recommended.

Condition 2 alone would be the usual rule, but the test's power decides then, and few queries have none. If a simpler
system is truly worse by 0.03 MRR@10, with a standard deviation of 0.28 of a query's difference, condition 2 alone takes
it in 92 % of samples of 20 dev queries, 81 % of 100, 42 % of 400 and 0 % of 2,000; with condition 1 (margin 0.005) in
35 %, 19 %, 4 % and 0 %. The price: of two systems that are equally good, the simpler one is taken in 53 %, 57 %, 64 %
and 78 %, so a recommendation may be more complex than needed, but is seldom worse.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Rule:
    """The rule's thresholds."""

    margin: float = 0.005
    significance: float = 0.05
    floor_significance: float = 0.1


class Standing(NamedTuple):
    """A system beside the best one."""

    system: str
    mean: float
    p_value: float
    """Against the best system, two-sided, not corrected; 1 for the best system."""
    objections: tuple[str, ...]
    """Why the system is not recommended, clauses; empty: it may be."""


class Recommendation(NamedTuple):
    """The recommended system, the best one, and every candidate from the simplest on."""

    system: str
    best: str
    standings: tuple[Standing, ...]

    def standing(self, system: str) -> Standing:
        """Returns the standing of a candidate."""
        return next(each for each in self.standings if each.system == system)


def recommend(
    values: Mapping[str, np.ndarray],
    order: Sequence[str],
    baseline: str,
    strata: Mapping[str, np.ndarray],
    p_value: Callable[[np.ndarray], float],
    rule: Rule,
) -> Recommendation:
    """Returns what the rule recommends.

    Args:
        values: system → values [n] of the dev queries, at least one query; among them the baseline's.
        order: the candidates, the simplest first; those without values are left out.
        baseline: the plain dual encoder.
        strata: stratum → bool [n], its dev queries.
        p_value: two-sided p-value of per-query differences [n].
    """
    candidates = [system for system in order if system in values]
    best = max(candidates, key=lambda system: values[system].mean())  # of equal ones the simplest
    standings = []
    for system in candidates:
        differences = values[system] - values[best]
        p = p_value(differences) if system != best else 1.0
        objections = []
        if -differences.mean() > rule.margin:
            objections.append(f"{-differences.mean():.3f} below {best}")
        elif differences.mean() < 0 and p <= rule.significance:
            objections.append(f"significantly below {best} (p {p:.2g})")
        objections += _falls(values[system] - values[baseline], baseline, strata, p_value, rule)
        standings.append(Standing(system, float(values[system].mean()), p, tuple(objections)))
    allowed = [each.system for each in standings if not each.objections]
    return Recommendation(allowed[0] if allowed else baseline, best, tuple(standings))


def _falls(
    gains: np.ndarray,
    baseline: str,
    strata: Mapping[str, np.ndarray],
    p_value: Callable[[np.ndarray], float],
    rule: Rule,
) -> Iterator[str]:
    """Yields the strata in which the gains [n] over the baseline are a loss that chance does not explain."""
    for name, inside in strata.items():
        of_stratum = gains[inside]
        if len(of_stratum) and -of_stratum.mean() > rule.margin:
            p = p_value(of_stratum)
            if p <= rule.floor_significance:
                yield f"{-of_stratum.mean():.3f} below {baseline} on {len(of_stratum):,} {name} queries (p {p:.2g})"


def sentence(found: Recommendation, measure: str, queries: int) -> str:
    """Returns the recommendation in one sentence with numbers; `measure`: the measure's name as people read it."""
    chosen, best = found.standing(found.system), found.standing(found.best)
    start = f"Recommended: {chosen.system} ({measure} {chosen.mean:.3f} on {queries:,} dev queries)"
    if chosen.system == best.system:
        return f"{start}, the best of {len(found.standings)} systems"
    if best.objections:
        return f"{start}; {best.system} has {best.mean:.3f}, but is {best.objections[0]}"
    return f"{start}, the simplest within reach of the best, {best.system} ({best.mean:.3f}, p {chosen.p_value:.2g})"
