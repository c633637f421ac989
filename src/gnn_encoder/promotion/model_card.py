"""A registered model told in Markdown: what it reaches, what it is for, what it was made of."""

from typing import Any

from gnn_encoder.artifacts.history import History
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.report.templates import page_environment

TEMPLATE = "model_card.md.j2"


def model_card(
    metrics: dict[str, Any], history: History, *, headline: str, verdict: str, reason: str, where: str, digest: str
) -> str:
    """The card.

    Args:
        metrics: of the report.
        history: of the steps behind it.
        headline: the report's one sentence.
        verdict, reason: what `promote` decided.
        where: the bundle's folder.
        digest: of the bundle.
    """
    template = page_environment("promotion").overlay(autoescape=False).get_template(TEMPLATE)
    return template.render(
        metrics=metrics,
        history=history,
        headline=headline,
        verdict=verdict,
        reason=reason,
        where=where,
        digest=digest,
        split=metrics["headline_split"],
        mean_name=mean_name,
    )
