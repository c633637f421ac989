"""`gnn-encoder submit --wait`: what it tells, how it ends, and what it bears with."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from kfp_api import EXAMPLE, WORKFLOW, KfpServer, at, check, node_hash
from submitting import IMAGES, submit
from waiting import wait_for

from gnn_encoder.cli import app
from gnn_encoder.kubeflow import server as kubeflow_server
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.server import Server
from gnn_encoder.kubeflow.submission import wait


@pytest.mark.slow
def test_waiting_for_success(server: KfpServer, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    server.progress = [
        at("PENDING"),
        at("RUNNING", ingest="Running"),
        at("RUNNING", ingest=["Failed", "Running"]),
        at("RUNNING", ingest=["Failed", "Succeeded"], build_graph="Running", bm25_retrieve="Pending"),
        at("SUCCEEDED", ingest=["Failed", "Succeeded"], build_graph="Succeeded", bm25_retrieve="Skipped"),
    ]
    server.failures = [503, 502]
    assert submit(server.url, "--cluster", cluster, "--wait") == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert sorted(line.split()[1:] for line in lines if line[2:3] == ":") == [
        ["bm25-retrieve", "pending"], ["bm25-retrieve", "skipped"],
        ["build-graph", "running"], ["build-graph", "succeeded"], ["ingest", "running"], ["ingest", "succeeded"],
    ]  # fmt: skip
    assert len([line for line in lines if line.endswith("upstream connect error; still waiting")]) == 1
    assert lines[-4:] == [
        "status     succeeded",
        f"run        {server.url}/#/runs/details/run-0",
        "artifacts  s3://retrieval/pipelines",
        "mlflow     http://mlflow.retrieval.svc:5000",
    ]
    assert shown.err == ""


@pytest.mark.parametrize(
    ("build_graph", "node", "template"),
    [
        ("Failed", "root.build-graph.executor", "system-container-impl"),
        ("Error", "root.build-graph.executor", "system-container-impl"),
        (["Failed", "Error", "Failed"], "root.build-graph.executor(2)", "retry-system-container-impl"),
    ],
)
def test_a_failed_step_is_named_with_its_pod(
    build_graph: str | list[str], node: str, template: str, server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = {"ingest": "Succeeded", "build_graph": build_graph, "dense_retrieve_driver": "Omitted"}
    phases["dense_retrieve"] = "Omitted"
    server.progress = [at("RUNNING", ingest="Running"), at("FAILED", **phases)]
    assert submit(server.url, "--wait") == 1
    shown = capsys.readouterr()
    assert "status     failed\n" in shown.out and "dense-retrieve" not in shown.out + shown.err
    pod = f"{WORKFLOW}-{template}-{node_hash(f'{WORKFLOW}.{node}')}"
    log = f"kubectl logs -n kubeflow {pod} -c main"
    assert shown.err == f"error: build-graph failed; why is in its log: {log}\n"


@pytest.mark.slow
@pytest.mark.parametrize("build_graph", ["Failed", ["Failed", "Failed"]])
@pytest.mark.parametrize(
    ("metadata", "beginning"),
    [
        ("labels: {a: b, c: d}", "metadata-0-2-"),
        ("annotations: {a: b}", "metadata-1-0-"),
        ("labels: {a: b}, annotations: {a: b, c: d, e: f}", "metadata-3-1-"),
        ("timeout_seconds: 60", ""),
    ],
)
def test_the_pods_of_steps_with_labels_are_of_another_template(
    metadata: str,
    beginning: str,
    build_graph: str | list[str],
    server: KfpServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "c.yaml").write_text(f"{IMAGES}steps: {{build_graph: {{{metadata}}}}}\n", "utf-8")
    for step in ("build_graph", "ingest"):
        server.progress = [at("FAILED", **{step: build_graph})]
        assert submit(server.url, "--cluster", str(tmp_path / "c.yaml"), "--wait") == 1
        template = "retry-system-container-impl" if isinstance(build_graph, list) else "system-container-impl"
        begins = beginning if step == "build_graph" else ""
        assert f" {WORKFLOW}-{begins}{template}-" in capsys.readouterr().err


def test_a_run_of_another_pipeline_is_read(server: KfpServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit(server.url) == 0
    task = {"componentRef": {}, "cachingOptions": {}}
    for spec in ({}, {"root": {"dag": {"tasks": {"ingest": task}}}}, {"root": {}, "components": {"comp-a": {}}}):
        document = {"pipeline_spec": {"deploymentSpec": {}, **spec}, "platform_spec": {}}
        server.runs.append({**server.runs[0], "pipeline_spec": document})
    capsys.readouterr()
    assert call("runs", "--host", server.url) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_of_a_step_with_several_calls_the_failed_one_is_named_with_its_pod(
    server: KfpServer, cluster: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, beginning in ([], ""), (["--cluster", cluster], "metadata-1-2-"):
        server.progress = [at("FAILED", rank_untrained="Succeeded", rank_gnn_encoder="Failed", importer="Failed")]
        assert submit(server.url, *options, "--wait") == 1
        shown = capsys.readouterr()
        lines = [line.split()[1:] for line in shown.out.splitlines() if "rank-" in line]
        assert lines == [["rank-untrained", "succeeded"], ["rank-gnn-encoder", "failed"]]
        pod = f"{WORKFLOW}-{beginning}system-container-impl-{node_hash(f'{WORKFLOW}.root.rank-gnn-encoder.executor')}"
        assert f"error: rank-gnn-encoder failed; why is in its log: kubectl logs -n kubeflow {pod} -c" in shown.err
        assert "error: importer failed" in shown.err


def test_hashes_are_those_that_argo_gives() -> None:
    assert node_hash("echo-wngc4(0)") == 1641470511  # of a run of Argo's own examples
    assert node_hash("foobar") == 0xBF9CF968  # of FNV's published vectors


@pytest.mark.slow
def test_a_driver_that_fails(server: KfpServer, cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    for phases, words, node, template in [
        ({"ingest_driver": "Failed", "ingest": "Omitted"}, "ingest, which", "root.ingest-driver", "container"),
        ({"root_driver": "Error"}, "the run failed", "root-driver", "dag"),
        ({"importer_driver": "Failed"}, "an importer failed", "root.importer-driver", "dag"),
    ]:
        server.progress = [at("RUNNING"), at("FAILED", **phases)]
        assert submit(server.url, "--cluster", cluster, "--wait") == 1
        shown = capsys.readouterr()
        assert "ingest " not in shown.out
        pod = f"{WORKFLOW}-system-{template}-driver-{node_hash(f'{WORKFLOW}.{node}')}"
        assert shown.err.startswith(f"error: KFP's driver of {words}") and shown.err.count("\n") == 1
        assert f"kubectl logs -n kubeflow {pod} -c main" in shown.err


@pytest.mark.slow
def test_the_namespace_and_a_pod_that_cannot_be_told(capsys: pytest.CaptureFixture[str]) -> None:
    failed = at("FAILED", ingest="Failed")
    for task in failed["run_details"]["task_details"]:
        del task["child_tasks"]
    with KfpServer(multi_user=True, progress=[failed]) as server:
        assert submit(server.url, "--cluster", str(EXAMPLE), "--wait") == 1
    error = capsys.readouterr().err
    assert "ingest failed; why is in its log: kubectl get pods -n retrieval -l pipeline/runid=run-0" in error


def test_the_end_of_a_run_comes_before_that_of_its_steps(server: KfpServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.progress = [at("FAILED", ingest="Running"), at("FAILED", ingest="Failed")]
    assert submit(server.url, "--wait") == 1
    assert "error: ingest failed" in capsys.readouterr().err
    server.progress = [at("FAILED", ingest="Succeeded")]  # the workflow itself failed
    assert submit(server.url, "--wait") == 1
    assert "no step failed; see kubectl describe workflows -n kubeflow" in capsys.readouterr().err


@pytest.mark.parametrize(
    "progress",
    [
        [at("RUNNING", ingest="Running"), at("CANCELING", ingest="Running"), at("FAILED", ingest="Failed")],
        [at("FAILED", "RUNNING", "CANCELING", ingest="Failed")],
        [at("CANCELING"), at("CANCELED")],
    ],
)
def test_a_run_that_somebody_terminates(
    progress: list[dict[str, Any]], server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.progress = progress
    assert submit(server.url, "--wait") == 1
    assert capsys.readouterr().err == "error: somebody terminated the run\n"


def test_a_run_that_the_server_cannot_read_back(server: KfpServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit(server.url) == 0
    del server.runs[0]["state"]
    server.progress = [
        {"error": {"code": 13, "message": "Failed to parse\nruntime config \x1b[31mof s3://me:hidden@store"}}
    ]
    with pytest.raises(SystemExit):
        raise SystemExit(wait(Server(server.url), "run-0", Cluster()))
    shown = capsys.readouterr().err
    assert shown.startswith("error: Failed to parse runtime config") and shown.count("\n") == 1
    assert "hidden" not in shown and "\x1b" not in shown


def test_the_server_that_plays_kfp_sends_what_kfp_sends(server: KfpServer) -> None:
    failed = at("FAILED", ingest="Failed")
    check({"run_id": "run-0", **failed}, "V2beta1Run")
    for field, value in {"error": {"code": 13}, "pod_name": "a-pod", "executor_detail": {}}.items():
        failed["run_details"]["task_details"][0] |= {field: value}
        with pytest.raises(ValueError, match=f"KFP sends no {field} of a task"):
            check({"run_id": "run-0", **failed}, "V2beta1Run")
        del failed["run_details"]["task_details"][0][field]


def test_a_server_that_stays_away_while_waiting(
    server: KfpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kubeflow_server, "PATIENCE_SECONDS", 0)
    server.failures = [503] * 9
    assert submit(server.url, "--wait") == 2
    assert f"the run goes on: {server.url}/#/runs/details/run-0" in capsys.readouterr().err
    assert len(server.failures) == 7


@pytest.mark.slow
def test_a_server_that_accepts_and_never_answers(
    server: KfpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kubeflow_server, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(kubeflow_server, "PATIENCE_SECONDS", 0.2)
    for request, words in [
        ("GET .*/healthz", "no answer within 1 s; check --host"),
        ("GET .*/experiments", "no answer within 1 s"),
        ("POST .*/runs", "may have started all the same: see gnn-encoder runs"),
        ("GET .*/runs/run-0", "no answer within 1 s; the run goes on"),
    ]:
        server.silent = lambda line, request=request: re.fullmatch(request, line) is not None  # type: ignore[misc]
        assert submit(server.url, "--wait") == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    # It answers late, but before the wait is given up.
    silences = iter([True])
    server.silent = lambda line: "GET" in line and "run-" in line and next(silences, False)
    monkeypatch.setattr(kubeflow_server, "PATIENCE_SECONDS", 60)
    assert submit(server.url, "--wait") == 0
    assert "no answer within 1 s; still waiting\n" in capsys.readouterr().out


@pytest.mark.slow
def test_ctrl_c_leaves_the_run_alone(server: KfpServer, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(IMAGES, "utf-8")
    server.progress = [at("RUNNING")]
    # Tests that run in the background, as in `make test &`, inherit from the shell that Ctrl-C means nothing.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = f"{heard}; from gnn_encoder.cli.app import main; main()"
    submission = ["submit", "--preset", "quickstart", "--cluster", str(tmp_path / "cluster.yaml"), "--wait"]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *submission, "--host", server.url],
        env=os.environ | {"PYTHONPATH": str(Path(app.__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: server.seen("GET", ".*/runs/run-0"), 60)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"the run goes on: {server.url}/#/runs/details/run-0" in error
    assert "Traceback" not in error
    assert [path.rpartition("/")[2] for method, path, _ in server.requests if method == "POST"] == [
        "experiments",
        "runs",
    ]


def test_a_token_that_expires_while_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GNN_ENCODER_KFP_TOKEN", "right")
    with KfpServer(token="right", failures=[401]) as server:
        assert submit(server.url, "--wait") == 2
    error = capsys.readouterr().err
    assert "has expired" in error and "the run goes on" in error


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "forbids it in namespace (none): upstream connect error"),
        (404, "does not have it: upstream connect error"),
        (409, "answers 409: upstream connect error"),
    ],
)
def test_a_refusal_ends_the_wait_in_a_line(
    status: int, words: str, server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.failures = [status]
    assert submit(server.url, "--wait") == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
