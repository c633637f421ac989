"""Four machines, with a real object store between them, train what one trains."""

from pathlib import Path

import pytest
from integration.test_checkpoints import left
from node_machines import machines_of, train_apart
from tiny_graph import write_gnn_inputs

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.settings.graph import BuildGraph

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_four_nodes_train_what_one_trains(
    bucket: str, tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path
) -> None:
    build = BuildGraph(neighbors=3, retrieved=5, edges="labelled", precision="fp32")
    inputs = write_gnn_inputs(tiny_dataset, tiny_backbone, tmp_path / "given", build)
    (alone,) = machines_of(tmp_path / "alone", inputs, 1, f"{bucket}/runs")
    together = machines_of(tmp_path / "four", inputs, 4, f"{bucket}/runs")
    train_apart(alone, together)
    assert read_manifest(together[0].out, "model").metrics["steps"] == 20
    assert left(bucket) == [], "what is finished leaves no checkpoints and no announcement"
