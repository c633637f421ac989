"""Writes the card of a registered model in Markdown: its results, its purpose, its origin."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from gnn_encoder.artifacts import Dataset, Evaluation, Graph
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.significance import TESTS
from gnn_encoder.evaluation.strata import MEANING

TEMPLATE = "model_card.md.j2"


def model_card(evaluation: Evaluation, data: Dataset, graph: Graph, facts: Mapping[str, Any]) -> str:
    """Returns the card of an evaluated bundle; `facts` are the facts of the `Decision` on the bundle."""
    environment = Environment(
        loader=PackageLoader("gnn_encoder", "promotion"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    labelled = data.split_qrels(facts["split"]).positive().passage
    return environment.get_template(TEMPLATE).render(
        metrics=evaluation.metrics,
        history=read_history(evaluation.path),
        headline=evaluation.manifest.metrics["headline"],
        passages=len(data.passages),
        reached=(np.diff(graph.indptr)[labelled] > 0).mean(),
        facts=facts,
        split=facts["split"],
        mean_name=mean_name,
        meaning=MEANING,
        tests=TESTS,
    )
