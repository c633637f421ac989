"""`gnn-encoder submit` and `runs` over the wire, with a server that plays KFP's API and checks every request."""

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from beir_folder import write_beir
from kfp_api import EXAMPLE, KfpServer, check, described
from private_ca import write_certificates
from test_cli import call

from gnn_encoder import cli, data
from gnn_encoder.kubeflow import server as kubeflow_server
from gnn_encoder.presets import load_settings
from gnn_encoder.settings import STEPS

SECRET = "wJalrXUtnFEMI"
digest = functools.cache(data.source_digest)  # a second of every submission


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GNN_ENCODER_KFP_TOKEN", "KF_PIPELINES_ENDPOINT", "KF_PIPELINES_UI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(kubeflow_server, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(data, "source_digest", digest)


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer() as started:
        yield started
        assert started.problems == []


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """The example without what only a server of several users takes."""
    path = tmp_path / "cluster.yaml"
    path.write_text(EXAMPLE.read_text("utf-8").replace("namespace: retrieval", ""), "utf-8")
    return str(path)


def submit(monkeypatch: pytest.MonkeyPatch, host: str, *more: str) -> int:
    return call(monkeypatch, "submit", "--preset", "quickstart", "--host", host, *more)


def task(step: str, state: str, **more: Any) -> dict[str, Any]:
    return {"display_name": step.replace("_", "-"), "state": state, **more}


def at(state: str, *tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"state": state, "run_details": {"task_details": list(tasks)}, **more}


def test_what_is_sent(
    server: KfpServer, cluster: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(monkeypatch, f"{server.url}/", "--cluster", cluster, "--set", "train_gnn.epochs=3") == 0
    assert submit(monkeypatch, server.url, "--cluster", cluster) == 0
    assert server.seen("POST", ".*/experiments") == [
        {"display_name": "gnn-encoder", "namespace": ""}
    ]  # joined by the second
    sent, again = server.seen("POST", ".*/runs")
    assert sent["display_name"].startswith("quickstart-2")
    assert sent["experiment_id"] == again["experiment_id"] == "experiment-0"
    assert sent["service_account"] == "pipeline-runner"
    assert sent["runtime_config"]["pipeline_root"] == "s3://retrieval/pipelines"
    parameters = {step: json.loads(text) for step, text in sent["runtime_config"]["parameters"].items()}
    expected = load_settings("quickstart", ["train_gnn.epochs=3"]).model_dump(mode="json")
    assert {step: value["settings"] for step, value in parameters.items()} == {step: expected[step] for step in STEPS}
    assert all(value["code_digest"] for value in parameters.values())
    assert parameters["ingest"]["source_digests"]["dataset"]
    tasks = sent["pipeline_spec"]["pipeline_spec"]["root"]["dag"]["tasks"]
    assert {each["cachingOptions"]["enableCache"] for each in tasks.values()} == {True}
    assert len(sent["pipeline_spec"]["platform_spec"]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]) == 15
    assert SECRET not in json.dumps(server.requests)
    shown = capsys.readouterr().out
    assert f"run        {server.url}/#/runs/details/run-0\n" in shown
    assert "Experiment details" not in shown


def test_without_a_cluster_file_and_without_caching(
    server: KfpServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert submit(monkeypatch, server.url) == 0
    (tmp_path / "c.yaml").write_text("caching: false\nexperiment: mine\n", "utf-8")
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", server.url)
    assert call(monkeypatch, "submit", "--preset", "quickstart", "--cluster", str(tmp_path / "c.yaml")) == 0
    plain, uncached = server.seen("POST", ".*/runs")
    assert set(plain) == {"display_name", "experiment_id", "pipeline_spec", "runtime_config"}
    assert "pipeline_root" not in plain["runtime_config"]
    assert [each["display_name"] for each in server.experiments] == ["gnn-encoder", "mine"]
    tasks = uncached["pipeline_spec"]["root"]["dag"]["tasks"]
    assert not any(each["cachingOptions"].get("enableCache") for each in tasks.values())


def test_the_description_refuses_what_it_does_not_have(server: KfpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert submit(monkeypatch, server.url) == 0
    (sent,) = server.seen("POST", ".*/runs")
    check(sent, "V2beta1Run")
    spec = sent["pipeline_spec"]
    wrong = [
        ({"run_name": "x"}, "no field 'run_name'"),
        ({"display_name": 5}, "is no str"),
        ({"runtime_config": {"parameters": {}, "root": "x"}}, "no field 'root'"),
        ({"state": "DONE"}, "is none of"),
        ({"pipeline_spec": {**spec, "rooot": {}}}, "rooot"),
    ]
    for change, words in wrong:
        with pytest.raises(ValueError, match=words):
            check({**sent, **change}, "V2beta1Run")
    operations = {(each.method, each.path): each for each in described()}
    assert operations["POST", "/apis/v2beta1/runs"].body == "V2beta1Run"
    assert operations["GET", "/apis/v2beta1/runs"].query >= {"experiment_id", "page_size", "sort_by"}
    status, _, _ = server.handle("POST", "/apis/v2beta1/runs", None, json.dumps({**sent, "run_name": "x"}))
    assert status == 400
    status, _, _ = server.handle("GET", "/apis/v2beta1/runs?experiment=1", None, "")
    assert status == 400
    assert len(server.problems) == 2
    server.problems.clear()


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
    command = "import sys; from gnn_encoder.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "submit", "--preset", "quickstart", "--host", server.url, "--wait"],
        env=os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[1])},
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


def test_runs_are_listed(
    server: KfpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "runs", "--host", server.url) == 0
    assert capsys.readouterr().out == "no runs under gnn-encoder yet: start one with gnn-encoder submit\n"
    assert submit(monkeypatch, server.url) == submit(monkeypatch, server.url) == 0
    server.runs[0] |= {"state": "SUCCEEDED", "finished_at": "2026-11-22T03:10:05Z"}
    server.runs[1] |= {"state": "RUNNING", "finished_at": "1970-01-01T00:00:00Z"}
    capsys.readouterr()
    assert call(monkeypatch, "runs", "--host", server.url) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["created", "state", "took", "name", "run"]
    assert first.split()[2:4] == ["succeeded", "2:10:05"]
    assert second.split()[2] == "running" and "run-1" in second and "1970" not in second
    assert call(monkeypatch, "runs", "--host", server.url, "-n", "1") == 0
    assert "run-1" not in capsys.readouterr().out


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_wrong_token(token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GNN_ENCODER_KFP_TOKEN", token)
    with KfpServer(token="right") as server:
        assert submit(monkeypatch, server.url) == 2
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1
        assert "does not let us in" in told.err and "set GNN_ENCODER_KFP_TOKEN" in told.err
        assert "wrong" not in told.err.replace("is wrong", "")
        monkeypatch.setenv("GNN_ENCODER_KFP_TOKEN", "right")
        assert submit(monkeypatch, server.url) == 0
        assert "right" not in capsys.readouterr().out
        assert server.problems == []


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


def test_the_path_in_an_address(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with KfpServer(prefix="/pipeline") as server:
        assert submit(monkeypatch, f"{server.url}/pipeline/") == 0
        assert f"{server.url}/pipeline/#/runs/details/run-0" in capsys.readouterr().out
        assert submit(monkeypatch, server.url) == 2
        assert "does not have it: Not Found; check --host, and the path in it" in capsys.readouterr().err
        monkeypatch.setenv("KF_PIPELINES_UI_ENDPOINT", "https://pages.example.com")
        assert submit(monkeypatch, f"{server.url}/pipeline") == 0
        assert "https://pages.example.com/#/runs/details/run-1" in capsys.readouterr().out
        assert server.problems == []


def test_a_login_page_is_no_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with KfpServer(login_page=True) as server:
        assert submit(monkeypatch, server.url) == 2
        assert call(monkeypatch, "runs", "--host", server.url) == 2
    told = capsys.readouterr().err
    assert told.count("perhaps with a page to log in: set GNN_ENCODER_KFP_TOKEN") == 2


@pytest.mark.parametrize("variable", kubeflow_server.AUTHORITIES)
def test_a_server_whose_certificate_a_private_authority_signed(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, certificate = write_certificates(tmp_path)
    for name in kubeflow_server.AUTHORITIES:
        monkeypatch.delenv(name, raising=False)
    with KfpServer(certificate=certificate) as server:
        (tmp_path / "no.pem").write_text("no certificate")
        for wrong in ("", str(tmp_path / "nothing.pem"), str(tmp_path / "no.pem")):
            monkeypatch.setenv(variable, wrong)
            assert submit(monkeypatch, server.url) == 2
            told = capsys.readouterr().err
            assert told.count("\n") == 1 and "set SSL_CERT_FILE to a PEM file with the certificate" in told
            assert server.requests == []
        monkeypatch.setenv(variable, str(authority))
        assert submit(monkeypatch, server.url, "--wait") == 0
        assert server.problems == [] and len(server.runs) == 1


def test_several_users_want_a_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with KfpServer(multi_user=True) as server:
        assert submit(monkeypatch, server.url) == 2
        assert "say `namespace` in the cluster file" in capsys.readouterr().err
        assert submit(monkeypatch, server.url, "--cluster", str(EXAMPLE)) == 0
        assert server.experiments[0]["namespace"] == "retrieval"
        assert server.problems == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    "host", ["http://127.0.0.1:{port}", "https://no-such-host.invalid", "kubeflow", "http://me:hunter22@a", ""]
)
def test_nobody_there(host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit(monkeypatch, host.format(port=free_port())) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and "--host" in told.err
    assert "hunter22" not in told.err


def test_what_pods_cannot_reach_is_refused(
    tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = f"http://127.0.0.1:{free_port()}"
    write_beir(tmp_path / "beir")
    for more, words in [
        (["--dataset", "beir"], f"{tmp_path}/beir lies on this machine, where no pod can read it"),
        (["--set", f"shared.backbone={tiny_backbone}", "--set", "train_gnn.heads=4"], "lies on this machine"),
        (["--cluster", str(EXAMPLE), "--set", "train_dpr.processes=2"], "gives the step 1 GPU"),
    ]:
        assert submit(monkeypatch, host, *more) == 2
        told = capsys.readouterr().err
        assert words in told and told.count("\n") == 1


def test_a_dry_run_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*address: Any, **more: Any) -> None:
        raise AssertionError("a dry run asked somebody")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(AssertionError):
        submit(monkeypatch, "http://127.0.0.1:1")
    arguments = [
        "submit",
        "--preset",
        "obliqa",
        "--dataset",
        "s3://bucket/data",
        "--cluster",
        str(EXAMPLE),
        "--dry-run",
    ]
    assert call(monkeypatch, *arguments) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "cpu", "memory", "gpu", "timeout", "retries", "image"]
    assert rows[11].split()[:9] == [
        "train_gnn",
        "4-8",
        "32Gi-64Gi",
        "4",
        "nvidia.com/gpu",
        "86400",
        "s",
        "3",
        rows[11].split()[8],
    ]
    assert rows[-1] == "wrote gnn-encoder-train.yaml"
    assert (tmp_path / "gnn-encoder-train.yaml").is_file()
    assert call(monkeypatch, *arguments, "--package", "package.txt") == 2
