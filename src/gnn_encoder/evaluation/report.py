"""The report of an evaluation as one HTML page that needs no network and no other file."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from gnn_encoder.artifacts import Dataset, Manifest
from gnn_encoder.evaluation.examples import Example
from gnn_encoder.evaluation.measures import labelled_queries, mean_name
from gnn_encoder.evaluation.significance import SIGNIFICANT
from gnn_encoder.evaluation.table import is_best, is_significant
from gnn_encoder.explained_passages import LEGEND
from gnn_encoder.settings import StepSettings

TEMPLATE, ABLATION = "report.html.j2", "ablation.html.j2"


@dataclass(frozen=True)
class SplitProfile:
    """Counts of one split. `labelled`: queries with a positive label, `labels`: those labels."""

    split: str
    queries: int
    labelled: int
    labels: int


@dataclass(frozen=True)
class Plot:
    """A PNG and what it shows in words."""

    image: bytes
    caption: str

    @property
    def data_uri(self) -> str:
        """The image inside the page."""
        return "data:image/png;base64," + base64.b64encode(self.image).decode()


def data_profile(dataset: Dataset) -> list[SplitProfile]:
    """Counts of every split."""
    profiles = []
    for split in ("train", "dev", "test"):
        qrels = dataset.split_qrels(split)
        labelled, labels = len(labelled_queries(qrels)), len(qrels.positive().query)
        profiles.append(SplitProfile(split, len(dataset.query_rows(split)), labelled, labels))
    return profiles


def render_page(
    metrics: dict[str, Any],
    *,
    headline: str,
    passages: int,
    profile: list[SplitProfile],
    plots: list[Plot],
    won: list[Example],
    lost: list[Example],
    manifests: Mapping[str, Manifest],
    settings: Mapping[str, Any],
) -> str:
    """The page.

    Args:
        metrics: of the report.
        headline: its one sentence.
        passages: in the corpus.
        profile: of the data.
        plots: in order.
        won, lost: queries of the headline split.
        manifests: of the artifacts evaluated, by name: their steps, settings and digests.
        settings: of the evaluation itself.
    """
    template = page_environment().get_template(TEMPLATE)
    return template.render(
        metrics=metrics,
        headline=headline,
        passages=passages,
        profile=profile,
        plots=plots,
        examples={"won": won, "lost": lost},
        manifests=manifests,
        settings=settings,
        legend=LEGEND,
        mean_name=mean_name,
        significant=SIGNIFICANT,
        is_best=is_best,
        is_significant=is_significant,
    )


def render_ablation(metrics: dict[str, Any], *, headline: str, plots: list[Plot], settings: StepSettings) -> str:
    """The page of an ablation; `settings` are the full model's."""
    template = page_environment().get_template(ABLATION)
    return template.render(
        metrics=metrics,
        headline=headline,
        plots=plots,
        settings=settings.model_dump(),
        mean_name=mean_name,
        significant=SIGNIFICANT,
    )


def page_environment() -> Environment:
    """Where templates are found, and how they are read: everything escaped, nothing undefined."""
    environment = Environment(
        loader=PackageLoader("gnn_encoder", "evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["compact_json"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment
