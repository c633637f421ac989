"""The program of a TrainJob's pod: it trains as a follower, with inputs from the object store and without outputs.

`python -m gnn_encoder.kubeflow.follower JSON`; the JSON is what `runs.trainer.train_job` writes.
"""

import json
import os
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from gnn_encoder.engines.nodes import LeaderLost, NoLeader
from gnn_encoder.errors import UserError, one_line, print_any_text
from gnn_encoder.settings.pipeline import StepArguments
from gnn_encoder.settings.tasks import node_label
from gnn_encoder.storage import Transfer, get_folder

RANKS = ("PET_NODE_RANK", "JOB_COMPLETION_INDEX")
"""Environment variables with the pod's number from 0: of Trainer's torch runtimes, and of Kubernetes' indexed jobs."""
LONGEST = 4096
"""Bytes that Kubernetes keeps of a termination message."""


def follow(given: dict[str, Any]) -> None:
    """Fetches the inputs and runs the step as the follower that this pod is."""
    number = 1 + _rank()
    call = StepArguments.model_validate(given["arguments"])
    settings, count = {**call.settings, "node": number}, call.settings["nodes"]
    call = call.model_copy(update={"settings": settings, "label": node_label(call.label, number, count)})
    step = getattr(import_module(f"gnn_encoder.steps.{given['step']}"), given["step"])
    with tempfile.TemporaryDirectory(prefix="follower-") as folder:
        inputs = {name: Path(folder, "inputs", name) for name in given["inputs"]}
        for name, address in given["inputs"].items():
            # KFP's launcher writes no index. The nodes meet only if the digests in all manifests are equal.
            get_folder(address, inputs[name], Transfer(f"fetching {address}"), indexed=False)
        outputs = {name: Path(folder, "outputs", name) for name in given["outputs"]}
        step(call.model_dump_json(), **inputs, **outputs)


def main(text: str) -> int:
    """Returns the exit code; an error is written where Kubernetes reads the reason of a container's end."""
    print_any_text()
    given = json.loads(text)
    try:
        follow(given)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        cause = error.__context__ if isinstance(error, SystemExit) and error.__context__ else error
        if isinstance(cause, LeaderLost | NoLeader):
            # Not a failure of this pod: Kubernetes would start it again and keep its GPUs, but the leader's next
            # attempt has a TrainJob of its own.
            print(f"{cause}", file=sys.stderr)
            return 0
        with suppress(OSError):
            Path(given["termination_log"]).write_bytes(one_line(cause).encode()[:LONGEST])
        if isinstance(error, UserError):
            print(f"{given['step']}: {error}", file=sys.stderr)
            return 2
        raise
    return 0


def _rank() -> int:
    for name in RANKS:
        if (value := os.environ.get(name, "")).isdecimal():
            return int(value)
    raise UserError(f"none of {', '.join(RANKS)} is set: use a runtime of Kubeflow Trainer for torch")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
