"""The registry before real servers: bundles in an object store, versions in PostgreSQL."""

import shutil
import time
from pathlib import Path

import pytest
from gate import Gate
from gate_inputs import write_inputs
from integration import stored
from integration.tracking_server import TrackingServer
from mlflow.tracking import MlflowClient

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.engines.forgotten_files import Traces
from gnn_encoder.engines.forgotten_stores import clean_runs
from gnn_encoder.promotion.registry import named_bundle
from gnn_encoder.settings.outcome import Promote
from gnn_encoder.steps.promote import promote
from gnn_encoder.storage import CACHE
from gnn_encoder.storage.transfer import get_folder, put_folder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_a_registered_bundle_outlives_the_machine_that_made_it(
    bucket: str, tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    settings = Promote(bundle_store=f"{bucket}/models/", largest_latency_ratio=100.0)

    def decided(name: str, right: int) -> dict[str, object]:
        promote(
            settings, decision=tmp_path / name / "decision",
            **write_inputs(tmp_path / name, tiny_dataset, tiny_backbone, right),
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


def test_a_server_forgets_files_and_labels_of_a_root(
    tracking_server: TrackingServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, notes = "an unheard of word of a passage", list[str]()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_server.uri)
    client = MlflowClient(tracking_server.uri)
    experiment = client.create_experiment("gnn-encoder")
    (tmp_path / "run.log").touch()
    for is_here in (True, False):
        log = tmp_path / ("run.log" if is_here else "of-another-machine.log")
        run = client.create_run(experiment, tags={"root": str(tmp_path), "log": str(log), "error": text}).info.run_id
        for name in ("report/hits/1.js", "profile.json", "counts.md"):
            client.log_text(run, "of all" if is_here and name != "profile.json" else text, name)

    def with_text() -> tuple[int, int]:
        folder = tmp_path / "fetched"
        get_folder(bucket, folder, indexed=False)
        files = [path for path in folder.rglob("*") if path.is_file() and text in path.read_text()]
        shutil.rmtree(folder)
        return len(files), tracking_server.dump().count(text)

    assert with_text() == (4, 2)
    clean_runs(tracking_server.uri, tmp_path, Traces([text]), time.time() + 60, lambda *line: notes.extend(line))
    assert with_text() == (3, 1), "those of a root with the same path on another machine"
    assert [name.rpartition("/")[2] for name in stored.keys(bucket)].count("counts.md") == 2
    assert notes.count("deleted") == 3 and notes[-2] == "left", notes


def test_two_promotions_at_once_on_a_database_server(
    tracking_server: TrackingServer, tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_server.uri)
    monkeypatch.chdir(tmp_path)
    Gate(tmp_path, tiny_dataset, tiny_backbone, tracking_server.uri).race()
