"""A training in a process of its own, to be killed: `training.py OUT` writes the weights and where it began to OUT.

Its checkpoints are larger than a part of a transfer, and one follows every step.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from gnn_encoder.settings.shared import Optimization
from gnn_encoder.tracking.context import Context
from gnn_encoder.tracking.mlflow_runs import step_log
from gnn_encoder.training import checkpoint
from gnn_encoder.training.loop import Objective, fit

WIDTH, STEPS = 1500, 12
SETTINGS = Optimization(epochs=1, learning_rate=0.01, checkpoint_seconds=1e-9, checkpoint_share=1.0, precision="fp32")


class Batches:
    """Random rows, the same in every run."""

    steps_per_epoch, batch_examples = STEPS, 4

    def draws(self, epoch: int) -> Iterator[int]:
        return iter(range(STEPS))

    def batch(self, drawn: int) -> torch.Tensor:
        time.sleep(0.3)
        return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(drawn))


def main(out: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 1))
    steps: list[int] = []
    load = checkpoint.load

    def loading(*arguments):
        position, kept = load(*arguments)
        steps.append(position.step)
        return position, kept

    checkpoint.load = loading
    with step_log("test", params={}, tags={}) as run:
        context = Context("test", run, "key")
        fit(Objective(net, Batches(), lambda batch: net(batch).square().mean()), SETTINGS, context)
        context.checkpoints().drop()
    save_file({**net.state_dict(), "began": torch.tensor(steps)}, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
