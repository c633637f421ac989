"""Checkpoints of a training: one safetensors file, which replaces the previous file in one rename.

The file holds the parameters, the parameters of the best epoch so far, the optimizer's moments, torch's random state
and the position in the data, all of the same step; nothing is pickled. A resumed training ends with the same bits as an
undisturbed training, given the same device and the same numbers of threads and processes. The random state is the
leader's; a follower is seeded again at each step (`ranks.seed_follower`).
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from gnn_encoder.artifacts.history import Curves
from gnn_encoder.errors import UserError
from gnn_encoder.storage.checkpoint_store import seal

FILE = "checkpoint.safetensors"
MODEL, KEPT, OPTIMIZER = "model.", "kept.", "optimizer."
"""Prefixes of tensor names."""


@dataclass(frozen=True)
class Position:
    """`step` optimizer steps are done, of which `in_epoch` belong to epoch number `epoch` (from 0)."""

    step: int = 0
    epoch: int = 0
    in_epoch: int = 0
    seconds: float = 0.0
    """Time spent training so far, without interruptions."""
    loss: float = float("nan")
    """The curve's last point."""
    window: tuple[float, ...] = ()
    """Losses since that point."""
    curves: Curves = field(default_factory=dict)
    kept_epoch: int = 0
    """Number, from 1, of the best epoch so far; 0: no epoch is kept."""
    best: float = -float("inf")
    """The figure of the best epoch."""


def save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, position: Position, kept: dict[str, Tensor]
) -> None:
    """Writes the state; a reader sees the old or the new checkpoint, never a part of one.

    Args:
        kept: the best epoch's parameters; empty if no epoch is kept.

    Raises:
        UserError: the file cannot be written. The old checkpoint is kept.
    """
    tensors = {"rng": torch.get_rng_state()} | {f"{KEPT}{name}": tensor for name, tensor in kept.items()}
    if torch.cuda.is_available():
        tensors["rng_cuda"] = torch.cuda.get_rng_state()
    for name, parameter in model.named_parameters():
        tensors[f"{MODEL}{name}"] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{OPTIMIZER}{name}.{key}"] = torch.as_tensor(value)
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{FILE}.partial"
    contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(contiguous, partial, metadata={"position": json.dumps(asdict(position))})
        seal(partial, folder / FILE)
    except (SafetensorError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"no checkpoint in {folder}: {error}; free space or mend it, then rerun") from None


def steps_done(folder: Path) -> int:
    """Number of steps in the folder's checkpoint; -1 without a checkpoint."""
    try:
        with safe_open(folder / FILE, framework="pt") as file:
            return int(json.loads(file.metadata()["position"])["step"])
    except FileNotFoundError:
        return -1


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Position, dict[str, Tensor]]:
    """Puts the saved state into model and optimizer; returns the position and the best epoch's parameters.

    Without a checkpoint the position is the start. `Checkpoints.fetch` has already checked the file's digest.
    """
    path = folder / FILE
    if not path.is_file():
        return Position(), {}
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        for name, parameter in model.named_parameters():
            with torch.no_grad():
                parameter.copy_(file.get_tensor(f"{MODEL}{name}"))
            prefix = f"{OPTIMIZER}{name}."
            state = {n.removeprefix(prefix): file.get_tensor(n) for n in names if n.startswith(prefix)}
            # AdamW counts steps on the CPU; the moments are on the parameter's device.
            optimizer.state[parameter] = {
                k: v if k == "step" and not parameter.is_cuda else v.to(parameter.device) for k, v in state.items()
            }
        torch.set_rng_state(file.get_tensor("rng"))
        if "rng_cuda" in names and torch.cuda.is_available():
            torch.cuda.set_rng_state(file.get_tensor("rng_cuda"))
        kept = {name.removeprefix(KEPT): file.get_tensor(name) for name in names if name.startswith(KEPT)}
        return Position(**json.loads(file.metadata()["position"])), kept
