"""The artifacts at the pipeline's end: the report of an evaluation, and what was decided on it.

evaluation metrics.json       figures, intervals, p-values, query counts and digests of every split
           per_query.parquet  split, query_id, query (row number), system, and a column for each measure
           answers.parquet    the same of the queries that have answers, where there are any
           hits.parquet       each system's first passages of the split that a report is headed by
           runs/*.trec.gz     each system's first hits, and beside them SPLIT.qrels.gz
latency    metrics.json       what a question costs each system, in milliseconds
report     the files of the evaluation but hits.parquet, with latency and a profile of the data in metrics.json, and
           plots/*.png
           report.html        all of it on one page that needs nothing else
figures    per_query.parquet  split, query (row number), and a column for each measure: of one variant
decision   decision.json      the decision, its reason, the figures it rests on, the registered version
           model_card.md      the same and more, for people
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnn_encoder.artifacts.folder import Draft, Manifest, read_manifest
from gnn_encoder.errors import UserError

METRICS, PER_QUERY, ANSWERS, HITS, PLOTS, RUNS, PAGE, DECISION, CARD = (
    "metrics.json",
    "per_query.parquet",
    "answers.parquet",
    "hits.parquet",
    "plots",
    "runs",
    "report.html",
    "decision.json",
    "model_card.md",
)


@dataclass(frozen=True)
class Evaluation:
    """A complete evaluation artifact."""

    path: Path
    manifest: Manifest

    @classmethod
    def read(cls, path: str | Path) -> "Evaluation":
        """Open an evaluation."""
        return cls(Path(path), read_manifest(path, "evaluation"))

    @staticmethod
    def write(
        draft: Draft,
        *,
        metrics: dict[str, Any],
        per_query: pa.Table,
        answers: pa.Table | None,
        first_hits: dict[str, np.ndarray],
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
        draft.rows(per_query=len(per_query))

    @staticmethod
    def run_file(draft: Draft, system: str) -> Path:
        """Where a draft's TREC run of a system goes: `BM25 + Dual encoder` to runs/bm25-dual-encoder.trec.gz."""
        return _in_runs(draft, f"{re.sub(r'[^a-z0-9]+', '-', system.lower()).strip('-')}.trec.gz")

    @staticmethod
    def qrels_file(draft: Draft, split: str) -> Path:
        """Where a draft's TREC qrels of a split go."""
        return _in_runs(draft, f"{split}.qrels.gz")

    @property
    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds."""
        return _read_json(self.path / METRICS)

    def figures(self, split: str, system: str, measure: str) -> np.ndarray:
        """One measure of a system, float64 [n], by ascending query row."""
        chosen = (pc.field("split") == split) & (pc.field("system") == system)
        figures: np.ndarray = pq.read_table(self.path / PER_QUERY, filters=chosen).column(measure).to_numpy()
        return figures

    def first_hits(self, system: str) -> np.ndarray:
        """A system's first passages int32 [n, s] of the split that a report is headed by, -1 where there are fewer."""
        column = pq.read_table(self.path / HITS, columns=[system]).column(0).combine_chunks()
        rows: np.ndarray = column.flatten().to_numpy().reshape(len(column), -1)
        return rows

    def copy_to(self, draft: Draft) -> None:
        """Copy what a report shows of it, but `metrics.json`."""
        for name in (PER_QUERY, ANSWERS):
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, draft / name)
        if (self.path / RUNS).is_dir():
            shutil.copytree(self.path / RUNS, draft / RUNS)


class Latency:
    """What a question costs each system: `systems`, by name, each with `encode_ms` and `search_ms`."""

    @staticmethod
    def write(draft: Draft, facts: dict[str, Any]) -> None:
        """Fill a latency draft."""
        _write_json(draft / METRICS, facts)

    @staticmethod
    def read(path: str | Path) -> dict[str, Any]:
        """Read a latency artifact."""
        read_manifest(path, "latency")
        return _read_json(Path(path) / METRICS)


@dataclass(frozen=True)
class Report:
    """A complete report artifact."""

    path: Path
    manifest: Manifest

    @classmethod
    def read(cls, path: str | Path) -> "Report":
        """Open a report."""
        return cls(Path(path), read_manifest(path, "report"))

    @staticmethod
    def write(
        draft: Draft,
        *,
        metrics: dict[str, Any],
        plots: dict[str, bytes],
        page: str,
        per_query: pa.Table | None = None,
    ) -> None:
        """Fill a report draft; `plots` are PNGs by name, `per_query` is None where the draft has the table already."""
        _write_json(draft / METRICS, metrics)
        if per_query is not None:
            pq.write_table(per_query, draft / PER_QUERY)
        (draft / PLOTS).mkdir()
        for name, image in plots.items():
            (draft / PLOTS / f"{name}.png").write_bytes(image)
        (draft / PAGE).write_text(page, encoding="utf-8")
        draft.rows(plots=len(plots))

    @property
    def metrics(self) -> dict[str, Any]:
        """What `metrics.json` holds."""
        return _read_json(self.path / METRICS)

    def per_query(self) -> pa.Table:
        """Every measure of every query and system."""
        return pq.read_table(self.path / PER_QUERY)

    @property
    def page(self) -> Path:
        """The HTML page."""
        return self.path / PAGE


@dataclass(frozen=True)
class Figures:
    """One variant's figures, query by query; how it was made stands in its manifest."""

    manifest: Manifest
    per_query: pa.Table

    @classmethod
    def read(cls, path: str | Path) -> "Figures":
        """Read a figures artifact."""
        return cls(read_manifest(path, "figures"), pq.read_table(Path(path) / PER_QUERY))

    @staticmethod
    def write(draft: Draft, per_query: pa.Table) -> None:
        """Fill a figures draft."""
        pq.write_table(per_query, draft / PER_QUERY)
        draft.rows(per_query=len(per_query))


@dataclass(frozen=True)
class Decision:
    """A complete decision artifact."""

    path: Path
    manifest: Manifest

    @classmethod
    def read(cls, path: str | Path) -> "Decision":
        """Open a decision."""
        return cls(Path(path), read_manifest(path, "decision"))

    @staticmethod
    def write(draft: Draft, facts: dict[str, Any], card: str) -> None:
        """Fill a decision draft."""
        (draft / DECISION).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        (draft / CARD).write_text(card, encoding="utf-8")

    @property
    def facts(self) -> dict[str, Any]:
        """What `decision.json` holds."""
        return self.logged_facts(self.path)

    @staticmethod
    def logged_facts(folder: Path) -> dict[str, Any]:
        """The same of a copy in MLflow: the step logs it before it is complete, so it has no manifest."""
        return _read_json(folder / DECISION)

    @property
    def card(self) -> str:
        """What `model_card.md` says."""
        return (self.path / CARD).read_text(encoding="utf-8")


def _in_runs(draft: Draft, name: str) -> Path:
    (draft / RUNS).mkdir(exist_ok=True)
    return draft / RUNS / name


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
