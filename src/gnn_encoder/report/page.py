"""Writes the report of an evaluation as one HTML page that needs no network and no other file."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gnn_encoder.artifacts import Manifest
from gnn_encoder.artifacts.history import History
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.results import of_split
from gnn_encoder.evaluation.significance import SIGNIFICANT, TESTS
from gnn_encoder.evaluation.similarity import PAPER_TRIPLES, beside_paper
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.explanation.passages import LEGEND
from gnn_encoder.report.examples import Example
from gnn_encoder.report.table import is_best, is_significant
from gnn_encoder.settings.measures import of_documents
from gnn_encoder.settings.values import StepSettings


@dataclass(frozen=True)
class Plot:
    """A PNG and its caption."""

    image: bytes
    caption: str

    @property
    def data_uri(self) -> str:
        """The image as a data URI."""
        return "data:image/png;base64," + base64.b64encode(self.image).decode()


def render_page(
    metrics: dict[str, Any],
    *,
    headline: str,
    plots: Mapping[str, Plot],
    won: list[Example],
    lost: list[Example],
    manifests: Mapping[str, Manifest],
    history: History,
) -> str:
    """Returns the page.

    Args:
        plots: plots by name; `data` and `training` have their own sections.
        won, lost: queries of the headline split.
        manifests: manifests of the evaluated artifacts, by name.
        history: records of the steps that wrote the artifacts.
    """
    generated = history.get("generate_queries")
    shown = (passage for example in (*won, *lost) for ranking in example.rankings.values() for passage in ranking)
    return fill(
        "report.html.j2",
        metrics=metrics,
        headline=headline,
        plots=plots,
        examples={"won": won, "lost": lost},
        manifests=manifests,
        history=history,
        similarity=beside_paper(generated.metrics) if generated else None,
        paper_triples=PAPER_TRIPLES,
        legend=LEGEND,
        explained_by_graph=any(passage.why for passage in shown),
        is_best=is_best,
        is_significant=is_significant,
        of_split=of_split,
    )


def render_ablation(metrics: dict[str, Any], *, headline: str, plots: list[Plot], settings: StepSettings) -> str:
    """Returns the page of an ablation; `settings` are the settings of the full model."""
    full = settings.model_dump()
    shared = {"is_best": is_best, "is_significant": is_significant, "of_split": of_split}
    return fill("ablation.html.j2", metrics=metrics, headline=headline, plots=plots, settings=full, **shared)


def render_study(metrics: dict[str, Any], *, headline: str, plots: Mapping[str, Plot]) -> str:
    """Returns the page of a study of re-rankers (`report.study`); a table without an entry in `metrics` is left out."""
    shared = {"is_best": is_best, "is_significant": is_significant, "of_split": of_split}
    return fill("study.html.j2", metrics=metrics, headline=headline, plots=plots, **shared)


def fill(template: str, **values: Any) -> str:
    """Fills a template of this package. All values are escaped, and a missing value is an error."""
    environment = Environment(
        loader=PackageLoader("gnn_encoder", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["compact_json"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["mean_name"] = mean_name
    return environment.get_template(template).render(
        mean_name=mean_name,
        meaning=MEANING,
        of_documents=of_documents,
        significant=SIGNIFICANT,
        tests=TESTS,
        **values,
    )
