"""Explained hits as one HTML page that needs no network and no other file: the report's, with another body."""

from gnn_encoder.explanation.passages import LEGEND
from gnn_encoder.explanation.search import ExplainedHit
from gnn_encoder.report.templates import page_environment

TEMPLATE = "explanation.html.j2"


def render_explanation(question: str, bundle: str, hits: list[ExplainedHit]) -> str:
    """The page; `bundle`: where the hits are from, in words."""
    page = page_environment().get_template(TEMPLATE)
    return page.render(question=question, bundle=bundle, hits=hits, legend=LEGEND)
