"""Several processes train one model on one batch, with cross-device negatives; each process encodes its share.

Every process plans the same global batch, encodes its share of the texts and gets all other vectors from the other
processes; re-rankers share scores in the place of vectors. Every process computes GNN and loss, a small part of the
work, over the whole batch. The gradient of a gathered vector goes back to the process that encoded the vector,
multiplied by the number of processes. The mean over the processes is then the sum of all texts' gradients. The GNN's
gradient is the same in every process, and so is its mean. So the result is the gradient of one process with the same
global batch. Texts whose losses do not depend on each other, a query generator's, need no gathering: each process has
the loss of its share (`own_share`), and the mean over the processes is the batch's loss, as it is the batch's gradient.
Without a process group these functions do nothing.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gnn_encoder.artifacts.replacing import replacing
from gnn_encoder.models.dual_encoder import on_device

LOCAL_RANK, LOCAL_WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
"""Environment variables, named as torchrun's: the process's number on its machine, and how many processes are there."""
PIECE = 64 * 2**20
"""Bytes of a file that are sent together."""


class TrainingOver(Exception):
    """Raised in every process but the leader when the training is done, because only the leader continues."""


def world_size() -> int:
    """Number of processes that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_leader() -> bool:
    """Whether this process reports and writes."""
    return not dist.is_initialized() or dist.get_rank() == 0


def seed_follower(seed: int, step: int) -> None:
    """Seed dropout for one step of this process.

    A checkpoint holds only the leader's random state. A follower's seed uses only values that a resumed training has.
    """
    torch.manual_seed(hash((seed, dist.get_rank(), step)))


def meet() -> None:
    """Waits until every process calls this function."""
    if dist.is_initialized():
        dist.barrier()


def from_leader(value: bool, where: torch.device) -> bool:
    """Returns the leader's value in every process; `where` is the device of the process."""
    if world_size() == 1:
        return value
    flag = torch.tensor([float(value)], device=where)
    dist.broadcast(flag, src=0)
    return bool(flag.item())


def on_several_machines() -> bool:
    """Whether some processes run on other machines, which do not see the leader's files."""
    return world_size() > _on_this_machine()


def _on_this_machine() -> int:
    """Number of processes on this machine that train together."""
    return min(world_size(), int(os.environ.get(LOCAL_WORLD_SIZE, world_size())))


def writes_copies() -> bool:
    """Whether this process writes the copies of the leader's files on its machine (`to_every_machine`)."""
    beyond = on_several_machines() and dist.get_rank() >= int(os.environ[LOCAL_WORLD_SIZE])
    return beyond and os.environ[LOCAL_RANK] == "0"


def to_every_machine(where: torch.device, *files: Path) -> None:
    """Waits until every process calls this function, and copies the leader's files to the other machines' folders.

    Args:
        where: the device of the process.
        files: a file in a folder of this process for each file of the leader, which may not exist.
    """
    for file in files if on_several_machines() else ():
        _copy(file, where)
    meet()


def _copy(file: Path, where: torch.device) -> None:
    leads, writes = is_leader(), writes_copies()
    size = torch.tensor([file.stat().st_size if leads and file.is_file() else -1], device=where)
    dist.broadcast(size, src=0)
    if size.item() < 0:
        return
    if writes:
        file.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        source = stack.enter_context(file.open("rb")) if leads else None
        target = stack.enter_context(stack.enter_context(replacing(file)).open("wb")) if writes else None
        for start in range(0, int(size.item()), PIECE):
            piece = torch.empty(min(PIECE, int(size.item()) - start), dtype=torch.uint8)
            if source:
                source.readinto(piece.numpy().data)
            piece = piece.to(where)
            dist.broadcast(piece, src=0)
            if target:
                target.write(piece.cpu().numpy().data)


class _Gather(torch.autograd.Function):
    """Gathers the vectors [b_r, d] of each rank r to [b, d], rank after rank; every rank knows all b_r."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        # Padded to the largest b_r, because gloo and NCCL gather only equal shapes.
        padded = rows.new_zeros(max(counts), rows.shape[1])
        padded[: len(rows)] = rows
        gathered = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(gathered, padded)
        return torch.cat([vectors[:count] for vectors, count in zip(gathered, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rank = dist.get_rank()
        start = sum(ctx.counts[:rank])
        return gradients[0][start : start + ctx.counts[rank]] * len(ctx.counts), None


def shared(embed: Callable[[np.ndarray], Tensor], rows: np.ndarray, none: Tensor) -> Tensor:
    """Returns `embed(rows)` [b, d]; each process embeds its share of `rows` [b], which are equal in all processes.

    `none` [0, d]: the vectors of a process whose share is empty, if a batch has fewer texts than processes.
    """
    world = world_size()
    if world == 1:
        return embed(rows)
    shares = [np.arange(rank, len(rows), world) for rank in range(world)]
    share = rows[shares[dist.get_rank()]]
    vectors = embed(share) if len(share) else none.requires_grad_()
    gathered: Tensor = _Gather.apply(vectors, [len(share) for share in shares])  # type: ignore[no-untyped-call]
    order = np.argsort(np.concatenate(shares))
    return gathered[on_device(order, gathered.device)]


def own_share(rows: np.ndarray) -> np.ndarray:
    """Returns the process's share of `rows` [b], which are equal in all processes; it may be empty."""
    return rows[dist.get_rank() :: world_size()] if dist.is_initialized() else rows


@contextmanager
def alone() -> Iterator[None]:
    """In the block, the leader works while the other processes wait.

    On a CPU, it has the threads of all processes on its machine.
    """
    threads = torch.get_num_threads()
    if not torch.cuda.is_available():
        torch.set_num_threads(threads * _on_this_machine())
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def average_gradients(parameters: Iterable[torch.nn.Parameter], loss: Tensor) -> Tensor:
    """Replaces each gradient by its mean over the processes; returns the mean of their losses [].

    A missing gradient counts as zero, unless it is missing in all processes: AdamW does not change a parameter without
    a gradient, but decays a parameter with a zero gradient. A process that has all gradients waits for no device.
    """
    if world_size() == 1:
        return loss
    parameters = list(parameters)
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    exist = [p.grad is not None for p in parameters]
    facts = torch.cat([loss.to(gradients[0])[None], on_device(np.array(exist), loss.device).to(gradients[0])])
    flat = torch.cat([facts, *(gradient.flatten() for gradient in gradients)])
    dist.all_reduce(flat)
    flat /= world_size()
    facts, *means = flat.split([len(facts), *(p.numel() for p in parameters)])
    used = exist if all(exist) else facts[1:].tolist()
    for parameter, mean, exists in zip(parameters, means, used, strict=True):
        parameter.grad = mean.view_as(parameter).clone() if exists else None
    mean_loss: Tensor = facts[0].double()
    return mean_loss
