"""The gate: `decide` says from measures and costs whether a new bundle replaces the champion, and why.

The new bundle must be better than the plain dual encoder of the same run, so that the graph is worth its cost. The new
bundle must also be better than the champion: by at least the smallest effect of interest, significantly, and without
exceeding a limit of another measure or cost.
"""

from dataclasses import dataclass

from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.settings.outcome import Promote

PROMOTE, KEEP = "promote", "keep"


@dataclass(frozen=True)
class Standing:
    """Measures and costs of a bundle."""

    means: dict[str, float]
    """Measure → mean over the queries."""
    query_ms: float
    """Median milliseconds of a query, for encoding and search."""
    index_bytes: float
    """Bytes of the index per passage, so that a larger corpus does not count against the model."""


@dataclass(frozen=True)
class ChampionComparison:
    """A challenger and the champion on the same queries, labels and machine."""

    version: str
    """The champion's version number."""
    queries: int
    gone: int
    """Number of the champion's passages that the dataset no longer has. As hits they are not relevant."""
    challenger: Standing
    champion: Standing
    p_values: dict[str, float]
    """Measure → uncorrected p-value of the paired test."""

    def difference(self, measure: str) -> float:
        """Returns the challenger's mean minus the champion's mean."""
        return self.challenger.means[measure] - self.champion.means[measure]


@dataclass(frozen=True)
class Verdict:
    """A decision, `PROMOTE` or `KEEP`, and the reason in one sentence."""

    decision: str
    reason: str


def decide(
    settings: Promote, split: str, value: float, baseline: float, against: ChampionComparison | str | None
) -> Verdict:
    """Returns `PROMOTE` for a challenger that meets all thresholds in the settings, else `KEEP`.

    Args:
        settings: the thresholds.
        split: the split of the means.
        value: the challenger's mean of `settings.measure`.
        baseline: the plain dual encoder's mean.
        against: the comparison with the champion; a text: why no comparison is possible; None: there is no champion.
    """
    gain = value - baseline
    facts = [f"{split} {mean_name(settings.measure)} {value:.4f}, {gain:+.4f} against the dual encoder"]
    objections = []
    if gain < settings.minimum_gain:
        objections.append(f"against the dual encoder at least {settings.minimum_gain:+.4f} is asked for")
    if against is None:
        facts.append("there was no champion")
    elif isinstance(against, str):
        objections.append(against)
    else:
        difference, p = against.difference(settings.measure), against.p_values[settings.measure]
        facts.append(f"{difference:+.4f} (p {p:.2g}) against version {against.version}, the champion")
        objections += _objections(settings, against)
    return Verdict(KEEP if objections else PROMOTE, "; ".join(facts + objections))


def _objections(settings: Promote, against: ChampionComparison) -> list[str]:
    """Returns the thresholds that the challenger misses against the champion, a clause each."""
    objections = []
    if against.difference(settings.measure) < settings.smallest_effect:
        objections.append(f"against the champion at least {settings.smallest_effect:+.4f} is asked for")
    if against.p_values[settings.measure] > settings.significance:
        objections.append(f"against the champion p of at most {settings.significance} is asked for")
    for measure, allowed in settings.floors.items():
        if (fall := -against.difference(measure)) > allowed:
            objections.append(f"{mean_name(measure)} falls by {fall:.4f}, where at most {allowed} is allowed")
    new, old = against.challenger, against.champion
    for words, ratio, largest in (
        ("a question takes {:.2f} times as long", new.query_ms / old.query_ms, settings.largest_latency_ratio),
        ("a passage takes {:.2f} times the index", new.index_bytes / old.index_bytes, settings.largest_index_ratio),
    ):
        if ratio > largest:
            objections.append(f"{words.format(ratio)}, where at most {largest} is allowed")
    return objections
