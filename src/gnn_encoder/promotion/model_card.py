"""Writes what a bundle is in Markdown: its results, its purpose, its origin.

The text is the README in the bundle's folder and, with the gate's decision, the card of the registered version.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from gnn_encoder.artifacts import Bundle, Dataset, Evaluation, Graph
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.history import History, Record, of_encoding
from gnn_encoder.errors import without_password
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.significance import TESTS
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.flow.declared import declared, step_names
from gnn_encoder.promotion.gate import against_baseline
from gnn_encoder.settings.presets import NUMBERS
from gnn_encoder.settings.shared import MINILM
from gnn_encoder.settings.systems import DPR, LEXICAL, SYSTEMS

TEMPLATE = "model_card.md.j2"
BASES = {MINILM: ("sentence-transformers/all-MiniLM-L6-v2", "Apache-2.0")}
"""Packaged backbone → its name on the hub, and its licence."""
LONGEST = 120
"""Most characters of a setting's value that is shown."""


@dataclass(frozen=True)
class Described:
    """A bundle, and what its description is made from."""

    bundle: Bundle
    serving: Serving
    """How a search ranks by the bundle."""
    data: Dataset
    """The dataset with the bundle's passages."""
    history: History
    """The records of the steps that led to the bundle."""
    recommendation: Mapping[str, Any] | None = None
    """The facts of the `Recommended`; None: an update chose the system of the run before."""
    evaluation: Evaluation | None = None
    """The evaluation of the recommendation; None: there are no figures."""
    graph: Graph | None = None
    """The run's graph; None: the description does not say how many labels it reaches."""

    def model_card(self, decision: Mapping[str, Any]) -> str:
        """Returns the card of the registered bundle; `decision` are the facts of the `Decision` on it."""
        return self._card(decision=decision, readme=None)

    def readme(self, reranker: bool) -> str:
        """Returns the bundle's README: the card before any decision, and how to use the folder.

        `reranker`: whether the bundle has a re-ranker.
        """
        data, history = self.data, self.history
        trainings = ("train_dpr",) if self.bundle.system == DPR else ("train_dual_encoder", "train_dpr")
        training = next((history[title] for title in trainings if title in history), Record())
        named = "" if "encoder" in training.inputs else training.settings.get("backbone")
        backbone = str(named or of_encoding(history).settings.get("encoder", ""))
        hub = re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", backbone)
        base, licence = BASES.get(backbone, (backbone if hub else "", ""))
        labels = {split: data.judged(split).positive() for split in SPLITS}
        source = without_password(str(data.manifest.settings.get("dataset") or ""))
        usage = {
            "base": base,
            "licence": licence,
            "reranker": reranker,
            "source": source if "://" in source else Path(source).name,
            "splits": {split: (len(np.unique(qrels.query)), len(qrels.query)) for split, qrels in labels.items()},
            "data_digest": data.manifest.digest,
            "changed": {title: changed for title, record in history.items() if (changed := _changed(title, record))},
        }
        return self._card(decision=None, readme=usage)

    def _card(self, *, decision: Mapping[str, Any] | None, readme: Mapping[str, Any] | None) -> str:
        environment = Environment(
            loader=PackageLoader("gnn_encoder", "promotion"),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        ranked_by = SYSTEMS.get(self.bundle.system if self.serving.weight != 0 else LEXICAL)
        return environment.get_template(TEMPLATE).render(
            history=self.history,
            passages=len(self.data.passages),
            sentence=self.recommendation["sentence"] if self.recommendation else "",
            system=self.serving.system,
            purpose=ranked_by.purpose if ranked_by else "",
            weight=self.serving.weight,
            reranking=self.serving.reranking,
            fused=self.bundle.fusion_path is not None,
            mean_name=mean_name,
            meaning=MEANING,
            tests=TESTS,
            decision=decision,
            readme=readme,
            **self._figures(),
        )

    def _figures(self) -> dict[str, Any]:
        if not self.evaluation or not self.recommendation:
            return {"metrics": None}
        metrics = self.evaluation.metrics
        split = metrics["headline_split"]
        labelled = self.data.split_qrels(split).positive().passage
        return {
            "metrics": metrics,
            "headline": self.evaluation.manifest.metrics["headline"],
            "strata": against_baseline(metrics, self.recommendation["system"], split),
            "reached": (np.diff(self.graph.indptr)[labelled] > 0).mean() if self.graph and len(labelled) else None,
            "split": split,
        }


def _changed(title: str, record: Record) -> dict[str, str]:
    """Returns the settings of a step that are not the defaults, as JSON."""
    step = title.partition(": ")[0]
    fields = declared(step).settings.model_fields if step in step_names() else {}
    changed = {}
    for name, value in record.settings.items():
        if name in NUMBERS:
            continue
        text = json.dumps(value, default=str)
        if name not in fields or text != json.dumps(fields[name].get_default(call_default_factory=True), default=str):
            changed[name] = without_password(text) if len(text) <= LONGEST else "…"
    return changed
