"""Steps of several processes that train nothing. In `train_dual_encoder` rank 0 is busy for ten minutes, rank 1 fails.

How it fails is in the environment variable FAILS: `die`, `user error`, or not set: it does not. Each process writes
its id to a file of its own in the folder that the variable PIDS names.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gnn_encoder.artifacts import Draft
from gnn_encoder.engines.step import step
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.tracking.context import Context
from gnn_encoder.training.ranks import is_leader, meet


@step(dual_encoder="model")
def train_dual_encoder(
    context: Context, settings: TrainDualEncoder, dataset: Path, dual_encoder: Draft
) -> dict[str, Any]:
    Path(os.environ["PIDS"], f"pid-{os.getpid()}").touch()
    meet()
    if not is_leader():
        match os.environ.get("FAILS"):
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "user error":
                raise UserError("the data are wrong: mend them")
    time.sleep(600)
    return {}


@step(model="model")
def count_threads(context: Context, settings: TrainDualEncoder, model: Draft) -> dict[str, Any]:
    return {"threads": torch.get_num_threads()}


@step(model="model")
def fail_after_a_point(context: Context, settings: TrainDualEncoder, model: Draft) -> dict[str, Any]:
    context.metric("loss", 0.5, 1)
    raise UserError("the data are wrong: mend them")


if __name__ == "__main__":
    import elastic_steps  # the ranks import the step by its module's name

    settings = TrainDualEncoder(processes=2)
    elastic_steps.train_dual_encoder(settings, dataset=Path(sys.argv[1]), dual_encoder=Path(sys.argv[2]))
