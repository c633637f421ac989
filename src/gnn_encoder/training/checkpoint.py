"""Checkpoints of a training: safetensors files, each of which replaces its previous version in one rename.

For each state `checkpoint.safetensors` is written: the trained parameters, the optimizer's moments, torch's random
state and the position in the data, all of one step. What changes less often is written, and sent to a store, once:
`kept-EPOCH.safetensors`, the trained parameters of the best epoch so far, before the first state that names it, and
`frozen.safetensors`, the parameters that are not trained, before the first state.

Nothing is pickled. On a CPU a resumed training ends with the same bits as an undisturbed training, given the same
numbers of threads and processes. A GPU's kernels add gradients in any order, so the last bits differ there, with and
without a resume. The random state is the leader's; a follower is seeded again at each step (`ranks.seed_follower`).

The training only copies a state in memory (`Saver`), which takes 0.1 s a GB. A thread writes the files and computes
their digests, which takes 1 to 3 s of processor time a GB (AMD EPYC, a virtual machine).
"""

import ctypes
import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gnn_encoder.artifacts.history import Curves
from gnn_encoder.artifacts.replacing import partial_of
from gnn_encoder.errors import UserError, one_line
from gnn_encoder.storage.checkpoint_store import Checkpoints, discard, sealed
from gnn_encoder.training.ranks import is_leader

FILE, KEPT, FROZEN = "checkpoint.safetensors", "kept-{}.safetensors", "frozen.safetensors"
MODEL, OPTIMIZER = "model.", "optimizer."
"""Prefixes of tensor names in `FILE`."""
WRITING = 2.5e-9
"""Processor seconds a byte that writing a state is taken to need at least: 2 to 8 s were measured for 2.6 GB. With a
share of 0.5 % two cores write a state of 2.6 GB after 11 minutes, and the next after 11 more."""


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
    """Number, from 1, of the best epoch so far; 0: no epoch is kept, or the model before the training."""
    best: float = -float("inf")
    """The figure of the best epoch; -inf: no epoch is kept."""


@dataclass(frozen=True)
class _State:
    """A state that is copied and not written yet."""

    position: Position
    text: str
    """The position in JSON; its curves grow while the state is written."""
    tensors: dict[str, Tensor]
    kept: Mapping[str, Tensor]
    copied: torch.cuda.Event | None
    """When the copies from a GPU are complete."""
    taken: int
    """When it was copied, in ns since 1970."""


class Saver:
    """Saves the states of one training, for `with`: the end of the block waits until the last state is written.

    One copy of a state is in memory, at the same place for all states. The next state is copied after the files of the
    state before are written, so a slow disk makes states rarer, and not steps slower. So do few cores (`share`).
    Training waits for no store (`Checkpoints.keep`).

    Args:
        kept: the best epoch's parameters as `load` returned them.
        share: above 0, at most 1: the largest share of the cores' time in which states are written, if the training
            runs on these cores and not on a GPU.
        resumed: a state before exists. The first state may come at once, so that a training that is often killed
            still advances.
        frozen: the parameters that are not trained are saved, too.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        kept: Mapping[str, Tensor],
        share: float,
        resumed: bool = False,
        frozen: bool = True,
    ) -> None:
        self._checkpoints, self._model, self._optimizer, self._kept = checkpoints, model, optimizer, kept
        self._share, self._resumed, self._frozen = share, resumed, frozen
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._work: Future[None] | None = None
        self._copies: dict[str, Tensor] = {}
        self._cores, self._next = torch.get_num_threads(), 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.shutdown()
        failed = self._work.exception() if self._work else None
        if failed and error is None:
            raise failed
        if failed and error is not failed:
            self._checkpoints.warn(one_line(failed))

    def ready(self) -> bool:
        """Whether the next state can be saved: without a delay by the state before, and within the share of the time.

        The first call, when the optimizer has its moments, lets the thread reserve the memory for all states: a copy
        into fresh memory takes twenty times as long.

        Raises:
            UserError: the state before could not be written. The state before that is kept.
        """
        if self._work is None:
            tensors = self._tensors()
            self._work = self._thread.submit(self._reserve, tensors)
            if not self._resumed:
                self._rest(tensors)
        elif not self._work.done():
            return False
        else:
            self._work.result()
        return time.monotonic() >= self._next

    def save(self, position: Position, kept: Mapping[str, Tensor]) -> None:
        """Copies the state and lets the thread write it, after waiting until the state before is written.

        Args:
            kept: the best epoch's parameters, which must not change later; empty if no epoch is kept. It is written if
                it is another object than at the last call.

        Raises:
            UserError: as `ready`.
        """
        if self._work:
            self._work.result()
        taken, tensors = time.time_ns(), self._tensors()
        self._reserve(tensors)
        for name, tensor in tensors.items():
            self._copies[name].copy_(tensor, non_blocking=tensor.is_cuda)
        copies = {name: self._copies[name] for name in tensors} | {"rng": torch.get_rng_state()}
        copied = None
        if torch.cuda.is_available():
            copies["rng_cuda"] = torch.cuda.get_rng_state()
            copied = torch.cuda.Event(blocking=True)
            copied.record()
        state = _State(position, json.dumps(asdict(position)), copies, kept, copied, taken)
        self._work = self._thread.submit(self._write, state)

    def _tensors(self) -> dict[str, Tensor]:
        """What changes with each step."""
        tensors = {}
        for name, parameter in self._model.named_parameters():
            if parameter.requires_grad:
                tensors[f"{MODEL}{name}"] = parameter.detach()
            for key, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"{OPTIMIZER}{name}.{key}"] = torch.as_tensor(value)
        return tensors

    def _reserve(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name not in self._copies:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                # Writing makes the system provide the memory. An operation of torch would give this thread a team of
                # OpenMP; with more threads than cores each barrier of the training would then sleep instead of spin:
                # a step took 25 to 33 % longer (two cores, MiniLM).
                ctypes.memset(copy.data_ptr(), 0, copy.nbytes)
                self._copies[name] = copy

    def _write(self, state: _State) -> None:
        """Writes the files of a state, and sends them. A kill at any moment leaves this state or the state before."""
        began, folder = time.thread_time(), self._checkpoints.folder
        frozen = {name: p.detach() for name, p in self._model.named_parameters() if not p.requires_grad}
        if (
            frozen and self._frozen and not (folder / FILE).is_file()
        ):  # a resumed training has read them from their file
            _save(folder / FROZEN, frozen)
        best = folder / KEPT.format(state.position.kept_epoch)
        if state.kept is not self._kept:
            _save(best, state.kept)
            self._kept = state.kept
        if state.copied:
            state.copied.synchronize()
        _save(folder / FILE, state.tensors, {"position": state.text}, state.taken)
        for file in folder.glob(KEPT.format("*")):
            if not state.kept or file != best:
                discard(file)
        self._checkpoints.keep(state.position.step)
        self._rest(state.tensors, time.thread_time() - began)

    def _rest(self, tensors: Mapping[str, Tensor], seconds: float = 0.0) -> None:
        """Lets no state be saved until writing one, which took `seconds` of a core, is its share of the cores' time."""
        if not torch.cuda.is_available():
            least = WRITING * sum(tensor.nbytes for tensor in tensors.values())
            self._next = time.monotonic() + max(seconds, least) / (self._share * self._cores)


def _save(path: Path, tensors: Mapping[str, Tensor], facts: dict[str, str] | None = None, taken: int = 0) -> None:
    """Writes and seals a file; a reader sees the old or the new file, never a part of one.

    Args:
        taken: the file's time, in ns since 1970; 0: now.

    Raises:
        UserError: the file cannot be written. The old file is kept.
    """
    try:
        with sealed(path) as partial:
            save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, partial, metadata=facts)
            if taken:
                os.utime(partial, ns=(taken, taken))
    except (SafetensorError, OSError) as error:
        partial_of(path).unlink(missing_ok=True)
        raise UserError(f"no checkpoint in {path.parent}: {error}; free space or mend it, then rerun") from None


def steps_done(folder: Path) -> int:
    """Number of steps in the folder's checkpoint; -1 without a checkpoint."""
    try:
        with safe_open(folder / FILE, framework="pt") as file:
            return int(json.loads(file.metadata()["position"])["step"])
    except FileNotFoundError:
        return -1


def load(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, frozen: bool = True
) -> tuple[Position, dict[str, Tensor]]:
    """Puts the saved state into model and optimizer; returns the position and the best epoch's parameters.

    frozen: the parameters that are not trained were saved, too.

    Without a checkpoint the position is the start. Only the leader gets the best parameters. `Checkpoints.fetch`
    has already checked the files' digests.

    Raises:
        UserError: a file of the state is missing.
    """
    path = folder / FILE
    if not path.is_file():
        return Position(), {}
    parameters = dict(model.named_parameters())
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        for name, parameter in parameters.items():
            if not parameter.requires_grad:
                continue
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
        position = Position(**json.loads(file.metadata()["position"]))
    saved = frozen and not all(parameter.requires_grad for parameter in parameters.values())
    for name, tensor in (_read(folder / FROZEN) if saved else {}).items():
        with torch.no_grad():
            parameters[name].copy_(tensor)
    kept = position.best > -float("inf") and is_leader()
    return position, _read(folder / KEPT.format(position.kept_epoch)) if kept else {}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: delete {path.parent}, then rerun") from None
