"""Four pods of a TrainJob, with a real object store between them, train what one process trains."""

from pathlib import Path

import pytest
from integration.test_checkpoints import left
from tiny_graph import write_gnn_inputs
from trainjobs import assert_close, cluster, stored, trained

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.flow.declared import declared
from gnn_encoder.settings.graph import BuildGraph, TrainGnn
from gnn_encoder.steps.train_gnn import train_gnn

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_four_pods_train_what_one_process_trains(
    bucket: str, tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = BuildGraph(neighbors=3, retrieved=5, edges="labelled", precision="fp32")
    artifacts = write_gnn_inputs(tiny_dataset, tiny_backbone, tmp_path / "given", build)
    inputs = {name: path for name, path in artifacts.items() if name in declared("train_gnn").inputs}
    settings = TrainGnn(
        epochs=1, batch_size=3, mask_fraction=0.2, learning_rate=1e-3, precision="fp32", dropout=0.0, dev_queries=0,
        hard_negatives="retrieved", cache_refreshes=2, checkpoint_seconds=1e-9,
    )  # fmt: skip
    with cluster(monkeypatch, tmp_path / "cluster", f"{bucket}/checkpoints"):
        alone = trained(train_gnn, settings, inputs, tmp_path / "alone")
        addresses = stored(inputs, f"{bucket}/run")
        several = settings.model_copy(update={"nodes": 4})
        assert_close(trained(train_gnn, several, inputs, tmp_path / "four", addresses), alone)
    assert read_manifest(tmp_path / "four", "model").metrics["steps"] == 20
    assert [key for key in left(bucket) if "run/" not in key] == [], "no call, no result and no checkpoints"
