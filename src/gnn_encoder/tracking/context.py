"""The context of a step: logging, progress and checkpoints, for the step and the training inside the step."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.artifacts.history import Curves, History
from gnn_encoder.storage.checkpoint_store import Checkpoints
from gnn_encoder.storage.s3 import is_remote
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.tracking.progress import Progress, emit

CHECKPOINTS = "GNN_ENCODER_CHECKPOINTS"
"""Environment variable: the folder or `s3://` address of the checkpoints, separate from the outputs of steps."""
TOKENS = "GNN_ENCODER_TOKENS"
"""Environment variable: the folder of the token files (`gnn_encoder.inference.tokens`), a cache that steps share."""


@dataclass
class Context:
    """One call of one step."""

    step: str
    log: StepLog
    key: str
    """Digest of code, settings and inputs; two calls with the same key do the same work."""
    title: str = ""
    """The call's name in the console; empty: the step's name."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Digests of sources outside the pipeline that the call depends on (`StepArguments.source_digests`)."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Input name → address of the input for other machines, if the caller gave an address."""
    curves: Curves = field(default_factory=dict)
    """The points that `metric` logged."""
    history: History = field(default_factory=dict)
    """The records of the steps before, which the outputs will have, and to which this call's record will be added."""

    def progress(self, stage: str, total: int, unit: str) -> Progress:
        """Starts the progress of a stage of `total` units; call `.advance()` on the result."""
        return Progress(self.title or self.step, stage, total, unit)

    def metric(self, name: str, value: float, at: int) -> None:
        """Log a point of a curve, at step or epoch `at`."""
        self.curves.setdefault(name, []).append((at, value))
        self.log.metric(name, value, at)

    def resume_curves(self, curves: Curves) -> None:
        """Log the points of an interrupted attempt."""
        for name, points in curves.items():
            for at, value in points:
                self.metric(name, value, at)

    def part(self, name: str) -> "Context":
        """Returns the context of one of several trainings in a step: its own checkpoints, and no curves in MLflow."""
        return replace(self, log=StepLog(), key=digest_of({"call": self.key, "part": name}), curves={})

    def checkpoints(self) -> Checkpoints:
        """The checkpoints of this call; a rerun of the same work resumes from them."""
        return Checkpoints(*self._root_and_call, self.warn)

    def address_of_training(self) -> str:
        """A folder or address beside the checkpoints of this call, for what its processes hand over."""
        root, call = self._root_and_call
        return f"{root.rstrip('/')}/{call}-training"

    def folder_of_all_calls(self, name: str) -> Path | None:
        """A folder beside the checkpoints that stays after the call; None if checkpoints are in an object store."""
        root, _ = self._root_and_call
        return None if is_remote(root) else Path(root) / name

    @property
    def _root_and_call(self) -> tuple[str, str]:
        root = os.environ.get(CHECKPOINTS) or "gnn-encoder-runs/checkpoints"
        return root, f"{self.step}-{self.key[:20]}"

    def note(self, message: str) -> None:
        """Says something in the console and on stderr that is as it should be."""
        emit(self.title or self.step, "note", message=message)
        print(f"{self.title or self.step}: {message}", file=sys.stderr)

    def warn(self, message: str) -> None:
        """Says something in the console and on stderr that ends no step."""
        emit(self.title or self.step, "note", message=message)
        print(f"warning: {message}", file=sys.stderr)
