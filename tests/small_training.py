"""A training of a few steps of a small model on random numbers."""

from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from torch import nn

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
