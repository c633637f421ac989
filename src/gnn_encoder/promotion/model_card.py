"""A registered model's card in Markdown: what it reaches, what it is for, what it was made of."""

from collections.abc import Mapping
from typing import Any

from gnn_encoder.artifacts import Report
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.report.templates import page_environment

TEMPLATE = "model_card.md.j2"


def model_card(report: Report, facts: Mapping[str, Any]) -> str:
    """The card of the bundle that a report evaluates; `facts` are those of the `Decision` about it."""
    template = page_environment("promotion").overlay(autoescape=False).get_template(TEMPLATE)
    history, headline = read_history(report.path), report.manifest.metrics["headline"]
    return template.render(
        metrics=report.metrics,
        history=history,
        headline=headline,
        facts=facts,
        split=facts["split"],
        mean_name=mean_name,
    )
