"""The parsimony rule: recommends the simplest system that is about as good as the best one, on dev queries.

A system may be recommended if all of this holds for its measure on the dev queries:

1. In no stratum (warm, cold) does it fall below the plain dual encoder by more than `margin`, unless chance explains
   the fall (p > `floor_significance`, two-sided, so half of it for a fall alone).
2. Its mean is at most `margin` below that of the best system that meets 1 and 4.
3. It is not significantly worse than that system, in the paired two-sided test of the run, not corrected. Two-sided,
   as every other p-value of a run; as the best is above by construction, 0.05 is 0.025 for the one direction possible.
4. If it re-ranks, it is significantly better than its first stage, in the same test. A question then costs a model's
   pass over as many pairs as hits are re-ranked: on `scifact`, 50 pairs by MiniLM take 40 times as long as its search.

The simplest such system is recommended. There is always one, because the plain dual encoder meets 1 and 4, and the
best system that does meets 2 and 3.

Condition 3 alone would leave the choice to the test's power. If a simpler system is truly worse by 0.03 MRR@10, with a
standard deviation of 0.28 of a query's difference, it takes that one in 92 % of samples of 20 dev queries and 81 % of
100; with condition 2 (margin 0.005) in 35 % and 19 %. The price: of two equally good systems, it takes the simpler one
in 53 % and 57 %.
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
    """A candidate."""

    system: str
    mean: float
    p_value: float
    """Against `Recommendation.best`, two-sided, not corrected; 1 for that system itself."""
    objections: tuple[str, ...]
    """Why the system is not recommended, clauses; empty: it may be."""


class Recommendation(NamedTuple):
    """The recommended system, the best one that falls in no stratum, and every candidate from the simplest on."""

    system: str
    best: str
    standings: tuple[Standing, ...]

    def standing(self, system: str) -> Standing:
        """Returns the standing of a candidate."""
        return next(standing for standing in self.standings if standing.system == system)

    @property
    def highest(self) -> Standing:
        """The candidate with the highest mean; `best`, unless that one falls in a stratum."""
        return max(self.standings, key=lambda standing: standing.mean)


def recommend(
    values: Mapping[str, np.ndarray],
    order: Sequence[str],
    baseline: str,
    strata: Mapping[str, np.ndarray],
    p_value: Callable[[np.ndarray], float],
    rule: Rule,
    first_stages: Mapping[str, str] = {},
    weights: np.ndarray | None = None,
) -> Recommendation:
    """Returns what the rule recommends.

    Args:
        values: system → values [n] of the dev queries, at least one query; among them the baseline's.
        order: the candidates, the simplest first, among them the baseline; those without values are left out.
        baseline: the plain dual encoder.
        strata: stratum → bool [n], its dev queries.
        p_value: two-sided p-value of per-query differences [n].
        first_stages: re-ranked system → the system whose hits it re-ranks, one of `values`.
        weights: of the queries [n], mean 1, by which `values` are multiplied already; None: none.
    """
    candidates = [system for system in order if system in values]
    losses = {
        system: tuple(falls(values[system] - values[baseline], baseline, strata, p_value, rule, weights))
        for system in candidates
    }
    for system, first in first_stages.items():
        gains = values[system] - values[first]
        if (p := p_value(gains)) > rule.significance or gains.mean() <= 0:
            losses[system] += (f"not significantly above {first}, whose hits it re-ranks (p {p:.2g})",)
    eligible = [system for system in candidates if not losses[system]]
    best = max(eligible, key=lambda system: values[system].mean())  # of equal ones the simplest
    standings = []
    for system in candidates:
        differences = values[system] - values[best]
        p = p_value(differences) if system != best else 1.0
        objections = list(losses[system])
        if -differences.mean() > rule.margin:
            objections.append(f"{-differences.mean():.3f} below {best}")
        elif differences.mean() < 0 and p <= rule.significance:
            objections.append(f"significantly below {best} (p {p:.2g})")
        standings.append(Standing(system, float(values[system].mean()), p, tuple(objections)))
    allowed = [standing.system for standing in standings if not standing.objections]
    return Recommendation(allowed[0], best, tuple(standings))


def falls(
    gains: np.ndarray,
    baseline: str,
    strata: Mapping[str, np.ndarray],
    p_value: Callable[[np.ndarray], float],
    rule: Rule,
    weights: np.ndarray | None = None,
) -> Iterator[str]:
    """Yields the strata in which the gains [n] over the baseline are a loss that chance does not explain.

    weights: as in `recommend`.
    """
    for name, inside in strata.items():
        of_stratum = gains[inside]
        if weights is not None and weights[inside].any():
            of_stratum = of_stratum / weights[inside].mean()
        if len(of_stratum) and -of_stratum.mean() > rule.margin:
            p = p_value(of_stratum)
            if p <= rule.floor_significance:
                yield f"{-of_stratum.mean():.3f} below {baseline} on {len(of_stratum):,} {name} queries (p {p:.2g})"


def sentence(recommendation: Recommendation, measure: str, queries: int, kind: str = "dev queries") -> str:
    """Returns the recommendation in one sentence with numbers; `measure`: the measure's name as people read it."""
    chosen, best, highest = (
        recommendation.standing(recommendation.system),
        recommendation.standing(recommendation.best),
        recommendation.highest,
    )
    words = f"Recommended: {chosen.system} ({measure} {chosen.mean:.3f} on {queries:,} {kind}"
    if chosen.system != best.system:
        words += f"), the simplest within reach of the best, {best.system} ({best.mean:.3f}, p {chosen.p_value:.2g})"
    elif highest.system == best.system:
        words += ")"
        if (count := len(recommendation.standings)) > 1:
            words += f", the best of {count} systems"
        simpler = recommendation.standings[: recommendation.standings.index(chosen)]
        if simpler:
            next_best = max(simpler, key=lambda standing: standing.mean)
            words += f"; of the simpler ones {next_best.system} has {next_best.mean:.3f} (p {next_best.p_value:.2g})"
    else:
        words += ")"
    if highest.system != best.system:
        words += f"; {highest.system} has {highest.mean:.3f}, but is {highest.objections[0]}"
    return words
