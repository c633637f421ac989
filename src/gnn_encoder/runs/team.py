"""The processes that train beside a step's own, where `processes` is above 1.

The step's process is the leader: it alone logs, checkpoints and writes outputs. Each follower runs the same step
function on the same inputs, with outputs that are thrown away, and ends where the training ends (`training.ranks`).
On GPUs each process has one; on a CPU they share the cores.
"""

import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gnn_encoder.artifacts.folder import drafting
from gnn_encoder.errors import UserError
from gnn_encoder.settings import StepSettings, step_settings
from gnn_encoder.tracking.context import Context
from gnn_encoder.tracking.mlflow_runs import StepRun
from gnn_encoder.training.ranks import TrainingOver

WAIT = timedelta(hours=12)
"""Followers wait for the leader, which looks at dev queries after an epoch alone."""
START_SECONDS, END_SECONDS = 300.0, 20.0


@contextmanager
def team(
    name: str, settings: StepSettings, inputs: dict[str, Path], outputs: dict[str, str], key: str
) -> Iterator[None]:
    """Train with the other processes inside the block.

    Raises:
        UserError: more processes than GPUs.
        RuntimeError: a process ended before it could begin.
    """
    size: int = getattr(settings, "processes")  # noqa: B009
    if torch.cuda.is_available() and torch.cuda.device_count() < size:
        raise UserError(f"{name}.processes = {size}: this machine has {torch.cuda.device_count()} GPUs, one for each")
    with tempfile.TemporaryDirectory() as folder:
        call = {
            "name": name, "settings": settings.model_dump(), "key": key, "size": size, "meeting": f"{folder}/meeting",
            "inputs": {k: str(path) for k, path in inputs.items()}, "outputs": outputs,
        }  # fmt: skip
        command = [sys.executable, "-m", "gnn_encoder.runs.team"]
        threads = torch.get_num_threads()
        followers = [subprocess.Popen([*command, json.dumps({**call, "rank": rank})]) for rank in range(1, size)]
        try:
            _join(f"{folder}/meeting", 0, size, followers)
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            torch.set_num_threads(threads)
            for follower in followers:
                _end(follower)


def _end(follower: subprocess.Popen[bytes]) -> None:
    """Without its leader a follower ends by itself, unless it still waits to begin."""
    try:
        follower.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        follower.kill()
        follower.wait()


def _join(meeting: str, rank: int, size: int, followers: list[subprocess.Popen[bytes]]) -> None:
    """Enter the process group; the leader looks whether its followers come."""
    store = dist.FileStore(meeting, size)  # type: ignore[attr-defined]
    store.set(f"here-{rank}", "")
    began = time.monotonic()
    while rank == 0 and not store.check([f"here-{r}" for r in range(size)]):
        if any(follower.poll() is not None for follower in followers) or time.monotonic() - began > START_SECONDS:
            raise RuntimeError("a process of the team did not start; its own message stands above")
        time.sleep(0.1)
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=WAIT)


def follow(call: str) -> None:
    """A follower's whole life."""
    c = json.loads(call)
    settings = step_settings(c["name"]).model_validate(c["settings"])
    module = importlib.import_module(f"gnn_encoder.steps.{c['name']}")
    function = getattr(module, c["name"]).__wrapped__
    _join(c["meeting"], c["rank"], c["size"], [])
    context = Context(c["name"], StepRun(), c["key"])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        inputs = {key: Path(path) for key, path in c["inputs"].items()}
        drafts = {k: stack.enter_context(drafting(Path(folder) / k, schema)) for k, schema in c["outputs"].items()}
        try:
            function(context, settings, **inputs, **drafts)
        except TrainingOver:
            stack.pop_all()  # the drafts go with the folder
    dist.destroy_process_group()


if __name__ == "__main__":
    follow(sys.argv[1])
