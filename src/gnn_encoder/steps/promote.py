"""Step 15: registers the bundle, and decides by a rule over the evaluation whether it becomes the champion.

The rule: promote if the GNN-encoder lies at least `minimum_gain` above the plain dual encoder, and
the present champion was not better on the same queries, labels and corpus. A champion measured on
other data cannot be compared and does not stand in the way.
"""

from pathlib import Path
from typing import Any

from gnn_encoder import tracking
from gnn_encoder.artifacts import Draft, Report, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.context import Context
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.model_card import model_card
from gnn_encoder.settings import Promote
from gnn_encoder.steps.step import Metrics, step

MEASURED_ON, MEASURE, VALUE = "evaluation.digest", "evaluation.measure", "evaluation.value"
"""Tags of a model version that say how good it is, and on what."""


@step(decision="decision")
def promote(context: Context, settings: Promote, report: Path, bundle: Path, decision: Draft) -> Metrics:
    """Decide, register the bundle as a model version, and move the alias `champion` on "promote" alone.

    Raises:
        UserError: a report of another bundle.
    """
    evaluated = Report.read(report)
    digest = read_manifest(bundle, "bundle").digest
    if evaluated.manifest.inputs.get("bundle") != digest:
        raise UserError(f"{report} does not evaluate {bundle}: run evaluate on this bundle first")
    metrics = evaluated.metrics
    split = metrics["headline_split"]
    figures = {system: values[settings.measure] for system, values in metrics["results"][split].items()}
    value, baseline = figures[metrics["candidate"]], figures[metrics["baseline"]]
    labels = {MEASURED_ON: metrics["digests"][split], MEASURE: settings.measure, VALUE: repr(value)}

    champion = tracking.champion(settings.model_name)
    verdict, reason = decide(
        value, baseline, settings.minimum_gain, None if champion is None else champion.tags, labels,
        f"{split} {settings.measure}",
    )  # fmt: skip
    card = model_card(
        metrics,
        read_history(report),
        headline=evaluated.manifest.metrics["headline"],
        verdict=verdict,
        reason=reason,
        where=str(bundle.resolve()),
        digest=digest,
    )
    version = tracking.register_bundle(
        settings.model_name,
        bundle.resolve(),
        digest=digest,
        tags={**labels, "decision": verdict, "reason": reason},
        metrics={f"{split}/{measure}": v for measure, v in metrics["results"][split][metrics["candidate"]].items()},
        card=card,
    )
    if version is None:
        reason += "; nothing registered, as no tracking store is configured"
    elif verdict == "promote":
        tracking.set_alias(settings.model_name, version)
    Decision.write(
        decision,
        {
            "decision": verdict,
            "reason": reason,
            "split": split,
            "measure": settings.measure,
            "value": value,
            "baseline": baseline,
            "minimum_gain": settings.minimum_gain,
            "model_name": settings.model_name,
            "version": version,
            "champion_before": None if champion is None else str(champion.version),
            "bundle_digest": digest,
        },
        card,
    )
    context.run.artifact(decision.path, "decision")
    return {"promoted": int(verdict == "promote"), "gain": value - baseline, "headline": f"{verdict}: {reason}"}


def decide(
    value: float,
    baseline: float,
    minimum_gain: float,
    champion: dict[str, Any] | None,
    labels: dict[str, str],
    figure: str,
) -> tuple[str, str]:
    """("promote" or "keep", the reason in a sentence).

    Args:
        value: the GNN-encoder's figure.
        baseline: the dual encoder's.
        minimum_gain: by which the one must lie above the other.
        champion: tags of the present champion's version, None if there is none.
        labels: the same tags of this bundle.
        figure: what the figures are, in words.
    """
    gain = value - baseline
    compared = f"{figure} {value:.4f}, {gain:+.4f} against the dual encoder"
    if gain < minimum_gain:
        return "keep", f"{compared}, where at least {minimum_gain:+.4f} is asked for"
    if champion is None:
        return "promote", f"{compared}; there was no champion"
    if any(champion.get(tag) != labels[tag] for tag in (MEASURED_ON, MEASURE)):
        return "promote", f"{compared}; the champion was measured on other data or by another measure"
    best = float(champion[VALUE])
    if best > value:
        return "keep", f"{compared}, but the champion has {best:.4f}"
    return "promote", f"{compared}; the champion had {best:.4f}"
