"""A training of a few steps of a small model on random numbers."""

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
