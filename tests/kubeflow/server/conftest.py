"""A server that plays KFP's API, and the surroundings of whoever submits to it."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from kfp_api import EXAMPLE, KfpServer
from packages import remembered

from gnn_encoder import data
from gnn_encoder.kubeflow import server as kubeflow_server
from gnn_encoder.kubeflow import submission

digest = functools.cache(data.source_digest)  # a second of every submission


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GNN_ENCODER_KFP_TOKEN", "KF_PIPELINES_SA_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("KF_PIPELINES_ENDPOINT", "KF_PIPELINES_UI_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setattr(kubeflow_server, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(data, "source_digest", digest)
    monkeypatch.setattr(submission, "package", remembered)


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
