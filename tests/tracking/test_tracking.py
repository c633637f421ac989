"""Steps' runs, against a real MLflow store on SQLite."""

import json
import os
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gnn_encoder.artifacts.folder import Manifest
from gnn_encoder.errors import UserError
from gnn_encoder.promotion.registry import registry_of
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.pipeline_run import LATE, STORES, PipelineLog, existing_store, noted_stores


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", mlflow_runs.PARENT_RUN):
            patch.delenv(name, raising=False)
        yield tmp_path_factory.mktemp("root")


@pytest.fixture
def parent(store: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineLog:
    """A pipeline's run, with the environment that its steps see."""
    run = PipelineLog(store, "quickstart-1", {"preset": "quickstart", "train_gnn.epochs": 3}, {})
    for name, value in run.environment().items():
        monkeypatch.setenv(name, value)
    return run


def client(store: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(f"sqlite:///{store / 'mlflow.db'}")


def test_a_step_nests_its_settings_curves_files_and_status(store: Path, parent: PipelineLog, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>")
    settings = {"epochs": 3, "pooling": "auto", "packages": ["numpy"], "long": "x" * 9000}
    with mlflow_runs.step_log("train_dpr", params=settings, tags={"input.dataset": "abc"}) as run:
        for at in range(2500):  # more than MLflow takes in one call
            run.metric("loss", 1 / (at + 1), at)
        run.metrics({"R@100": 0.5})
        run.artifact(tmp_path / "report.html", "report")
        run.text("| größe | 3 |\n", "training_set/training_set.md")
    logged = client(store).get_run(run.run_id)
    assert logged.info.status == "FINISHED"
    assert logged.info.run_name == "train_dpr"
    assert logged.data.tags["mlflow.parentRunId"] == parent.run_id
    assert logged.data.tags["input.dataset"] == "abc"
    assert logged.data.params["epochs"] == "3"
    assert logged.data.params["packages"] == '["numpy"]'
    assert logged.data.metrics["R_at_100"] == 0.5
    points = client(store).get_metric_history(run.run_id, "loss")
    assert [(p.step, p.value) for p in sorted(points, key=lambda p: p.step)] == [(i, 1 / (i + 1)) for i in range(2500)]
    assert list((store / "artifacts").glob(f"{run.run_id}/artifacts/report/report.html"))
    (table,) = (store / "artifacts").glob(f"{run.run_id}/artifacts/training_set/training_set.md")
    assert table.read_text("utf-8") == "| größe | 3 |\n"
    parent.finish("FINISHED")
    assert client(store).get_run(parent.run_id).data.params["train_gnn.epochs"] == "3"


@pytest.mark.parametrize(("error", "status"), [(ValueError("a\nb"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_a_step_that_does_not_end_well_says_so(
    store: Path, parent: PipelineLog, error: BaseException, status: str
) -> None:
    with pytest.raises(type(error)), mlflow_runs.step_log("train_gnn", params={}, tags={}) as run:
        run.metric("loss", 2.0, at=1)
        raise error
    logged = client(store).get_run(run.run_id)
    assert logged.info.status == status
    assert logged.data.metrics == {"loss": 2.0}
    assert logged.data.tags["error"] == ("a b" if status == "FAILED" else "KeyboardInterrupt")
    parent.finish(status)


@pytest.mark.parametrize(
    ("logged", "seconds", "is_kept"),
    [
        (lambda run: run.metrics({"R@100": 0.5}), 1.0, False),
        (lambda run: run.metrics({"R@100": 0.5}), 0.0, True),  # it took longer than "short"
        (lambda run: run.metric("loss", 2.0, at=1), 1.0, True),
        (lambda run: run.text("words", "words.md"), 1.0, True),
    ],
)
def test_a_short_step_without_curves_and_files_has_no_run(
    store: Path,
    parent: PipelineLog,
    monkeypatch: pytest.MonkeyPatch,
    logged: Callable[[mlflow_runs.StepLog], None],
    seconds: float,
    is_kept: bool,
) -> None:
    monkeypatch.setattr(mlflow_runs, "SHORT_SECONDS", seconds * 60)
    with mlflow_runs.step_log("merge", params={"seed": 1}, tags={}) as run:
        logged(run)
    runs = client(store).search_runs(["1"], f"tags.mlflow.parentRunId = '{parent.run_id}'")
    assert [(one.info.run_id, one.info.status) for one in runs] == [(run.run_id, "FINISHED")] * is_kept
    monkeypatch.delenv(mlflow_runs.PARENT_RUN)
    with mlflow_runs.step_log("merge", params={}, tags={}) as alone:
        alone.metrics({"R@100": 0.5})
    assert client(store).get_run(alone.run_id).data.metrics == {"R_at_100": 0.5}, "it is part of no pipeline's run"
    parent.finish("FINISHED")


def test_a_pipelines_run_shows_the_picture_and_the_table_first(store: Path, parent: PipelineLog) -> None:
    table = {"system": ["BM25", "Dual encoder"], "MRR@10": [0.5, 0.25]}
    parent.results({"test/BM25/RR@10": 0.5}, "| system |", "BM25", picture="<svg/>", table=table)
    logged = client(store).get_run(parent.run_id)
    address = f"get-artifact?path=systems.svg&run_uuid={parent.run_id}"
    assert logged.data.tags["mlflow.note.content"] == f"![Systems]({address})\n\n| system |"
    assert logged.data.metrics == {"test/BM25/RR_at_10": 0.5}
    folder = store / "artifacts" / parent.run_id / "artifacts"
    assert (folder / "systems.svg").read_text("utf-8") == "<svg/>"
    shown = json.loads((folder / "systems.json").read_text("utf-8"))
    assert (shown["columns"], shown["data"]) == ([*table], [["BM25", 0.5], ["Dual encoder", 0.25]])
    parent.results({}, "| system |\n" * 1000)
    cut = client(store).get_run(parent.run_id).data.tags["mlflow.note.content"]
    assert cut.endswith("| system |\n…") and 4980 < len(cut) <= 5000, "the control: MLflow cuts within a line"
    parent.finish("FINISHED")


def test_logging_a_point_does_not_wait_for_the_store(
    store: Path, parent: PipelineLog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlflow_runs, "FLUSH_SECONDS", 0.05)
    with mlflow_runs.step_log("train_dpr", params={}, tags={}) as run:

        class Slow:
            calls = 0

            def log_batch(self, run_id: str, metrics: Any) -> None:
                Slow.calls += 1
                time.sleep(0.4)
                raise OSError("the store went away")

            def set_terminated(self, run_id: str, status: str) -> None:
                """The run's end is not what is tried here."""

        run.client = Slow()
        run.metric("loss", 1.0, at=1)
        while Slow.calls == 0:
            time.sleep(0.01)
        slowest = 0.0
        for at in range(1000):
            moment = time.monotonic()
            run.metric("loss", 1.0, at=at)
            slowest = max(slowest, time.monotonic() - moment)
        assert slowest < 0.3  # a call that waited would take 0.4 s
    assert "warning: MLflow log_batch failed: the store went away" in capsys.readouterr().err


def test_a_run_that_the_cluster_opened_is_adopted_and_left_open(
    store: Path, parent: PipelineLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    injected = client(store).create_run("1", run_name="from KFP").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", injected)
    with mlflow_runs.step_log("ingest", params={"seed": 1}, tags={}) as run:
        assert run.run_id != injected  # the launcher's word counts more
    monkeypatch.delenv(mlflow_runs.PARENT_RUN)
    with mlflow_runs.step_log("ingest", params={"seed": 1}, tags={}) as run:
        assert run.run_id == injected
    logged = client(store).get_run(injected)
    assert logged.info.status == "RUNNING"
    assert logged.data.params == {"seed": "1"}
    parent.finish("FINISHED")


def test_without_a_store_nothing_is_logged(tmp_path: Path) -> None:
    with mlflow_runs.step_log("ingest", params={}, tags={}) as run:
        run.metric("loss", 1.0, at=1)
        run.artifact(tmp_path)
        assert run.run_id is None
        assert registry_of(run, "m") is None


def test_a_cached_step_shows_what_it_reused(store: Path, parent: PipelineLog) -> None:
    manifest = Manifest(
        "run", 1, step="bm25_retrieve", settings={"k1": 1.5}, inputs={"dataset": "abc"}, digest="def",
        metrics={"R@100": 0.5, "seconds": 7.0, "headline": "R@100 0.50"},
    )  # fmt: skip
    parent.cached_step("bm25_retrieve", manifest)
    parent.cached_step("merge", replace(manifest, step="merge", metrics={"seconds": 0.9}))  # a short one has no run
    parent.finish("FINISHED")
    (logged,) = client(store).search_runs(["1"], f"tags.mlflow.parentRunId = '{parent.run_id}'")
    assert logged.info.status == "FINISHED"
    assert logged.data.params == {"k1": "1.5"}
    assert logged.data.metrics == {"R_at_100": 0.5, "seconds": 7.0}
    assert {"cached": "true", "input.dataset": "abc", "output_digest": "def"}.items() <= logged.data.tags.items()


def test_runs_that_a_killed_launcher_left_open_are_closed_by_the_next(store: Path, parent: PipelineLog) -> None:
    log = store / "killed.log"
    log.touch()
    client(store).set_tag(parent.run_id, "log", str(log))
    step = client(store).create_run("1", tags={"mlflow.parentRunId": parent.run_id}, run_name="train_gnn")
    stranger = client(store).create_run("1", tags={"root": "/elsewhere"}, run_name="another root's")
    tags = {"root": str(store), "log": str(store / "of another machine.log")}
    same_path = client(store).create_run("1", tags=tags, run_name="of another machine")
    following = PipelineLog(store, "quickstart-2", {}, {})
    runs = (parent.run_id, step.info.run_id, following.run_id, stranger.info.run_id, same_path.info.run_id)
    statuses = [client(store).get_run(run).info.status for run in runs]
    assert statuses == ["KILLED", "KILLED", "RUNNING", "RUNNING", "RUNNING"]
    following.finish("FINISHED")


def test_the_stores_of_a_root_are_noted(
    store: Path, parent: PipelineLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert noted_stores(store) == [], "its own store is known"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := f"sqlite:///{store / 'mlflow.db'}")
    for name in ("first", "second"):
        PipelineLog(tmp_path, name, {}, {}).finish("FINISHED")
    assert noted_stores(tmp_path) == [uri]
    spaced = tmp_path / "my runs"
    spaced.mkdir()
    shutil.copy(store / "mlflow.db", spaced)
    monkeypatch.chdir(spaced)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    PipelineLog(tmp_path, "third", {}, {}).finish("FINISHED")
    assert noted_stores(tmp_path) == [uri, f"sqlite:///{spaced / 'mlflow.db'}"], "of any folder, and with spaces"
    PipelineLog(spaced, "fourth", {}, {}).finish("FINISHED")
    assert noted_stores(spaced) == [], "it is the root's own"
    odd = spaced.rename(tmp_path / "50%25?")
    monkeypatch.chdir(odd)
    PipelineLog(odd, "fifth", {}, {}).finish("FINISHED")
    assert noted_stores(odd) == [] and {path.name for path in odd.iterdir()} == {"mlflow.db"}
    (odd / STORES).write_text("\n\n")
    assert noted_stores(odd) == []


def test_a_step_that_the_deadline_ended_has_not_finished(store: Path, parent: PipelineLog) -> None:
    step = client(store).create_run("1", tags={"mlflow.parentRunId": parent.run_id}, run_name="train_gnn")
    parent.finish("FINISHED", is_late=True)
    runs = [client(store).get_run(run) for run in (parent.run_id, step.info.run_id)]
    assert [run.info.status for run in runs] == ["FINISHED", "KILLED"]
    assert LATE in runs[0].data.tags and LATE not in runs[1].data.tags


def test_the_registered_versions_of_some_models_are_listed(store: Path, parent: PipelineLog) -> None:
    for name in ("one", "two"):
        client(store).create_registered_model(name)
        client(store).create_model_version(name, "s3://bucket")
    assert parent.registered({"one"}) == [("one", "1")] and parent.registered(set()) == []


def test_an_unreachable_server_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:  # bound, but not listening: a port where surely nothing answers
        taken.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        began = time.monotonic()
        with pytest.raises(UserError, match="cannot use the MLflow store http://127") as caught:
            PipelineLog(tmp_path, "run", {}, {})
    assert time.monotonic() - began < 20
    assert "\n" not in str(caught.value)
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ  # steps have MLflow's own patience


def test_a_password_in_the_uri_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    badly = "write an @ in its password as %40, a space as %20"
    for password, words in (("secret", "cannot use the MLflow store"), ("begin@secret", badly), ("my secret", badly)):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"nonsense://me:{password}@host/db")
        with pytest.raises(UserError, match=words) as caught:
            PipelineLog(tmp_path, "run", {}, {})
        assert "nonsense://host/db" in str(caught.value) and "secret" not in str(caught.value)


def test_a_roots_store_lies_in_the_root_whatever_it_is_called(
    store: Path, parent: PipelineLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "of this root")
    root = tmp_path / "a?b%20c#d 😀"
    root.mkdir()
    shutil.copy(store / "mlflow.db", root)  # tables take MLflow seconds to make
    run = PipelineLog(root, "run", {}, {})
    (root / "file").touch()
    with mlflow_runs.reaching(existing_store(root)) as reader:
        reader.log_artifact(run.run_id, str(root / "file"))
        assert reader.get_run(run.run_id).info.run_name == "run"
    run.finish("FINISHED")
    assert {path.name for path in root.iterdir()} == {"mlflow.db", "artifacts", "file"}
    assert list(tmp_path.iterdir()) == [root]


def test_a_damaged_store_is_said_at_once_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"file is not a database; .*restore or move away a damaged one"):
        PipelineLog(tmp_path, "run", {}, {})
    assert time.monotonic() - began < 50  # MLflow alone tries for 102 s


def test_a_lock_of_another_program_is_waited_for_and_then_said_in_one_line(
    store: Path, parent: PipelineLog, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    holder = sqlite3.connect(store / "mlflow.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(mlflow_runs, "LOCK_SECONDS", 0.1)
    with pytest.raises(UserError, match="database is locked; end a program that holds the file") as caught:
        PipelineLog(store, "second", {}, {})
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(mlflow_runs, "LOCK_SECONDS", 60.0)
    release = threading.Timer(0.5, holder.rollback)
    release.start()
    PipelineLog(store, "third", {}, {}).finish("FINISHED")
    release.join()
    holder.close()
    assert "Traceback" not in capfd.readouterr().err
