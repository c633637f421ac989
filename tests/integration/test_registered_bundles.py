"""The registry before real servers: bundles in an object store, versions in PostgreSQL."""

import shutil
from pathlib import Path

import pytest
from gate import Gate
from gate_inputs import write_inputs
from integration.tracking_server import TrackingServer

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.promotion.registry import named_bundle
from gnn_encoder.settings.outcome import Promote
from gnn_encoder.steps.promote import promote
from gnn_encoder.storage import CACHE
from gnn_encoder.storage.transfer import put_folder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_a_registered_bundle_outlives_the_machine_that_made_it(
    bucket: str, tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    settings = Promote(bundle_store=f"{bucket}/models/", largest_latency_ratio=100.0)

    def decided(name: str, found: int) -> dict[str, object]:
        promote(
            settings, decision=tmp_path / name / "decision",
            **write_inputs(tmp_path / name, tiny_dataset, tiny_backbone, found),
        )  # fmt: skip
        return Decision.read(tmp_path / name / "decision").facts

    first = decided("first", 8)
    digest = read_manifest(tmp_path / "first" / "bundle").digest
    assert first["bundle"] == f"{bucket}/models/{digest}"
    shutil.rmtree(tmp_path / "first")
    worse = decided("worse", 3)
    assert worse["decision"] == "keep" and worse["comparison"]["strata"]["all"]["other"]["RR@10"] == 8 / 20
    assert read_manifest(named_bundle("models:/gnn-encoder@champion", tmp_path), "bundle").digest == digest

    # What is there is not sent again; if somebody writes over it, the champion cannot be compared, and keeps its place.
    again = decided("again", 8)
    assert "this very bundle is the champion already" in str(again["reason"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    put_folder(tmp_path / "other", str(first["bundle"]))
    last = decided("last", 18)
    assert last["decision"] == "keep"
    assert "the bundle of the champion, version 1, cannot be read (" in str(last["reason"])


def test_two_promotions_at_once_on_a_database_server(
    tracking_server: TrackingServer, tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_server.uri)
    monkeypatch.chdir(tmp_path)
    Gate(tmp_path, tiny_dataset, tiny_backbone, tracking_server.uri).race()
