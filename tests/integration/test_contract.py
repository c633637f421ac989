"""All steps as a cluster runs them: in containers that share nothing but the object store and the MLflow server."""

import os
from pathlib import Path

import pytest
import yaml
from integration.engine import Engine
from integration.kfp_launcher import Launcher, store_environment
from integration.tracking_server import TrackingServer
from trained_root import Trained, tiny_settings

from gnn_encoder.artifacts import Report
from gnn_encoder.runs import launch
from gnn_encoder.runs.provenance import step_arguments
from gnn_encoder.settings.calls import titles
from gnn_encoder.settings.pipeline import PIPELINES, Settings
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.storage import get_folder, put_folder
from gnn_encoder.storage.s3 import Address, client
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.tracking.mlflow_runs import PARENT_RUN, create_run, experiment_id, reaching

STEPS = PIPELINES["train"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


def test_the_whole_pipeline_through_the_store(
    engine: Engine, bucket: str, tracking_server: TrackingServer, trained: Trained,
    tiny_backbone: Path, tiny_seq2seq: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    here = trained.run()
    put_folder(trained.root.parent / "beir", f"{bucket}/data")
    put_folder(tiny_backbone, f"{bucket}/backbone")
    put_folder(tiny_seq2seq, f"{bucket}/seq2seq")
    monkeypatch.setenv("GNN_ENCODER_CACHE", str(tmp_path / "cache"))
    preset = tmp_path / "tiny.yaml"
    text = yaml.safe_dump(tiny_settings(tiny_backbone, tiny_seq2seq))
    preset.write_text(
        text.replace(str(tiny_backbone), f"{bucket}/backbone").replace(str(tiny_seq2seq), f"{bucket}/seq2seq")
    )
    settings = load_settings(str(preset), [f"ingest.dataset={bucket}/data"])
    with reaching(tracking_server.uri) as tracked:
        parent = create_run(tracked, experiment_id(tracked), "on a cluster")
    environment = {
        **store_environment(), "MLFLOW_TRACKING_URI": tracking_server.uri, PARENT_RUN: parent,
        CHECKPOINTS: f"{bucket}/checkpoints", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    # Sums over another number of threads are other sums, and the models here are random ones.
    environment |= {name: value for name, value in os.environ.items() if name == "OMP_NUM_THREADS"}

    launcher = Launcher(engine, launch.pipeline_file("train"), f"{bucket}/runs/1", environment)
    done = list(launcher.run(step_arguments(settings, STEPS, registry=tracking_server.uri)))

    assert len(done) == len(titles(Settings()))
    get_folder(launcher.artifacts["report", "report"]["uri"], tmp_path / "report", indexed=False)
    there = Report.read(tmp_path / "report").metrics["results"]
    for split, systems in Report.read(here.outputs["report"]).metrics["results"].items():
        for system, figures in systems.items():
            assert there[split][system] == pytest.approx(figures, abs=1e-6), (split, system)
    # Nothing to resume is left behind, and every step has logged its run and its end.
    address = Address.parse(f"{bucket}/checkpoints")
    assert "Contents" not in client().list_objects_v2(Bucket=address.bucket, Prefix=address.prefix)
    with reaching(tracking_server.uri) as tracked:
        runs = tracked.search_runs([experiment_id(tracked)], f"tags.mlflow.parentRunId = '{parent}'")
        (version,) = tracked.search_model_versions("name = 'gnn-encoder'")
    assert {run.info.run_name: run.info.status for run in runs} == dict.fromkeys(titles(Settings()), "FINISHED")
    assert {run.data.tags["image"].split("@")[0] for run in runs} == {"0.1.0"}
    made = launcher.artifacts["choose-bundle", "chosen_bundle"]["uri"]  # the recommended one of several
    assert version.tags["bundle"] == made, "found where it is, not where the step saw it"
