"""A server that plays KFP's API, and the surroundings of whoever submits to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kfp_api import EXAMPLE, KfpServer
from submitting import quick


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quick(monkeypatch, tmp_path)
    for name in ("SA_TOKEN_PATH", "ENDPOINT", "UI_ENDPOINT"):
        monkeypatch.delenv(f"KF_PIPELINES_{name}", raising=False)
    monkeypatch.delenv("GNN_ENCODER_KFP_TOKEN", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")


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
