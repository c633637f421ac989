"""A training of a few steps of a small model on random numbers; two small encoders, and examples for them."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import nn

from gnn_encoder.artifacts import Dataset, TrainingSet
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.shared import Optimization

SETTINGS = Optimization(epochs=3, learning_rate=0.01, checkpoint_seconds=1e-9, precision="fp32")


class Interrupted(Exception):
    pass


class Batches:
    steps_per_epoch = 5
    batch_examples = 4

    def draws(self, epoch):
        generator = np.random.default_rng(epoch)
        for _ in range(self.steps_per_epoch):
            yield generator.standard_normal((4, 6)).astype(np.float32)

    def batch(self, drawn):
        return torch.from_numpy(drawn)


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1))


def loss_until(net: nn.Module, stop_at: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """The mean square of a batch's outputs; the step `stop_at`, from 0, is interrupted."""
    steps = count()

    def loss(batch: torch.Tensor) -> torch.Tensor:
        if next(steps) == stop_at:
            raise Interrupted
        return net(batch).square().mean()

    return loss


def two_encoders(backbone: Path, length: int = 32) -> DualEncoder:
    """Encoders with weights of their own, and torch's random state as after loading them from seed 0."""
    torch.manual_seed(0)
    return DualEncoder.from_backbone(
        str(backbone), pooling="mean", normalize="no", query_length=length, passage_length=length, share_encoders=False
    )


def examples_of(data: Dataset, negatives: np.ndarray | None = None) -> TrainingSet:
    """An example of each labelled training pair, by default without negatives."""
    labels = data.split_qrels("train")
    count = len(labels.query)
    negatives = np.full((count, 1), -1, np.int32) if negatives is None else negatives
    return TrainingSet(data.query_texts(labels.query), labels.query, labels.passage, negatives, np.zeros(count))
