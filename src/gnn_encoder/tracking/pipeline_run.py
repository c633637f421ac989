"""The MLflow run of a whole pipeline: opened before the first step, and the parent of every step's run."""

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from gnn_encoder import __version__
from gnn_encoder.artifacts.folder import Manifest
from gnn_encoder.errors import Missing, UserError, without_password
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.mlflow_runs import StepLog

PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""When a run opens, no work can be lost, so a server that does not answer is reported soon."""
PICTURE, TABLE = "systems.svg", "systems.json"
"""Files of a pipeline's run."""
SQLITE = "sqlite:///"
LATE = "late"
"""Tag of a pipeline's run that ended because its time was up."""
STORES = "stores.txt"
"""File in a root: the addresses of the stores that its runs log to, one a line, without passwords."""


class PipelineLog:
    """The parent run of one pipeline run; logs the steps that were not executed."""

    def __init__(self, root: Path, name: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Open the run. Runs of this root that a killed launcher left open are closed as KILLED."""
        self.uri = tracking_uri(root)
        # A server has its own place for artifacts. The default of a database is ./mlruns in the working folder.
        location = None if self.uri.startswith("http") else (root / "artifacts").as_uri()
        name_of_root = _quotable(root)
        with impatient(), mlflow_runs.reaching(self.uri) as client:
            self._client = client
            self._experiment = mlflow_runs.experiment_id(client, artifact_location=location)
            for stale in of_root(self._running(f"tags.root = '{name_of_root}'"), root):
                self._close(stale.info.run_id, "KILLED")
            self.run_id = mlflow_runs.create_run(client, self._experiment, name)
            self._log = StepLog(client, self.run_id)
            mlflow_runs.describe(self._log, params, {**tags, "root": name_of_root, "version": __version__})
        if (store := without_password(self.uri)) not in noted_stores(root) and self.uri != own_store(root):
            with (root / STORES).open("a", encoding="utf-8") as file:
                file.write(f"{store}\n")

    def registered(self, models: Iterable[str]) -> list[tuple[str, str]]:
        """Returns model and number of every registered version of some models."""
        with impatient(), mlflow_runs.store_errors(self.uri):
            mlflow_runs.await_lock(self.uri)
            versions = [
                version
                for name in models
                for version in mlflow_runs.all_pages(self._client.search_model_versions, f"name = '{name}'")
            ]
        return [(version.name, str(version.version)) for version in versions]

    def environment(self) -> dict[str, str]:
        """The environment variables that make a step log under this run."""
        return {"MLFLOW_TRACKING_URI": self.uri, mlflow_runs.PARENT_RUN: self.run_id}

    def cached_step(self, step: str, manifest: Manifest) -> None:
        """Log a step whose outputs were reused, with the settings and figures of the outputs' manifest, if it was not a
        short one (`mlflow_runs.SHORT_SECONDS`) when it ran."""
        if manifest.metrics.get("seconds", math.inf) < mlflow_runs.SHORT_SECONDS:
            return
        with self._tolerating():
            log = StepLog(self._client, mlflow_runs.create_run(self._client, self._experiment, step, self.run_id))
            tags = {f"input.{name}": digest for name, digest in manifest.inputs.items()}
            tags |= {"step": step, "cached": "true", "version": __version__, "output_digest": manifest.digest}
            mlflow_runs.describe(log, manifest.settings, tags)
            log.metrics(manifest.metrics)
            log.close("FINISHED")

    def results(
        self,
        figures: Mapping[str, float],
        note: str = "",
        recommended: str = "",
        dataset: Manifest | None = None,
        model: str = "",
        picture: str = "",
        table: Mapping[str, list[Any]] = {},
    ) -> None:
        """Log the comparison on the pipeline's run, where users compare runs.

        Args:
            figures: of all systems.
            note: a description, in Markdown.
            recommended: the recommended system.
            model: id of the registered MLflow model.
            picture: an SVG of the systems, which the description begins with.
            table: columns of the systems' table.
        """
        self._log.metrics(figures)
        if picture:
            self._log.text(picture, PICTURE)
            # The dashboard's own address of a file, relative to its page: it has no other for a description.
            note = f"![Systems](get-artifact?path={PICTURE}&run_uuid={self.run_id})\n\n{note}"
        if table:
            self._log.table(table, TABLE)
        if recommended:
            self._log.tag("recommended", recommended)
        if note:
            self._log.tag(mlflow_runs.NOTE, mlflow_runs.shortened(note))
        if dataset:
            self._log.dataset(dataset)
        if model:
            self._log.model(model)
        self._log.close(None)

    def finish(self, status: str, *, is_late: bool = False) -> None:
        """End the run, and every step's run that a killed process left open; `is_late`: its time was up."""
        with self._tolerating():
            if is_late:
                self._log.tag(LATE, "yes")
                self._close_steps(self.run_id, "KILLED")
            self._close(self.run_id, status)

    @contextmanager
    def _tolerating(self) -> Iterator[None]:
        # If the store fails later, a run that took hours must not end.
        try:
            with mlflow_runs.store_errors(self.uri):
                mlflow_runs.await_lock(self.uri)
                yield
        except UserError as error:
            print(f"warning: {error}", file=sys.stderr)

    def _close(self, run_id: str, status: str) -> None:
        self._close_steps(run_id, status)
        self._client.set_terminated(run_id, status)

    def _close_steps(self, run_id: str, status: str) -> None:
        for step in self._running(f"tags.mlflow.parentRunId = '{run_id}'"):
            self._client.set_terminated(step.info.run_id, status)

    def _running(self, condition: str) -> list[Any]:
        return list(self._client.search_runs([self._experiment], f"attributes.status = 'RUNNING' and {condition}"))


def _quotable(root: Path) -> str:
    return str(root).replace("'", "_")


def of_root(runs: Iterable[Any], root: Path) -> list[Any]:
    """Returns those of MLflow's runs whose log lies in a root.

    Another may be of a root with the same path on another machine, or of one whose path differs in a quote.
    """
    logs = ((run, Path(run.data.tags.get("log", ""))) for run in runs)
    return [run for run, log in logs if log.is_relative_to(root) and log.is_file()]


def runs_of(client: Any, root: Path) -> list[Any]:
    """Returns MLflow's runs of a root in all experiments: those of pipelines, and those of their steps."""
    experiments = [experiment.experiment_id for experiment in mlflow_runs.all_pages(client.search_experiments)]
    named = mlflow_runs.all_pages(client.search_runs, experiments, f"tags.root = '{_quotable(root)}'")
    parents = of_root(named, root)
    steps = (
        mlflow_runs.all_pages(client.search_runs, experiments, f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
        for parent in parents
    )
    return [*parents, *chain.from_iterable(steps)]


def tracking_uri(root: Path) -> str:
    """`MLFLOW_TRACKING_URI` if the user set it, otherwise a SQLite store in the root; a file with its whole path."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or own_store(root)
    file, mark, options = uri.removeprefix(SQLITE).partition("?")
    if not uri.startswith(SQLITE) or file[:1] in ("", "/", "%"):  # a quoted path begins with %2F
        return uri
    return f"{_sqlite(Path(unquote(file)).resolve())}{mark}{options}"


def noted_stores(root: Path) -> list[str]:
    """The addresses without passwords of the stores, but for the root's own one, to which its runs have logged."""
    file = root / STORES
    return list(filter(None, file.read_text("utf-8").splitlines())) if file.is_file() else []


def own_store(root: Path) -> str:
    """The address of the SQLite store in a root."""
    return _sqlite(root / "mlflow.db")


def _sqlite(file: Path) -> str:
    path = str(file)
    # Slashes are quoted too; otherwise MLflow would create the folders of the quoted path. Paths without ? and % stay
    # unquoted, because the address is an argument of `promote`.
    return f"{SQLITE}{quote(path, '') if set('?%') & set(path) else path}"


def existing_store(root: Path) -> str:
    """`tracking_uri` of a root; raises `Missing` if the root has no runs and the environment names no store."""
    root = root.resolve()
    if not os.environ.get("MLFLOW_TRACKING_URI") and not (root / "mlflow.db").is_file():
        raise Missing(f"no runs under {root} yet: start one with gnn-encoder run, or give its --root")
    return tracking_uri(root)


@contextmanager
def addressed(uri: str) -> Iterator[None]:
    """In the block, MLflow's functions that take no address use the store at `uri`, as in a step's process."""
    former = os.environ.get("MLFLOW_TRACKING_URI")
    os.environ["MLFLOW_TRACKING_URI"] = uri
    try:
        yield
    finally:
        if former is None:
            del os.environ["MLFLOW_TRACKING_URI"]
        else:
            os.environ["MLFLOW_TRACKING_URI"] = former


@contextmanager
def impatient() -> Iterator[None]:
    """In the block, MLflow soon gives up a tracking server that does not answer. The user's own settings are kept."""
    added = {name: value for name, value in PATIENCE.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
