"""What `gnn-encoder doctor` finds in this environment, and in ones that are not in order."""

import importlib.metadata
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from command_line import call
from trained_root import write_beir

from gnn_encoder.artifacts import Dataset
from gnn_encoder.cli import doctor


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


def advice(root: Path) -> dict[str, str]:
    return {finding.subject: finding.advice for finding in doctor.examine(root)}


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with a terabyte free, whatever the one of this machine has."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(2 * 10**12, 10**12, 10**12))


def test_this_environment_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    by_subject = advice(tmp_path / "not there yet")
    assert {"python", "packages", "faiss", "torch", "processor", "disk", "mlflow"} <= set(by_subject)
    assert set(by_subject.values()) == {""}


def test_what_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "bm25s":
            raise importlib.metadata.PackageNotFoundError
        return "1.15.1" if name == "faiss-gpu" else installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(doctor, "ROOM", 2**60)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    by_subject = advice(tmp_path)
    assert by_subject["packages"] == "install bm25s"
    assert by_subject["faiss"] == "have one of faiss-cpu and faiss-gpu"
    assert by_subject["disk"].startswith("free space")
    assert "cannot use the MLflow store http://127.0.0.1:9" in by_subject["mlflow"]
    assert not by_subject["torch"]


FORECAST = ("doctor", "--preset", "msmarco")


def test_a_run_is_forecast_from_counts_or_from_the_data(
    tmp_path: Path, tiny_dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    beir = write_beir(tiny_dataset, tmp_path / "beir")
    root = ("--root", str(tmp_path / "root"))
    assert call(*FORECAST, "--dataset", str(beir), "--set", "ingest.format=auto", *root) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["encode_with_labels", "3"] for line in lines)
    assert any(line.startswith("✓ the run") and str(tmp_path / "root") in line for line in lines)
    assert any(line.startswith("✓ temporary") for line in lines)
    assert not (tmp_path / "root").exists(), "nothing is written"
    assert call(*FORECAST, "--passages", str(10**12), "--queries", "1000000", *root) == 2
    shown, complaint = capsys.readouterr()
    assert "✗ the run" in shown and "free space (gnn-encoder prune)" in shown and "of these checks failed" in complaint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("doctor", "--dataset", "x"), "add --preset"),
        (FORECAST, "no data to measure: give --dataset, or its --passages and --queries"),
        ((*FORECAST, "--passages", "10"), "--passages and --queries belong together"),
        ((*FORECAST, "--dataset", "nowhere"), "dataset nowhere does not exist"),
    ],
)
def test_a_forecast_needs_a_preset_and_sizes(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    assert message in capsys.readouterr().err
