"""The MLflow run of a step: settings, curves, files, status.

A training loop never waits for the tracking store: memory collects the points of a curve, and a thread writes the
points every few seconds in one call. A store that cannot be reached is an error when a run opens. If the store fails
later, a warning is printed and the training goes on; the artifact's manifest has every figure, too. MLflow takes 3 s to
import, so MLflow is imported inside the functions.
"""

import gc
import json
import os
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gnn_encoder import __version__
from gnn_encoder.artifacts.folder import Manifest
from gnn_encoder.errors import UserError, one_line, without_password

PARENT_RUN = "GNN_ENCODER_PARENT_RUN"
"""Environment variable: the pipeline's run; the runs of steps are nested under it."""
IMAGE = "GNN_ENCODER_IMAGE"
"""Environment variable that a container image sets: the image's version and the digest of its source code."""
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag: the dashboard then opens on runs and charts, not on traces of language model applications."""
NOTE = "mlflow.note.content"
"""Tag with a run's description, in Markdown, for the dashboard."""
FLUSH_SECONDS = 3.0
SHORT_SECONDS = 1.0
"""A step of a pipeline's run has no run of its own if it took less and logged neither a curve nor a file: settings are
on the pipeline's run, too, and figures in the manifests and in the report."""
LOCK_SECONDS = 120.0
"""Longest wait for a SQLite store that another program has locked."""
DIGEST_CHARACTERS = 36
"""MLflow's limit for the digest of a dataset."""
METRICS_PER_CALL, PARAMS_PER_CALL, VALUE_CHARACTERS = 1000, 100, 5000
"""MLflow's limits for one `log_batch`, and for the value of one tag or parameter."""


class StepLog:
    """Logs to the MLflow run of a step; without a client it logs nothing."""

    def __init__(self, client: Any = None, run_id: str | None = None) -> None:
        self.run_id = run_id
        self.client = client
        self.has_content = False
        """Whether the run has a curve, a file, a model or a label, not only settings and figures."""
        self._points: list[Any] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._writer: threading.Thread | None = None

    def metric(self, name: str, value: float, at: int) -> None:
        """Log a point of a curve, at step or epoch `at`, and return at once."""
        self.has_content = True
        self._add(name, value, at)

    def _add(self, name: str, value: float, at: int) -> None:
        if self.client is None:
            return
        from mlflow.entities import Metric

        with self._lock:
            self._points.append(Metric(metric_name(name), float(value), int(time.time() * 1000), at))
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_now_and_then, name="mlflow", daemon=True)
            self._writer.start()

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Log the numbers among `values`, each as a single value without a curve."""
        for name, value in values.items():
            if isinstance(value, int | float):
                self._add(name, value, at=0)

    def dataset(self, manifest: Manifest) -> None:
        """Log a dataset artifact that the run reads, by its manifest."""
        if self.client is not None:
            from mlflow.entities import DatasetInput

            self._try("log_inputs", [DatasetInput(dataset_of(manifest))])

    def model(self, model_id: str) -> None:
        """Log an MLflow model that the run made."""
        if self.client is not None:
            from mlflow.entities import LoggedModelOutput

            self._log("log_outputs", [LoggedModelOutput(model_id, step=0)])

    def artifact(self, path: Path, folder: str = "") -> None:
        """Log a file (or the contents of a folder) in `folder` of the run's artifacts."""
        self._log("log_artifacts" if path.is_dir() else "log_artifact", str(path), folder or None)

    def text(self, content: str, file: str) -> None:
        """Log a text as a file of the run's artifacts, such as `training_set/training_set.md`."""
        self._log("log_text", content, file)

    def table(self, columns: Mapping[str, list[Any]], file: str) -> None:
        """Log the columns of a table as a JSON file of the run's artifacts, which the dashboard shows as a table."""
        self._log("log_table", dict(columns), file)

    def tag(self, name: str, value: Any) -> None:
        """Label the run."""
        self._log("set_tag", name, str(value)[:VALUE_CHARACTERS])

    def drop(self) -> None:
        """Delete the run in place of closing it."""
        self._closing.set()
        if self._writer is not None:
            self._writer.join()
        self._try("delete_run")

    def close(self, status: str | None) -> None:
        """Write the remaining points and set the run's status. None: the process that opened the run sets it."""
        self._closing.set()
        if self._writer is not None:
            self._writer.join()
        self._flush()
        if status is not None:
            self._try("set_terminated", status)

    def _write_now_and_then(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS):
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            points, self._points = self._points, []
        for start in range(0, len(points), METRICS_PER_CALL):
            self._try("log_batch", points[start : start + METRICS_PER_CALL])

    def _log(self, method: str, *arguments: Any) -> None:
        self.has_content = True
        self._try(method, *arguments)

    def _try(self, method: str, *arguments: Any) -> None:
        try:
            if self.client is not None:
                getattr(self.client, method)(self.run_id, *arguments)
        except Exception as error:
            # Each kind of store raises other errors (HTTP, SQL, object storage). None of them may fail the step.
            print(f"warning: MLflow {method} failed: {one_line(error)}", file=sys.stderr)


@contextmanager
def step_log(step: str, *, params: Mapping[str, Any], tags: Mapping[str, str]) -> Iterator[StepLog]:
    """The MLflow run of a step. The run ends FINISHED, FAILED or, if interrupted, KILLED.

    If KFP's MLflow plugin opened a run for this task (`MLFLOW_RUN_ID`), the step uses this run, and KFP ends it.
    Otherwise a run is opened, nested under the run `GNN_ENCODER_PARENT_RUN` if this variable is set, and then dropped
    again after a short step (`SHORT_SECONDS`). Without `MLFLOW_TRACKING_URI` nothing is logged. Raises UserError if the
    store cannot be reached.
    """
    log, injected, parent, began = StepLog(), None, None, time.monotonic()
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        parent = os.environ.get(PARENT_RUN)
        injected = None if parent else os.environ.get("MLFLOW_RUN_ID")
        image = {"image": os.environ[IMAGE]} if IMAGE in os.environ else {}
        with reaching(uri) as client:
            log = StepLog(client, injected or create_run(client, experiment_id(client, parent), step, parent))
            describe(log, params, {**tags, **image, "step": step, "version": __version__})
    status = "FAILED"
    try:
        yield log
        status = "FINISHED"
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        log.tag("error", one_line(error))
        raise
    finally:
        if parent and not log.has_content and time.monotonic() - began < SHORT_SECONDS:
            log.drop()
        else:
            log.close(None if injected else status)


@contextmanager
def reaching(uri: str) -> Iterator[Any]:
    """A client of the tracking store at `uri`; in the block, errors of the store become UserErrors."""
    with store_errors(uri):
        await_lock(uri)
        yield _client(uri)


@contextmanager
def store_errors(uri: str) -> Iterator[None]:
    """Turns errors of the store at `uri` in the block into UserErrors with the store's name and message."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        words, advice = one_line(error)[:200], "start it"
        if uri.startswith("sqlite:"):
            advice = "end a program that holds the file, restore or move away a damaged one,"
        raise UserError(
            f"cannot use the MLflow store {without_password(uri)}: {words}; {advice} or set MLFLOW_TRACKING_URI"
        ) from error


def await_lock(uri: str) -> None:
    """Waits for a SQLite store's lock. MLflow tries a damaged file for 100 s, and gives up after a lock of 20 s."""
    file = unquote(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:///") and os.access(file, os.W_OK):
        with closing(sqlite3.connect(file, timeout=LOCK_SECONDS)) as database:
            database.execute("BEGIN IMMEDIATE")


def _client(uri: str) -> Any:
    if re.search(r"//[^/]*[\s@][^/]*@", uri):  # read as part of the host's name, it would be shown in every error
        raise UserError(
            f"the MLflow store {re.sub('//.*@', '//', uri)}: write an @ in its password as %40, a space as %20"
        )
    # Telemetry is off unless the user switches it on. It would wait for a network that may be missing.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # Errors are raised as exceptions, too; MLflow's log would print SQLAlchemy's tracebacks beside our line.
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "CRITICAL")
    # MLflow prints each run's address with the password.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    # 40 % of the import time is garbage collection, because MLflow creates a million lasting objects.
    # Only then are these objects frozen: a server asks again and again, and frozen objects are never freed.
    first = "mlflow.tracking" not in sys.modules
    if first:
        gc.disable()
    try:
        from mlflow.tracking import MlflowClient

        return MlflowClient(uri, uri)
    finally:
        if first:
            gc.freeze()
            gc.enable()


def experiment_id(client: Any, parent: str | None = None, artifact_location: str | None = None) -> str:
    """Id of the parent run's experiment, or of the experiment that the environment names (created if missing)."""
    if parent:
        return str(client.get_run(parent).info.experiment_id)
    if injected := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return injected
    if experiment := find_experiment(client):
        return str(experiment.experiment_id)
    return str(client.create_experiment(_experiment_name(), artifact_location, tags=KIND))


def find_experiment(client: Any) -> Any:
    """The experiment that the environment names; None if the experiment does not exist yet."""
    return client.get_experiment_by_name(_experiment_name())


def _experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or "gnn-encoder"


def all_pages(search: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Returns the results of all pages of one of a client's searches."""
    page = search(*arguments)
    entities = list(page)
    while page.token:
        page = search(*arguments, page_token=page.token)
        entities += page
    return entities


def create_run(client: Any, experiment: str, name: str, parent: str | None = None) -> str:
    """Creates a run, nested under `parent` if given, and returns its id."""
    tags = {"mlflow.parentRunId": parent} if parent else {}
    return str(client.create_run(experiment, tags=tags, run_name=name).info.run_id)


def shortened(text: str) -> str:
    """Returns a text of lines, cut behind a line to the length that MLflow accepts."""
    return text if len(text) <= VALUE_CHARACTERS else text[: text.rindex("\n", 0, VALUE_CHARACTERS - 1)] + "\n…"


def describe(log: StepLog, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
    """Log parameters (values other than strings as JSON) and tags."""
    from mlflow.entities import Param, RunTag

    texts = {k: v if isinstance(v, str) else json.dumps(v, default=str) for k, v in params.items()}
    entries = [Param(name, text[:VALUE_CHARACTERS]) for name, text in texts.items()]
    labels = [RunTag(name, str(value)[:VALUE_CHARACTERS]) for name, value in tags.items()]
    for start in range(0, max(len(entries), 1), PARAMS_PER_CALL):
        batch = entries[start : start + PARAMS_PER_CALL]
        log.client.log_batch(log.run_id, params=batch, tags=() if start else labels)


def dataset_of(manifest: Manifest) -> Any:
    """The MLflow dataset of a dataset artifact: its name, digest, source and row counts."""
    from mlflow.entities import Dataset

    source = without_password(str(manifest.settings.get("dataset") or manifest.schema))
    name = source.rstrip("/").rpartition("/")[2] or source
    kind = source.partition(":")[0] if ":" in source else "local"
    profile = json.dumps(manifest.rows)
    return Dataset(
        name[:500], manifest.digest[:DIGEST_CHARACTERS], kind[:36], json.dumps({"uri": source}), None, profile
    )


def log_figures(client: Any, run_id: str, figures: Mapping[str, float], model_id: str, dataset: Any) -> None:
    """Log the figures of an MLflow model on a dataset (`dataset_of`)."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    of = {"model_id": model_id, "dataset_name": dataset.name, "dataset_digest": dataset.digest, "run_id": run_id}
    client.log_batch(run_id, [Metric(metric_name(name), float(value), now, 0, **of) for name, value in figures.items()])


def metric_name(name: str) -> str:
    """A measure's name in the form that MLflow accepts: `R@100` becomes `R_at_100`."""
    return re.sub(r"[^/\w.\- :]", "_", name.replace("@", "_at_"))
