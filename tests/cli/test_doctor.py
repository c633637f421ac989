"""What `gnn-encoder doctor` finds in this environment, and in ones that are not in order."""

import importlib.metadata
from pathlib import Path

import pytest

from gnn_encoder.cli import doctor


def advice(root: Path) -> dict[str, str]:
    return {finding.what: finding.advice for finding in doctor.examine(root)}


def test_this_environment_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    found = advice(tmp_path / "not there yet")
    assert {"python", "packages", "faiss", "torch", "processor", "disk", "mlflow"} <= set(found)
    assert set(found.values()) == {""}


def test_what_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "bm25s":
            raise importlib.metadata.PackageNotFoundError
        return "1.15.1" if name == "faiss-gpu" else installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(doctor, "ROOM", 2**60)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    found = advice(tmp_path)
    assert found["packages"] == "install bm25s"
    assert found["faiss"] == "have one of faiss-cpu and faiss-gpu"
    assert found["disk"].startswith("free space")
    assert "cannot use the MLflow store http://127.0.0.1:9" in found["mlflow"]
    assert not found["torch"]
