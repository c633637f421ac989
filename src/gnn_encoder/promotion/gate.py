"""The gate: may a new bundle take the champion's place? Numbers in, a verdict and its reason out.

It must be worth its graph (the gain over the plain dual encoder of the same run), and better than the champion by
the smallest effect worth having, significantly so, without falling below a floor anywhere else.
"""

from dataclasses import dataclass

from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.settings.outcome import Promote

PROMOTE, KEEP = "promote", "keep"


@dataclass(frozen=True)
class Standing:
    """A bundle's figures and costs."""

    means: dict[str, float]
    """Measure → mean over the queries."""
    query_ms: float
    """Median milliseconds of a question, for encoding and search."""
    index_bytes: float
    """Bytes of the index for each passage: a corpus that grew is no fault of the model."""


@dataclass(frozen=True)
class ChampionComparison:
    """A challenger and the champion on the same queries, labels and machine."""

    version: str
    """The champion's."""
    queries: int
    gone: int
    """Passages of the champion that the data set no longer has: hits among them count as not relevant."""
    challenger: Standing
    champion: Standing
    p_values: dict[str, float]
    """Measure → p of the paired randomization test, not corrected."""

    def difference(self, measure: str) -> float:
        """The challenger's mean less the champion's."""
        return self.challenger.means[measure] - self.champion.means[measure]


@dataclass(frozen=True)
class Verdict:
    """A decision, and its reason in a sentence."""

    decision: str
    """`promote` or `keep`."""
    reason: str


def decide(
    settings: Promote, split: str, value: float, baseline: float, against: ChampionComparison | str | None
) -> Verdict:
    """Apply the rule.

    Args:
        settings: its thresholds.
        split: the split of the figures.
        value: the challenger's figure by `settings.measure`.
        baseline: the plain dual encoder's.
        against: the comparison with the champion, or in words why it cannot be compared, or None without a champion.
    """
    gain = value - baseline
    found = [f"{split} {mean_name(settings.measure)} {value:.4f}, {gain:+.4f} against the dual encoder"]
    objections = []
    if gain < settings.minimum_gain:
        objections.append(f"against the dual encoder at least {settings.minimum_gain:+.4f} is asked for")
    if against is None:
        found.append("there was no champion")
    elif isinstance(against, str):
        objections.append(against)
    else:
        difference, p = against.difference(settings.measure), against.p_values[settings.measure]
        found.append(f"{difference:+.4f} (p {p:.2g}) against version {against.version}, the champion")
        objections += _objections(settings, against)
    return Verdict(KEEP if objections else PROMOTE, "; ".join(found + objections))


def _objections(settings: Promote, found: ChampionComparison) -> list[str]:
    """Everything that the comparison has against the challenger, a clause each."""
    objections = []
    if found.difference(settings.measure) < settings.smallest_effect:
        objections.append(f"against the champion at least {settings.smallest_effect:+.4f} is asked for")
    if found.p_values[settings.measure] > settings.significance:
        objections.append(f"against the champion p of at most {settings.significance} is asked for")
    for measure, fall in settings.floors.items():
        if found.difference(measure) < -fall:
            objections.append(
                f"{mean_name(measure)} falls by {-found.difference(measure):.4f}, where at most {fall} is allowed"
            )
    new, old = found.challenger, found.champion
    for words, ratio, largest in (
        ("a question takes {:.2f} times as long", new.query_ms / old.query_ms, settings.largest_latency_ratio),
        ("a passage takes {:.2f} times the index", new.index_bytes / old.index_bytes, settings.largest_index_ratio),
    ):
        if ratio > largest:
            objections.append(f"{words.format(ratio)}, where at most {largest} is allowed")
    return objections
