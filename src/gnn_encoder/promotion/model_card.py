"""A registered model's card in Markdown: what it reaches, what it is for, what it was made of."""

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gnn_encoder.artifacts import Report
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.evaluation.measures import mean_name

TEMPLATE = "model_card.md.j2"


def model_card(report: Report, facts: Mapping[str, Any]) -> str:
    """The card of the bundle that a report evaluates; `facts` are those of the `Decision` about it."""
    environment = Environment(
        loader=PackageLoader("gnn_encoder", "promotion"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    history, headline = read_history(report.path), report.manifest.metrics["headline"]
    return environment.get_template(TEMPLATE).render(
        metrics=report.metrics,
        history=history,
        headline=headline,
        facts=facts,
        split=facts["split"],
        mean_name=mean_name,
    )
