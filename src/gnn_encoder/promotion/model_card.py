"""Writes what a bundle is in Markdown: its results, its purpose, its origin.

The text is the README in the bundle's folder and, with the gate's decision, the card of the registered version.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from gnn_encoder.artifacts import Bundle, Dataset, Evaluation, Graph
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.history import History, Record, read_history
from gnn_encoder.errors import without_password
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.significance import TESTS
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.promotion.gate import against_baseline
from gnn_encoder.settings.pipeline import STEP_SETTINGS
from gnn_encoder.settings.shared import MINILM
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


BASES = {MINILM: ("sentence-transformers/all-MiniLM-L6-v2", "Apache-2.0")}
"""Packaged backbone → its name on the hub, and its licence."""
LONGEST = 120
"""Most characters of a setting's value that is shown."""


def model_card(
    bundle: Bundle,
    data: Dataset,
    recommendation: Mapping[str, Any],
    evaluation: Evaluation,
    graph: Graph,
    decision: Mapping[str, Any],
) -> str:
    """Returns the card of a registered bundle; `decision` are the facts of the `Decision` on it."""
    history = read_history(evaluation.path)
    return _card(bundle, bundle.serving, data, history, recommendation, evaluation, graph, decision)


def readme(
    bundle: Bundle,
    serving: Serving,
    data: Dataset,
    history: History,
    recommendation: Mapping[str, Any] | None,
    evaluation: Evaluation | None,
    graph: Graph | None,
    reranker: bool = False,
) -> str:
    """Returns the README of a bundle: the card before any decision, and how to use the folder.

    Args:
        bundle: the bundle of the system.
        serving: how a search ranks by it.
        data: the dataset with the bundle's passages.
        history: the records of the steps that led to the bundle.
        recommendation: the facts of the `Recommended`; None: an update chose the system of the run before.
        evaluation: the evaluation of the recommendation; None: there are no figures.
        reranker: whether the bundle has a re-ranker.
    """
    training = history.get("train_dual_encoder") or history.get("train_dpr") or Record()
    backbone = str(training.settings.get("backbone", ""))
    hub = re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", backbone)
    base, licence = BASES.get(backbone, (backbone if hub else "", ""))
    labels = {split: data.split_qrels(split).positive() for split in SPLITS}
    source = without_password(str(data.manifest.settings.get("dataset") or ""))
    more = {
        "base": base,
        "licence": licence,
        "reranker": reranker,
        "source": source if "://" in source else Path(source).name,
        "splits": {split: (len(np.unique(of.query)), len(of.query)) for split, of in labels.items()},
        "data_digest": data.manifest.digest,
        "changed": {title: found for title, record in history.items() if (found := _changed(title, record))},
    }
    return _card(bundle, serving, data, history, recommendation, evaluation, graph, None, more)


def _card(
    bundle: Bundle,
    serving: Serving,
    data: Dataset,
    history: History,
    recommendation: Mapping[str, Any] | None,
    evaluation: Evaluation | None,
    graph: Graph | None,
    decision: Mapping[str, Any] | None,
    more: Mapping[str, Any] | None = None,
) -> str:
    environment = Environment(
        loader=PackageLoader("gnn_encoder", "promotion"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures: dict[str, Any] = {"metrics": None}
    if evaluation and recommendation:
        split = evaluation.metrics["headline_split"]
        labelled = data.split_qrels(split).positive().passage
        figures = {
            "metrics": evaluation.metrics,
            "headline": evaluation.manifest.metrics["headline"],
            "strata": against_baseline(evaluation.metrics, recommendation["system"], split),
            "reached": (np.diff(graph.indptr)[labelled] > 0).mean() if graph else None,
            "split": split,
        }
    return environment.get_template(TEMPLATE).render(
        history=history,
        passages=len(data.passages),
        sentence=recommendation["sentence"] if recommendation else "",
        decision=decision,
        system=serving.system,
        vectors=VECTORS.get(bundle.system, "") if serving.weight != 0 else "",
        weight=serving.weight,
        mean_name=mean_name,
        meaning=MEANING,
        tests=TESTS,
        readme=more,
        **figures,
    )


def _changed(title: str, record: Record) -> dict[str, str]:
    """Returns the settings of a step that are not the defaults, as JSON."""
    step = STEP_SETTINGS.get(title.partition(": ")[0])
    fields = step.model_fields if step else {}
    changed = {}
    for name, value in record.settings.items():
        text = json.dumps(value, default=str)
        if name not in fields or text != json.dumps(fields[name].get_default(call_default_factory=True), default=str):
            changed[name] = without_password(text) if len(text) <= LONGEST else "…"
    return changed
