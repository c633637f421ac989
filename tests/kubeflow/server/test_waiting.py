"""`gnn-encoder submit --wait`: what it tells, how it ends, and what it bears with."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kfp_api import KfpServer
from submitting import submit

from gnn_encoder.cli import app
from gnn_encoder.kubeflow import server as kubeflow_server


def task(step: str, state: str, **more: Any) -> dict[str, Any]:
    return {"display_name": step.replace("_", "-"), "state": state, **more}


def at(state: str, *tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"state": state, "run_details": {"task_details": list(tasks)}, **more}


def test_waiting_for_success(
    server: KfpServer, cluster: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = {"create_time": "2026-11-22T01:00:00Z"}
    later = {"create_time": "2026-11-22T02:00:00Z"}
    failed, retried = task("ingest", "FAILED", **begun), task("ingest", "RUNNING", **later)
    server.progress = [
        at("PENDING"),
        at("RUNNING", task("ingest", "RUNNING", **begun), task("root-driver", "SUCCEEDED")),
        at("RUNNING", retried, failed),
        at("RUNNING", failed, retried),
        at("RUNNING", failed, task("ingest", "SUCCEEDED", **later), task("train_dpr", "RUNNING", **later)),
        at("SUCCEEDED", failed, task("ingest", "SUCCEEDED", **later), task("train_dpr", "SUCCEEDED", **later)),
    ]
    server.failures = [503, 502]
    assert submit(monkeypatch, server.url, "--cluster", cluster, "--wait") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines if line[2:3] == ":"] == [
        ["ingest", "running"], ["ingest", "succeeded"], ["train_dpr", "running"], ["train_dpr", "succeeded"],
    ]  # fmt: skip
    assert len([line for line in lines if line.endswith("upstream connect error; still waiting")]) == 1
    assert lines[-4:] == [
        "status     succeeded",
        f"run        {server.url}/#/runs/details/run-0",
        "artifacts  s3://retrieval/pipelines",
        "mlflow     http://mlflow.retrieval.svc:5000",
    ]


def test_waiting_for_a_failure(
    server: KfpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"code": 13, "message": "ingest: it is\nwrong"}
    server.progress = [at("RUNNING"), at("FAILED", task("ingest", "FAILED", error=error), error=error)]
    assert submit(monkeypatch, server.url, "--wait") == 1
    shown = capsys.readouterr()
    assert "status     failed\n" in shown.out
    assert "error: ingest: ingest: it is wrong\n" in shown.err


def test_a_cancelled_run_ends_the_wait(server: KfpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.progress = [at("CANCELING"), at("CANCELED")]
    assert submit(monkeypatch, server.url, "--wait") == 1


def test_a_server_that_stays_away_while_waiting(
    server: KfpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kubeflow_server, "PATIENCE", 3)
    server.failures = [503] * 9
    assert submit(monkeypatch, server.url, "--wait") == 2
    assert f"the run goes on: {server.url}/#/runs/details/run-0" in capsys.readouterr().err
    assert len(server.failures) == 5


def test_ctrl_c_leaves_the_run_alone(server: KfpServer) -> None:
    server.progress = [at("RUNNING")]
    # Tests that run in the background, as in `make test &`, inherit from the shell that Ctrl-C means nothing.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = f"{heard}; from gnn_encoder.cli.app import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "submit", "--preset", "quickstart", "--host", server.url, "--wait"],
        env=os.environ | {"PYTHONPATH": str(Path(app.__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not server.seen("GET", ".*/runs/run-0") and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"the run goes on: {server.url}/#/runs/details/run-0" in told
    assert "Traceback" not in told
    assert [path.rpartition("/")[2] for method, path, _ in server.requests if method == "POST"] == [
        "experiments",
        "runs",
    ]


def test_a_token_that_expires_while_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GNN_ENCODER_KFP_TOKEN", "right")
    with KfpServer(token="right", failures=[401]) as server:
        assert submit(monkeypatch, server.url, "--wait") == 2
    told = capsys.readouterr().err
    assert "has expired" in told and "the run goes on" in told


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "forbids it in namespace (none): upstream connect error"),
        (404, "does not have it: upstream connect error"),
        (409, "answers 409: upstream connect error"),
    ],
)
def test_a_refusal_ends_the_wait_in_a_line(
    status: int, words: str, server: KfpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.failures = [status]
    assert submit(monkeypatch, server.url, "--wait") == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1
