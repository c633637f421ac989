"""Writes the card of a registered model in Markdown: its results, its purpose, its origin."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from gnn_encoder.artifacts import Bundle, Dataset, Evaluation, Graph
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.significance import TESTS
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.settings.systems import DUAL_ENCODER, GNN_ENCODER, QUERY_CLUSTERS, QUERY_MEMORY, QUERY_SUM

TEMPLATE = "model_card.md.j2"
VECTORS = {
    DUAL_ENCODER: "The vector of a passage comes from its own text alone.",
    QUERY_SUM: "The vector of a passage includes the sum of the training queries that are labelled with it.",
    QUERY_MEMORY: "A search also looks up the training queries nearest to the query, and lifts their passages.",
    QUERY_CLUSTERS: "A passage has a vector for each group of the training queries that are labelled with it.",
    GNN_ENCODER: "The vector of a passage includes the training queries that are its neighbours in a query–passage "
    "graph (GNN-encoder, Liu et al., 2022). The graph is used only once, when the corpus is encoded.",
}
"""System → what its vectors are, for people."""


def model_card(evaluation: Evaluation, data: Dataset, graph: Graph, bundle: Bundle, facts: Mapping[str, Any]) -> str:
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
        system=facts["recommendation"]["system"],
        vectors=VECTORS.get(bundle.system, "") if bundle.serving.weight != 0 else "",
        weight=bundle.serving.weight,
        split=facts["split"],
        mean_name=mean_name,
        meaning=MEANING,
        tests=TESTS,
    )
