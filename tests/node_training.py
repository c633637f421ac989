"""One node of a training, in a process of its own: `node_training.py JSON` with step, settings, inputs and output.

Some gradients are zero but for rounding, and AdamW's small eps would make whole steps of them.
"""

import json
import sys
from functools import partial
from importlib import import_module

import torch

from gnn_encoder.settings.pipeline import StepArguments

torch.optim.AdamW = partial(torch.optim.AdamW, eps=1e-4)  # type: ignore[assignment, misc]

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    arguments = StepArguments(settings=given["settings"], label=given["label"])
    step = getattr(import_module(f"gnn_encoder.steps.{given['step']}"), given["step"])
    step(arguments.model_dump_json(), addresses=given["addresses"], **given["inputs"], **given["out"])
