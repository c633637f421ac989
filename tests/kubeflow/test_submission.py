"""`gnn-encoder retrain --host`: a server that plays KFP, whose runs are the real gate before a real MLflow store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import call
from gate_inputs import write_inputs
from kfp_api import KfpServer, arguments_of, at
from mlflow_store import write_store
from registered import register
from submitting import quick

from gnn_encoder.artifacts import Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.kubeflow import cluster as settings
from gnn_encoder.kubeflow import submission
from gnn_encoder.kubeflow.submission import ClusterJob
from gnn_encoder.promotion.registry import CHAMPION, Registry, open_registry
from gnn_encoder.steps.promote import promote

CALM = ("--set", "promote.largest_latency_ratio=100")  # what the clock says is not what is tried here


class Cluster:
    """Runs the last step of what is submitted, over a bundle that finds so many test queries' passages."""

    def __init__(self, folder: Path, dataset: Dataset, backbone: Path) -> None:
        self._folder, self._dataset, self._backbone = folder, dataset, backbone
        self.uri = write_store(folder / "mlflow.db")
        self.file = folder / "cluster.yaml"
        self.found = 8
        self.name({"MLFLOW_TRACKING_URI": self.uri})

    def name(self, environment: dict[str, str]) -> None:
        """Write the cluster file."""
        file = {"images": {"cpu": "a"}, "defaults": {"environment": environment}, "pipeline_root": "s3://bucket/root"}
        self.file.write_text(yaml.safe_dump(file), "utf-8")

    @property
    def models(self) -> Registry:
        return open_registry(self.uri, "gnn-encoder")

    def execute(self, arguments: dict[str, str]) -> None:
        folder = self._folder / f"run-{self.found}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_TRACKING_URI", self.uri)
            inputs = write_inputs(folder, self._dataset, self._backbone, self.found)
            promote(arguments["promote"], **inputs, decision=folder / "decision")

    def retrain(self, host: str, *more: str) -> int:
        arguments = ("retrain", "--preset", "quickstart", "--cluster", str(self.file), *CALM, *more)
        return call(*arguments, *(("--host", host) if host else ()))


@pytest.fixture
def cluster(tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    quick(monkeypatch, tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "KF_PIPELINES_ENDPOINT", "GITHUB_STEP_SUMMARY", "GNN_ENCODER_KFP_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return Cluster(tmp_path, tiny_dataset, tiny_backbone)


@pytest.fixture
def server(cluster: Cluster) -> Iterator[KfpServer]:
    progress = [at("RUNNING"), at("SUCCEEDED")]
    with KfpServer(execute=cluster.execute, progress=progress) as started:
        yield started
        assert started.problems == []


@pytest.mark.slow
def test_new_models_are_made_on_the_cluster_and_compared(
    cluster: Cluster,
    server: KfpServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'another.db'}")  # the cluster's is meant
    assert cluster.retrain(server.url) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("no version of gnn-encoder is registered yet\nsubmitted  quickstart-2")
    assert "succeeded\n" in shown.out
    assert page.read_text() in shown.out and page.read_text().startswith("\n## gnn-encoder: promote\n")
    assert "| MRR@10 | 0.4000 |" in page.read_text()
    assert cluster.models.find(CHAMPION).number == "1"

    # The same again: no server is asked, and none need be there.
    requests_before = len(server.requests)
    assert cluster.retrain("http://127.0.0.1:1", "--fail-on-keep") == 0
    nothing = "nothing to do: data, settings and code are those of version 1, the champion\n"
    assert capsys.readouterr().out == nothing and page.read_text().endswith(nothing)
    assert len(server.requests) == requests_before

    # Worse by other settings: both models in the summary, the decision of the second and not of the first.
    cluster.found = 5
    page.unlink()
    assert cluster.retrain(server.url, "--set", "train_gnn.epochs=3", "--fail-on-keep") == 3
    assert "changed since version 1, the champion: settings\n" in capsys.readouterr().out
    summary = page.read_text()
    assert (
        summary.startswith("\n## gnn-encoder: keep\n") and "20 queries | version 1 | version 2 | difference" in summary
    )
    assert "| MRR@10 | 0.4000 | 0.2500 | -0.1500 |" in summary
    assert f"- registered: {cluster.uri}\n- bundle: {tmp_path / 'run-5' / 'bundle'}\n" in summary
    assert summary.endswith(f"- run: {server.url}/#/runs/details/run-1\n")
    assert cluster.models.find(CHAMPION).number == "1"

    # With another version registered, KFP must not reuse the former decision; all else it may.
    first, second = map(arguments_of, server.seen("POST", ".*/runs"))
    registries = [json.loads(run["promote"])["source_digests"]["registry"] for run in (first, second)]
    assert registries[0] != registries[1]
    assert {task for task in first if first[task] != second[task]} == {"promote", "report", "train-gnn"}


@pytest.mark.slow
def test_a_run_that_fails(cluster: Cluster, server: KfpServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.execute = lambda arguments: None
    server.progress = [at("FAILED", train_gnn="Failed")]
    assert cluster.retrain(server.url, "--fail-on-keep") == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: train-gnn failed; ") and "##" not in shown.out


@pytest.mark.slow
def test_a_run_that_registers_nothing_new(
    cluster: Cluster, server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.execute = lambda arguments: register(cluster.models, "s3://a/b", {"run.data": "other"})
    assert cluster.retrain(server.url) == 2
    error = capsys.readouterr().err
    assert f"no new version of gnn-encoder is in {cluster.uri}: KFP reused" in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_decision_that_was_not_logged(
    cluster: Cluster, server: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def executed(arguments: dict[str, str]) -> None:
        tags = {**json.loads(arguments["promote"])["source_digests"], "decision": "keep", "reason": "it is worse"}
        register(cluster.models, "s3://a/b", tags)

    server.execute = executed
    assert cluster.retrain(server.url) == 2
    error = capsys.readouterr().err
    assert "version 1 is registered (keep: it is worse), but not its decision's figures" in error
    assert error.count("\n") == 1


def test_where_it_runs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.retrain("") == 2  # a cluster file asks for a cluster
    assert "no server: give --host, or set KF_PIPELINES_ENDPOINT" in capsys.readouterr().err
    monkeypatch.setenv("KF_PIPELINES_ENDPOINT", "http://127.0.0.1:1")
    assert cluster.retrain("") == 2
    assert "cannot reach http://127.0.0.1:1" in capsys.readouterr().err
    cluster.name({"MLFLOW_TRACKING_URI": "http://127.0.0.1:1"})
    assert cluster.retrain("") == 2
    assert "cannot use the MLflow store http://127.0.0.1:1: " in capsys.readouterr().err
    # Here a wrong root is what it stumbles over.
    assert cluster.retrain("", "--local", "--root", str(cluster.file)) == 2
    assert f"cannot write to {cluster.file}" in capsys.readouterr().err


@pytest.mark.slow
def test_an_mlflow_that_only_this_side_knows_is_refused_before_anything_runs(
    cluster: Cluster, server: KfpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.name({})
    assert cluster.retrain(server.url) == 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", cluster.uri)
    assert cluster.retrain(server.url) == 2
    error = capsys.readouterr().err
    assert error.count("share: name MLFLOW_TRACKING_URI in the cluster file under defaults.environment") == 2
    assert server.requests == []
    # The steps get it from a config map: this side has to name the same.
    kept = {"retrieval-settings": {"mlflow": "MLFLOW_TRACKING_URI"}}
    file = {"images": {"cpu": "a"}, "defaults": {"config_maps": kept}, "pipeline_root": "s3://bucket/root"}
    cluster.file.write_text(yaml.safe_dump(file), "utf-8")
    assert cluster.retrain(server.url) == 0
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert cluster.retrain(server.url) == 2
    assert "set it here too" in capsys.readouterr().err


MLFLOW = "MLFLOW_TRACKING_URI"


@pytest.mark.parametrize(
    "needs",
    [
        {"environment": {MLFLOW: "http://mlflow"}},
        {"secrets": {"s": {"k": MLFLOW}}},
        {"config_maps": {"c": {"k": MLFLOW}}},
    ],
)
@pytest.mark.parametrize("root", ["", "minio://mlpipeline/v2/artifacts", "gs://bucket/root"])
def test_bundles_that_no_later_run_could_read_are_refused(needs: dict[str, Any], root: str) -> None:
    def training(root: str, needs: dict[str, Any], *overrides: str) -> ClusterJob:
        file = {"images": {"cpu": "a"}, "pipeline_root": root, "steps": {"promote": needs}}
        cluster = settings.Cluster.model_validate(file)
        return submission.training(cluster, "quickstart", None, overrides)

    with pytest.raises(UserError, match=r"add --set promote\.bundle_store=s3://BUCKET/FOLDER, or"):
        training(root, needs)
    assert training(root, needs, "promote.bundle_store=s3://bucket/models")
    assert training("s3://bucket/root", needs)
    assert training(root, {}), "nothing is registered"
