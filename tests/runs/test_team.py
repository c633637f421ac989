"""A step with two processes ends as with one, and a follower that cannot start is an error, not a long wait."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, TrainingSet, drafting, read_manifest
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings import TrainDualEncoder
from gnn_encoder.steps.train_dual_encoder import train_dual_encoder


@pytest.fixture
def inputs(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path) -> dict[str, Path]:
    labels = tiny_dataset.split_qrels("train")
    negatives = np.full((len(labels.query), 1), -1, dtype=np.int32)
    with drafting(tmp_path / "training_set", "training_set") as draft:
        texts, origin = tiny_dataset.query_texts(labels.query), np.zeros(len(labels.query), dtype=np.int8)
        TrainingSet(texts, labels.query, labels.passage, negatives, origin).write(draft)
    with drafting(tmp_path / "dpr", "model") as draft:
        DualEncoder.from_backbone(
            str(tiny_backbone), pooling="mean", normalize="no", query_length=32, passage_length=32, share_encoders=False
        ).save(draft.path)
    return {"dataset": tiny_dataset.path, "training_set": tmp_path / "training_set", "dpr": tmp_path / "dpr"}


SETTINGS = {"epochs": 2, "batch_size": 16, "start_from": "dpr", "precision": "fp32", "dropout": 0.0, "dev_queries": 10}


def test_two_processes(inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNN_ENCODER_CHECKPOINTS", str(tmp_path / "checkpoints"))
    losses, threads = [], torch.get_num_threads()
    for processes in (1, 2):
        out = tmp_path / f"out-{processes}"
        train_dual_encoder(TrainDualEncoder(**SETTINGS, processes=processes), **inputs, dual_encoder=out)
        DualEncoder.load(out)
        losses.append(read_manifest(out, "model").metrics["final_loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and torch.get_num_threads() == threads
    assert not any((tmp_path / "checkpoints").glob("*"))


def test_a_follower_that_does_not_start(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNN_ENCODER_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(RuntimeError, match="did not start"):
        train_dual_encoder(TrainDualEncoder(**SETTINGS, processes=2), **inputs, dual_encoder=tmp_path / "out")
    assert not (tmp_path / "out").exists()
