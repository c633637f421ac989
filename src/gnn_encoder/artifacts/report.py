"""The artifacts at the pipeline's end: evaluation, latency, report, a variant's figures, and the promotion decision.

evaluation metrics.json       figures, intervals, p-values, query counts and digests of every split
           per_query.parquet  split, query_id, query (row number), system, warm (`evaluation.strata`), and a column for
                              each measure
           answers.parquet    the same columns but warm for the queries that have answers, if there are any
           hits.parquet       each system's first passages, for the split that a report shows first
           first_hits.parquet each system's first hit for each dev query (`artifacts.calibration`)
           runs/*.trec.gz     each system's first hits; SPLIT.qrels.gz in the same folder
latency    metrics.json       milliseconds per query of each system
report     all files of the evaluation but those of hits; metrics.json also has latency and a profile of the data
           plots/*.vl.json    the charts as Vega-Lite specifications
           systems.svg        the chart of all systems as a picture (not of an ablation or a study)
           report.html        everything on one page that needs no network
           queries/*.js       any query's hits, which the page reads from beside it
           settings.yaml      the run's settings that differ from the defaults, a preset that repeats the run
figures    per_query.parquet  of one variant: split, query (row number), warm, and a column for each measure
graph_choice  choice.json: the tried variants with their dev figures, and the changed settings of the chosen one
recommendation  recommendation.json: the recommended system, what it is compared with, and why
decision   decision.json      the decision, its reason, the figures behind it, the registered version
           model_card.md      the same facts and more, for people
"""

import json
import re
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnn_encoder.artifacts.calibration import FIRST_HITS, FirstHits
from gnn_encoder.artifacts.folder import Artifact, Draft
from gnn_encoder.errors import UserError

METRICS, PER_QUERY, ANSWERS = "metrics.json", "per_query.parquet", "answers.parquet"
HITS, PLOTS, RUNS, BROWSED = "hits.parquet", "plots", "runs", "queries"
PAGE, PICTURE, SETTINGS = "report.html", "systems.svg", "settings.yaml"
DECISION, CARD = "decision.json", "model_card.md"
RECOMMENDATION = "recommendation.json"
CHOICE = "choice.json"


class _Results(Artifact):
    """An artifact with a `metrics.json`, a `per_query.parquet`, or both."""

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of `metrics.json`."""
        return _read_json(self.path / METRICS)

    @cached_property
    def per_query(self) -> pa.Table:
        """Every measure of every query."""
        return pq.read_table(self.path / PER_QUERY)

    def figures(self, split: str, system: str, measure: str) -> np.ndarray:
        """Values of one measure of a system, float64 [n], by ascending query row."""
        chosen = (pc.field("split") == split) & (pc.field("system") == system)
        return np.asarray(pq.read_table(self.path / PER_QUERY, filters=chosen).column(measure).to_numpy())


class Evaluation(_Results):
    """A complete evaluation artifact."""

    schema = "evaluation"

    @staticmethod
    def write(
        draft: Draft,
        *,
        metrics: dict[str, Any],
        per_query: pa.Table,
        answers: pa.Table | None,
        first_hits: dict[str, np.ndarray],
        dev_first: Mapping[str, FirstHits] = {},
    ) -> None:
        """Fill an evaluation draft; `first_hits` are passage rows int32 [n, s] of each system."""
        _write_json(draft / METRICS, metrics)
        pq.write_table(per_query, draft / PER_QUERY)
        if answers is not None:
            pq.write_table(answers, draft / ANSWERS)
        columns = {
            system: pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel(), pa.int32()), rows.shape[1])
            for system, rows in first_hits.items()
        }
        pq.write_table(pa.table(columns), draft / HITS)
        FirstHits.write(draft.path, dev_first)
        draft.rows(per_query=len(per_query))

    @staticmethod
    def trec_file(draft: Draft, name: str, kind: str) -> Path:
        """Path of a TREC file in a draft: `BM25 + Dual encoder` and `trec` give runs/bm25-dual-encoder.trec.gz."""
        (draft / RUNS).mkdir(exist_ok=True)
        return draft / RUNS / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.{kind}.gz"

    def figures_of(self, split: str, measure: str) -> dict[str, np.ndarray]:
        """Values of one measure of each system, float64 [n] by ascending query row, with one reading of the table."""
        table = pq.read_table(self.path / PER_QUERY, columns=["system", measure], filters=pc.field("split") == split)
        systems = list(dict.fromkeys(table.column("system").to_pylist()))
        return dict(zip(systems, table.column(measure).to_numpy().reshape(len(systems), -1), strict=True))

    def first_hits(self, system: str) -> np.ndarray:
        """A system's first passages int32 [n, s] for the split that a report shows first; -1: fewer passages."""
        column = pq.read_table(self.path / HITS, columns=[system]).column(0).combine_chunks()
        return np.asarray(column.flatten().to_numpy().reshape(len(column), -1))

    def dev_first(self, system: str) -> FirstHits:
        """A system's first hits for the labelled dev queries; without rows if there are none."""
        return FirstHits.read(self.path / FIRST_HITS, system)

    def copy_to(self, draft: Draft) -> None:
        """Copy into a report draft the files that both artifacts have."""
        for name in (PER_QUERY, ANSWERS):
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, draft / name)
        if (self.path / RUNS).is_dir():
            shutil.copytree(self.path / RUNS, draft / RUNS)


class Report(_Results):
    """A complete report artifact."""

    schema = "report"

    @staticmethod
    def write(
        draft: Draft,
        *,
        metrics: dict[str, Any],
        plots: dict[str, dict[str, Any]],
        page: str,
        picture: str = "",
        per_query: pa.Table | None = None,
        changed: str | None = None,
    ) -> None:
        """Fill a report draft; `plots` are specifications by name, `per_query` is None if the draft has the table.

        changed: content of `settings.yaml`; None: there is no such file.
        """
        _write_json(draft / METRICS, metrics)
        if per_query is not None:
            pq.write_table(per_query, draft / PER_QUERY)
        (draft / PLOTS).mkdir()
        for name, spec in plots.items():
            file = f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.vl.json"
            (draft / PLOTS / file).write_text(json.dumps(spec), encoding="utf-8")
        (draft / PAGE).write_text(page, encoding="utf-8")
        if picture:
            (draft / PICTURE).write_text(picture, encoding="utf-8")
        if changed is not None:
            (draft / SETTINGS).write_text(changed, encoding="utf-8")
        draft.rows(plots=len(plots))

    @staticmethod
    def queries_folder(draft: Draft) -> Path:
        """Makes the folder of the files with queries and hits in a draft."""
        (draft / BROWSED).mkdir()
        return draft / BROWSED

    @property
    def page(self) -> Path:
        """The HTML page."""
        return self.path / PAGE

    @property
    def picture(self) -> Path:
        """The picture of all systems, which may be missing."""
        return self.path / PICTURE


class Figures(_Results):
    """The figures of one variant per query; the manifest has the variant's settings."""

    schema = "figures"

    @staticmethod
    def write(draft: Draft, per_query: pa.Table) -> None:
        """Fill a figures draft."""
        pq.write_table(per_query, draft / PER_QUERY)
        draft.rows(per_query=len(per_query))


class _Facts(Artifact):
    """An artifact with one JSON object."""

    file: ClassVar[str]

    @classmethod
    def write(cls, draft: Draft, facts: dict[str, Any]) -> None:
        """Fill a draft."""
        _write_json(draft / cls.file, facts)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The content of the file."""
        return _read_json(self.path / self.file)


class Recommended(_Facts):
    """A complete recommendation artifact."""

    schema, file = "recommendation", RECOMMENDATION


class GraphChoice(_Facts):
    """A complete artifact of a chosen graph; without a tried variant its facts are empty."""

    schema, file = "graph_choice", CHOICE


class Latency(_Facts):
    """Milliseconds per query: `facts["systems"]` has `encode_ms` and `search_ms` of each system, by name."""

    schema, file = "latency", METRICS


class Decision(_Facts):
    """A complete decision artifact."""

    schema, file = "decision", DECISION

    @classmethod
    def write(cls, draft: Draft, facts: dict[str, Any], card: str = "") -> None:
        """Fill a draft; `card`: the model card."""
        super().write(draft, facts)
        (draft / CARD).write_text(card, encoding="utf-8")

    @staticmethod
    def logged_facts(folder: Path) -> dict[str, Any]:
        """The facts of a copy in MLflow. The step logs the draft before the manifest is written."""
        return _read_json(folder / DECISION)

    @property
    def card(self) -> str:
        """The text of `model_card.md`."""
        return (self.path / CARD).read_text(encoding="utf-8")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
    except ValueError as error:
        raise UserError(f"{path} is corrupt ({error}); delete {path.parent} and run again") from None
    return value
