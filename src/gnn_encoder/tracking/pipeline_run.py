"""The MLflow run of a whole pipeline: opened before the first step, parent of every step's run."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gnn_encoder import __version__
from gnn_encoder.artifacts.folder import Manifest
from gnn_encoder.errors import Missing, UserError
from gnn_encoder.tracking import mlflow_runs

PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Nothing is lost yet when a run opens: a server that is not there is better said at once."""


class PipelineRun:
    """The parent run of one pipeline run, and what the launcher logs for steps that did not execute."""

    def __init__(self, root: Path, name: str, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Open the run; runs of this root that a killed launcher left open are closed as KILLED.

        Raises:
            UserError: the tracking store cannot be reached.
        """
        self.uri = tracking_uri(root)
        # A server knows where its artifacts belong. A database's default is the working folder's ./mlruns.
        location = None if self.uri.startswith("http") else (root / "artifacts").as_uri()
        with impatient(), mlflow_runs.reaching(self.uri) as client:
            self._client = client
            self._experiment = mlflow_runs.experiment_id(client, artifact_location=location)
            for stale in self._running(f"tags.root = '{_quotable(root)}'"):
                self._close_children(stale, "KILLED")
                client.set_terminated(stale, "KILLED")
            self.run_id = mlflow_runs.create_run(client, self._experiment, name)
            mlflow_runs.describe(client, self.run_id, params, {**tags, "root": _quotable(root), "version": __version__})

    def environment(self) -> dict[str, str]:
        """What a step needs in its environment to log under this run."""
        return {"MLFLOW_TRACKING_URI": self.uri, mlflow_runs.PARENT_RUN: self.run_id}

    def cached_step(self, step: str, manifest: Manifest) -> None:
        """Log a step whose outputs were reused, with the settings and figures of when they were made."""
        with self._tolerating():
            run_id = mlflow_runs.create_run(self._client, self._experiment, step, self.run_id)
            tags = {f"input.{name}": digest for name, digest in manifest.inputs.items()}
            tags |= {"step": step, "cached": "true", "version": __version__, "output_digest": manifest.digest}
            mlflow_runs.describe(self._client, run_id, manifest.settings, tags)
            run = mlflow_runs.StepRun(self._client, run_id)
            run.metrics({k: float(v) for k, v in manifest.metrics.items() if isinstance(v, int | float)})
            run.close("FINISHED")

    def results(self, figures: Mapping[str, float], note: str = "") -> None:
        """Log the comparison's figures on the pipeline's own run, where runs are compared, and describe it."""
        with self._tolerating():
            run = mlflow_runs.StepRun(self._client, self.run_id)
            run.metrics(figures)
            if note:
                run.tag(mlflow_runs.NOTE, note)
            run.close(None)

    def finish(self, status: str) -> None:
        """End the run, and with FAILED or KILLED any step's run whose process could not do it itself."""
        with self._tolerating():
            self._close_children(self.run_id, status)
            self._client.set_terminated(self.run_id, status)

    @contextmanager
    def _tolerating(self) -> Iterator[None]:
        # A store that goes away later must not end a run that took hours.
        try:
            with mlflow_runs.reaching(self.uri):
                yield
        except UserError as error:
            print(f"warning: {error}", file=sys.stderr)

    def _close_children(self, parent: str, status: str) -> None:
        for child in self._running(f"tags.mlflow.parentRunId = '{parent}'"):
            self._client.set_terminated(child, status)

    def _running(self, condition: str) -> list[str]:
        runs = self._client.search_runs([self._experiment], f"attributes.status = 'RUNNING' and {condition}")
        return [str(run.info.run_id) for run in runs]


def tracking_uri(root: Path) -> str:
    """`MLFLOW_TRACKING_URI` where the user set it, else a SQLite store in the root."""
    path = str(root / "mlflow.db")
    # Slashes are quoted too, or MLflow would make the folders of the quoted path. Other paths stay as they were: the
    # address is among the arguments of `promote`.
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{quote(path, '') if set('?%') & set(path) else path}"


def existing_store(root: Path) -> str:
    """`tracking_uri` of a root that something ran in.

    Raises:
        Missing: nothing has, and no store is named in the environment.
    """
    root = root.resolve()
    if not os.environ.get("MLFLOW_TRACKING_URI") and not (root / "mlflow.db").is_file():
        raise Missing(f"no runs under {root} yet: start one with gnn-encoder run, or give its --root")
    return tracking_uri(root)


def _quotable(root: Path) -> str:
    return str(root).replace("'", "_")


@contextmanager
def impatient() -> Iterator[None]:
    """A block in which a tracking server that is not there is soon given up; what the user set himself stays."""
    added = {name: value for name, value in PATIENCE.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
