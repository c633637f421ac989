"""The gate: `decide` says from measures and costs whether a new bundle replaces the champion, and why.

The new bundle has the system that the run recommends. It must not be worse than the baseline of the same run, the plain
dual encoder or the untouched hybrid, which it may be itself, and it must be better than the champion: by at least the
smallest effect of interest, significantly, and without exceeding a limit of a cost. A limit in milliseconds replaces
that on the ratio of times, and holds without a champion, too. Against neither may a measure fall below its floor by
more than chance explains, also in a stratum: a gain for passages with training queries must not be paid for by new
passages.
Without a champion, the floors of small strata do not count, and the reason names them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Self

import numpy as np

from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.significance import holm
from gnn_encoder.settings.measures import ALL, COLD, floor_parts
from gnn_encoder.settings.outcome import Promote

PROMOTE, KEEP = "promote", "keep"


@dataclass(frozen=True)
class Paired:
    """A challenger and another system on the same queries: all of a split, or those of a stratum."""

    queries: int
    challenger: dict[str, float]
    other: dict[str, float]
    """Measure → mean over the queries, of each of the two."""
    p_values: dict[str, float]
    """Measure → uncorrected p-value of the paired test."""
    better: dict[str, float]
    worse: dict[str, float]
    """Measure → share of the queries for which the challenger's value is better, or worse."""

    @classmethod
    def of_block(cls, block: Mapping[str, Any], split: str, challenger: str, other: str) -> Self:
        """Takes a comparison out of a `results.block` whose baseline is the other system, or both systems."""
        if challenger == other:
            means, none = block["results"][split][other], dict.fromkeys(block["measures"], 0.0)
            return cls(block["queries"][split], means, means, dict.fromkeys(none, 1.0), none, none)
        means, (p, better, worse) = block["results"][split], (block[k][split] for k in ("p_values", "better", "worse"))
        return cls(
            block["queries"][split],
            means[challenger],
            means[other],
            p[challenger],
            better[challenger],
            worse[challenger],
        )

    def difference(self, measure: str) -> float:
        """Returns the challenger's mean minus the other's mean."""
        return self.challenger[measure] - self.other[measure]


def against_baseline(metrics: Mapping[str, Any], system: str, split: str) -> dict[str, Paired]:
    """Returns {`ALL` and each stratum of the split: a system against the baseline of its evaluation}.

    Args:
        metrics: the metrics of an `Evaluation`.
    """
    blocks = {ALL: metrics} | {name: part for name, part in metrics["strata"].items() if split in part["queries"]}
    return {name: Paired.of_block(block, split, system, metrics["baseline"]) for name, block in blocks.items()}


@dataclass(frozen=True)
class Costs:
    """What a bundle costs."""

    query_ms: float
    """Median milliseconds of a query, for encoding, search and re-ranking."""
    index_bytes: float
    """Bytes of the index per passage, so that a larger corpus does not count against the model."""


@dataclass(frozen=True)
class ChampionComparison:
    """A challenger and the champion on the same queries, labels and machine."""

    version: str
    """The champion's version number."""
    gone: int
    """Number of the champion's passages that the dataset no longer has. As hits they are not relevant."""
    challenger: Costs
    champion: Costs
    strata: dict[str, Paired]
    """`ALL` and strata → the measures of both."""
    of_one_kind: bool = True
    """Both search vectors, or both words alone. If not, their costs are not compared: vectors always cost more."""


@dataclass(frozen=True)
class Verdict:
    """A decision, `PROMOTE` or `KEEP`, and the reason in one sentence."""

    decision: str
    reason: str


def decide(
    settings: Promote,
    split: str,
    plain: Mapping[str, Paired],
    against: ChampionComparison | str | None,
    baseline: str = "the dual encoder",
    alone: str = "there was no champion",
    query_ms: float | None = None,
) -> Verdict:
    """Returns `PROMOTE` for a challenger that meets all thresholds in the settings, else `KEEP`.

    Args:
        settings: the thresholds.
        split: the split of the means.
        plain: stratum → comparison with the baseline of the same run; `ALL` has all queries.
        against: the comparison with the champion; a text: why no comparison is possible; None: there is no champion.
        baseline: the baseline's name in a sentence.
        alone: why `against` is None, a clause.
        query_ms: median milliseconds of a query; None: not measured, or it is in the comparison.
    """
    measure, gain = settings.measure, plain[ALL].difference(settings.measure)
    value = plain[ALL].challenger[measure]
    facts = [f"{split} {mean_name(measure)} {value:.4f}, {gain:+.4f} against {baseline}{_cold(plain, measure)}"]
    objections = []
    if gain < settings.minimum_gain:
        objections.append(f"against {baseline} at least {settings.minimum_gain:+.4f} is asked for")
    counted = plain
    if against is None:
        counted = {name: part for name, part in plain.items() if not _is_small(settings, part, plain[ALL])}
        facts += [alone, *_not_counted(settings, plain, counted)]
    objections += _falls(settings, counted, baseline)
    if isinstance(against, str):
        objections.append(against)
    elif against:
        whole, cold = against.strata[ALL], _cold(against.strata, measure)
        difference, p = whole.difference(measure), whole.p_values[measure]
        facts.append(f"{difference:+.4f} (p {p:.2g}) against version {against.version}, the champion{cold}")
        objections += _objections(settings, against)
        query_ms = against.challenger.query_ms
    if settings.largest_latency_ms and query_ms and query_ms > settings.largest_latency_ms:
        objections.append(
            f"a question takes {query_ms:,.1f} ms as the bundle is served, where at most "
            f"{settings.largest_latency_ms:,g} ms are allowed"
        )
    return Verdict(KEEP if objections else PROMOTE, "; ".join(facts + objections))


def _cold(strata: Mapping[str, Paired], measure: str) -> str:
    """Returns the gain in the cold stratum, whether it is an objection or not; empty if all or no queries are cold."""
    cold = strata.get(COLD)
    if not cold or cold.queries == strata[ALL].queries:
        return ""
    p = cold.p_values[measure]
    return f" ({cold.difference(measure):+.4f} on the {cold.queries:,} cold queries, p {p:.2g})"


def _falls(settings: Promote, strata: Mapping[str, Paired], other: str) -> Iterator[str]:
    """Yields the measures that fall below their floors by more than chance explains, a clause each.

    The p-values are one-sided, those of strata corrected for their number (Holm). A floor of a stratum without a query,
    or of a measure that was not evaluated, cannot object.
    """
    floors = [(*floor_parts(floor), allowed) for floor, allowed in settings.floors.items()]
    floors = [(stratum, measure, allowed) for stratum, measure, allowed in floors if _has(strata, stratum, measure)]
    p_values = np.array([_of_fall(strata[stratum], measure) for stratum, measure, _ in floors])
    of_strata = np.array([stratum != ALL for stratum, _, _ in floors], bool)
    p_values[of_strata] = holm(p_values[of_strata])
    for (stratum, measure, allowed), p in zip(floors, p_values.tolist(), strict=True):
        paired = strata[stratum]
        fall = -paired.difference(measure)
        if fall > allowed and p <= settings.floor_significance:
            group = f" of the {paired.queries:,} {stratum.replace('_', ' ')} queries" if stratum != ALL else ""
            yield (
                f"{mean_name(measure)}{group} falls by {fall:.4f} (p {p:.2g}) against {other}, "
                f"where at most {allowed} is allowed"
            )


def _has(strata: Mapping[str, Paired], stratum: str, measure: str) -> bool:
    return stratum in strata and measure in strata[stratum].challenger


def _of_fall(paired: Paired, measure: str) -> float:
    """Returns the one-sided p-value of a fall, from the two-sided one of the symmetric test."""
    half = paired.p_values[measure] / 2
    return half if paired.difference(measure) < 0 else 1 - half


def _is_small(settings: Promote, stratum: Paired, whole: Paired) -> bool:
    """Whether the floors of a stratum do not count without a champion. All queries together are no stratum."""
    if stratum is whole:
        return False
    return stratum.queries < min(settings.smallest_stratum, settings.smallest_stratum_share * whole.queries)


def _not_counted(settings: Promote, plain: Mapping[str, Paired], counted: Mapping[str, Paired]) -> Iterator[str]:
    """Yields the floors that were not counted, a clause each: the measure, the stratum, the difference and why."""
    whole, share = plain[ALL].queries, f"{settings.smallest_stratum_share:.0%}"
    for stratum, measure in map(floor_parts, settings.floors):
        paired = plain.get(stratum)
        if paired and stratum not in counted and measure in paired.challenger:
            yield (
                f"the floor of {mean_name(measure)} of the {paired.queries:,} {stratum.replace('_', ' ')} queries "
                f"({paired.difference(measure):+.4f}, p {paired.p_values[measure]:.2g}) was not counted: without a "
                f"champion, a stratum needs {settings.smallest_stratum:,} queries or {share} of all {whole:,}"
            )


def _objections(settings: Promote, against: ChampionComparison) -> Iterator[str]:
    """Yields the thresholds that the challenger misses against the champion, a clause each."""
    whole = against.strata[ALL]
    if whole.difference(settings.measure) < settings.smallest_effect:
        yield f"against the champion at least {settings.smallest_effect:+.4f} is asked for"
    if whole.p_values[settings.measure] > settings.significance:
        yield f"against the champion p of at most {settings.significance} is asked for"
    yield from _falls(settings, against.strata, "the champion")
    if not against.of_one_kind:
        return
    new, old = against.challenger, against.champion
    times = f" ({new.query_ms:,.1f} ms, the champion {old.query_ms:,.1f} ms)"
    longer = inf if settings.largest_latency_ms else settings.largest_latency_ratio
    for words, ratio, largest in (
        (f"a question takes {{:.2f}} times as long{times}", new.query_ms / old.query_ms, longer),
        ("a passage takes {:.2f} times the index", new.index_bytes / old.index_bytes, settings.largest_index_ratio),
    ):
        if ratio > largest:
            yield f"{words.format(ratio)}, where at most {largest} is allowed"
