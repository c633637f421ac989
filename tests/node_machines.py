"""Machines that train together: processes on loopback, each with a root of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from gnn_encoder.settings.tasks import shared_calls
from safetensors.torch import load_file

from gnn_encoder.engines import nodes
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.settings.pipeline import Call
from gnn_encoder.tracking.context import CHECKPOINTS, TOKENS

LOST = 8
"""Seconds without a sign of life after which a node is lost."""
SETTINGS = {
    "epochs": 1, "batch_size": 3, "mask_fraction": 0.2, "learning_rate": 1e-3, "precision": "fp32", "dropout": 0.0,
    "dev_queries": 0, "hard_negatives": "retrieved", "cache_refreshes": 2, "checkpoint_seconds": 1e-9,
}  # fmt: skip
OUTPUT = {
    "train_dpr": "dpr", "train_cross_encoder": "cross_encoder", "train_dual_encoder": "dual_encoder",
    "train_gnn": "gnn_encoder", "train_query_generator": "query_generator", "train_reranker": "reranker",
}  # fmt: skip
"""Step → its output."""
PROGRAM = Path(__file__).parent / "node_training.py"
"""It is not imported, because it changes AdamW."""


class Machine:
    """A node on a machine of its own: its copies of the inputs, its temporary files, its output."""

    def __init__(self, folder: Path, inputs: dict[str, Path], call: Call, checkpoints: str) -> None:
        self.folder, self.out, self.log, self._call = folder, folder / "out", folder / "log", call
        self._checkpoints = checkpoints
        self._given = {name: shutil.copytree(path, folder / name) for name, path in inputs.items()}
        self.addresses: dict[str, str] = {}
        """Input → its address for other machines."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Machine":
        """An attempt of the step; nothing of an earlier attempt is left on the machine."""
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        (self.folder / "tmp").mkdir()
        source = [Path(nodes.__file__).parents[2], PROGRAM.parent]
        own = {"PYTHONPATH": os.pathsep.join(map(str, source)), "TMPDIR": str(self.folder / "tmp")}
        own |= {
            CHECKPOINTS: self._checkpoints,
            TOKENS: str(self.folder / "tokens"),
            nodes.LOST: str(LOST),
            "OMP_NUM_THREADS": "1",
        }
        given: dict[str, Any] = {"settings": self._call.settings.model_dump(), "label": self._call.label}
        given |= {"step": self._call.step, "out": {OUTPUT[self._call.step]: str(self.out)}}
        given |= {"inputs": {name: str(path) for name, path in self._given.items()}, "addresses": self.addresses}
        command = [sys.executable, str(PROGRAM), json.dumps(given)]
        inherited = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=inherited | own, stdout=log, stderr=log)
        return self

    def kill(self) -> None:
        """End what may still run."""
        if self.process and self.process.poll() is None:
            self.process.kill()

    def end(self, seconds: float = 300) -> str:
        """The log of the attempt, when it is over."""
        self.process.wait(seconds)
        return self.log.read_text("utf-8")

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """All tensors of the output."""
        files = sorted(self.out.rglob("*.safetensors"))
        return {f"{file.relative_to(self.out)}.{name}": w for file in files for name, w in load_file(file).items()}


def machines_of(
    folder: Path, inputs: dict[str, Path], count: int, checkpoints: str, **settings: object
) -> list[Machine]:
    """A machine for each of the calls that train together, with their checkpoints in one folder or store."""
    own = TrainGnn.model_validate({**SETTINGS, **settings, "nodes": count})
    return machines_for(folder, inputs, shared_calls("train_gnn", own), checkpoints)


def machines_for(folder: Path, inputs: dict[str, Path], made: dict[str, Call], checkpoints: str) -> list[Machine]:
    """A machine for each training among some calls."""
    return [Machine(folder / name, inputs, call, checkpoints) for name, call in made.items() if call.step in OUTPUT]


def train_apart(alone: Machine, together: list[Machine]) -> None:
    """Train on one machine, then on several; these must end with its weights to 1e-5."""
    try:
        assert "steps" in alone.start().end()
        for machine in together[1:]:  # the followers begin first, and wait
            machine.start()
        together[0].start()
        logs = [machine.end() for machine in together]
    finally:
        for machine in (alone, *together):
            machine.kill()
    assert [machine.process.returncode for machine in together] == [0] * len(together), logs
    assert all(not machine.weights for machine in together[1:]), "only the leader has the model"
    for name, weight in alone.weights.items():
        assert (together[0].weights[name] - weight).abs().max() < 1e-5, name


def of_train_gnn(made: dict[str, Call]) -> list[tuple[str, Any]]:
    return [(name, call) for name, call in made.items() if call.step == "train_gnn"]
