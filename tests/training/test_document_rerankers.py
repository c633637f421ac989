"""Re-rankers in documents: each kind is trained on the tiny documents, and what may move moves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import first_stage
from safetensors.numpy import load_file

from gnn_encoder.artifacts import Dataset, DocumentGraph, Run, drafting, read_manifest
from gnn_encoder.document_graph.building import document_graph
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import DOCUMENT_KINDS
from gnn_encoder.steps.train_reranker import train_reranker
from gnn_encoder.tracking.context import CHECKPOINTS


def tiny_graph(data: Dataset) -> DocumentGraph:
    of = data.structure
    assert of is not None
    return document_graph(of.passages, of.document, of.parent, of.place, *of.citations)


@pytest.fixture
def inputs(tiny_documents: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    queries, hits = first_stage(tiny_documents)
    with drafting(tmp_path / "first_run", "run") as draft:
        Run.from_hits(queries, hits, np.zeros(hits.shape)).write(draft)
    with drafting(tmp_path / "graph", "document_graph") as draft:
        tiny_graph(tiny_documents).write(draft)
    paths = {"first_run": tmp_path / "first_run", "document_graph": tmp_path / "graph"}
    return {"dataset": tiny_documents.path, **paths}


def train(inputs: dict[str, Path], out: Path, backbone: Path, kind: str, **settings: Any) -> dict[str, np.ndarray]:
    values = {
        "kind": kind, "backbone": str(backbone), "batch_size": 24, "epochs": 2, "learning_rate": 3e-3,
        "head_learning_rate": 3e-3, "precision": "fp32", "dev_queries": 20, "token_width": 16, "query_length": 24,
        "passage_length": 40, "graph_dropout": 0.1, "graph_heads": 4,
    }  # fmt: skip
    train_reranker(TrainReranker.model_validate(values | settings), **inputs, reranker=out)
    return {name: array for file in sorted(out.glob("*.safetensors")) for name, array in load_file(file).items()}


@pytest.mark.parametrize("kind", DOCUMENT_KINDS)
def test_every_kind_trains(kind: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    weights = train(inputs, tmp_path / "out", tiny_backbone, kind)
    assert np.isfinite(read_manifest(tmp_path / "out").metrics["final_loss"])
    assert all(np.abs(weights[f"network.layers.{layer}.type_weights"]).max() > 0 for layer in range(3))
    assert kind == "mim" or weights["mixture"] != 0
    before = load_file(tiny_backbone / "model.safetensors")
    # The vocabulary gets two markers at its end.
    moved = {
        name
        for name in before
        if name in weights and not np.array_equal(before[name], weights[name][: len(before[name])])
    }
    assert not [name for name in moved if "embeddings." in name or "layer.0." in name]
    assert any("layer.1." in name for name in moved)
