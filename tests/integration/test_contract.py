"""All steps as a cluster runs them: in containers that share nothing but the object store and the MLflow server."""

import os
from pathlib import Path

import numpy as np
import pytest
import yaml
from integration.engine import Engine
from integration.kfp_launcher import Containers, store_environment
from integration.tracking_server import TrackingServer
from kfp_process_launcher import PackageRun
from trained_root import Trained, tiny_settings

from gnn_encoder.artifacts import Bundle, Report
from gnn_encoder.engines.provenance import graph_arguments
from gnn_encoder.flow.arguments import task_name
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.package import write_package
from gnn_encoder.pipelines.train import train
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.systems import LABEL_FIELD, LEXICAL
from gnn_encoder.storage import get_folder, put_folder
from gnn_encoder.storage.s3 import Address, client
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.tracking.mlflow_runs import PARENT_RUN, create_run, experiment_id, reaching

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


def test_the_whole_pipeline_through_the_store(
    engine: Engine, bucket: str, tracking_server: TrackingServer, trained: Trained,
    tiny_backbone: Path, tiny_seq2seq: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # With the tiny models' [CLS] all scores of a query would be equal but for their last digits.
    mean = "shared.pooling=mean"
    here = trained.run("--set", mean, "--root", str(tmp_path / "root"))
    put_folder(trained.root.parent / "beir", f"{bucket}/data")
    put_folder(tiny_backbone, f"{bucket}/backbone")
    put_folder(tiny_seq2seq, f"{bucket}/seq2seq")
    monkeypatch.setenv("GNN_ENCODER_CACHE", str(tmp_path / "cache"))
    preset = tmp_path / "tiny.yaml"
    text = yaml.safe_dump(tiny_settings(tiny_backbone, tiny_seq2seq))
    preset.write_text(
        text.replace(str(tiny_backbone), f"{bucket}/backbone").replace(str(tiny_seq2seq), f"{bucket}/seq2seq")
    )
    graph = train(load_settings(str(preset), [f"ingest.dataset={bucket}/data", mean]))
    with reaching(tracking_server.uri) as tracked:
        parent = create_run(tracked, experiment_id(tracked), "on a cluster")
    environment = {
        **store_environment(), "MLFLOW_TRACKING_URI": tracking_server.uri, PARENT_RUN: parent,
        CHECKPOINTS: f"{bucket}/checkpoints", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    # Sums over another number of threads are other sums, and the models here are random ones.
    environment |= {name: value for name, value in os.environ.items() if name == "OMP_NUM_THREADS"}

    package = tmp_path / "package.yaml"
    write_package(graph, graph_arguments(graph, registry=tracking_server.uri), Cluster(), package)
    run = PackageRun(package, f"{bucket}/runs/1")
    done = list(run.tasks(Containers(engine, environment).execute))

    assert set(done) == {task_name(node.title) for node in graph.nodes}
    get_folder(run.uri("report", "report"), tmp_path / "report", indexed=False)
    there = Report.read(tmp_path / "report").metrics["results"]
    for split, systems in Report.read(here.outputs["report"]).metrics["results"].items():
        for system, figures in systems.items():
            # Two machines' sums differ in their last digits, and some hits of random models are near to each other.
            within = 1e-6 if system in (LEXICAL, LABEL_FIELD) else 0.01
            assert there[split][system] == pytest.approx(figures, abs=within), (split, system)
    # The vectors that both runs' encoders and graphs make are alike.
    vectors, local = [], here.outputs["bundle_dual_encoder: Dual encoder/bundle"].parents[1]
    for task in ("bundle-dual-encoder-dual-encoder", "encode-corpus"):
        get_folder(run.uri(task, "bundle"), tmp_path / task, indexed=False)
        pair = [Bundle.read(folder).vectors.astype(np.float32) for folder in (tmp_path / task, local / task / "bundle")]
        np.testing.assert_allclose(*pair, atol=0.01)
        vectors.append(pair[0])
    assert np.abs(vectors[0] - vectors[1]).max() > 0.1  # the control: other systems have other vectors
    # Nothing to resume is left behind, and steps have logged their runs and their ends.
    address = Address.parse(f"{bucket}/checkpoints")
    assert "Contents" not in client().list_objects_v2(Bucket=address.bucket, Prefix=address.prefix)
    with reaching(tracking_server.uri) as tracked:
        runs = tracked.search_runs([experiment_id(tracked)], f"tags.mlflow.parentRunId = '{parent}'")
        (version,) = tracked.search_model_versions("name = 'gnn-encoder'")
    titles = [node.title for node in graph.nodes]
    ended = {one.info.run_name: one.info.status for one in runs}
    assert set(ended.values()) == {"FINISHED"} and set(ended) <= set(titles)
    assert {"train_dpr", "train_gnn", "report"} <= set(ended)  # a step of less than a second may have none
    assert {one.data.tags["image"].split("@")[0] for one in runs} == {"0.1.0"}
    bundle_uri = run.uri("choose-bundle", "chosen_bundle")  # the recommended one of several
    assert version.tags["bundle"] == bundle_uri, "found where it is, not where the step saw it"
