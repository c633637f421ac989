"""Runs a model over batches, with a replica on each device; batches are packed if model and device support it."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from threading import Event, Lock
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gnn_encoder.machine.threads import side_by_side
from gnn_encoder.models.packed import Row, first_position, pack, packed_attention, reads_packed

Key = TypeVar("Key")
Given = tuple[np.ndarray | int, ...]
Arrived = Callable[[], np.ndarray]


def devices() -> list[torch.device]:
    """All visible GPUs, otherwise the CPU. In distributed training each process uses only its own GPU."""
    if not torch.cuda.is_available():
        return [torch.device("cpu")]
    numbers = [torch.cuda.current_device()] if dist.is_initialized() else range(torch.cuda.device_count())
    return [torch.device("cuda", number) for number in numbers]


def read_batches(
    model: nn.Module,
    batches: Sequence[np.ndarray],
    padded: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    store: Callable[..., None],
    whole: int,
    multiple: int = 1,
) -> None:
    """Calls `store(rows, *results)` with the model's results for each batch, in any order.

    With several devices, several threads call the model and `padded`; one thread at a time calls `store`. An exception
    is raised here, and no further batch begins.

    Args:
        model: on the first of `devices`, it has a `forward` for padded batches, and maybe a `backbone` and `packed`
            for a `Row`.
        batches: row numbers of each batch.
        padded: rows → ids, mask and maybe token types [b, l] of a batch; for a model without `packed` any arrays.
        whole: number of tokens that a packed batch is padded to, so that results do not depend on the other texts of
            the batch (`gnn_encoder.models.packed`). A longer text must be alone in its batch.
        multiple: the number of tokens of a packed batch is a multiple of it.
    """
    if not batches:
        return
    used = devices()[: len(batches)]
    attention = packed_attention(used[0], next(model.parameters()).dtype) if hasattr(model, "packed") else None
    start = first_position(model.backbone, attention) if attention else None
    replicas: list[Any] = [model, *(copy.deepcopy(model).to(where) for where in used[1:])]
    storing = Lock()

    def work(number: int, stop: Event) -> None:
        replica, where = replicas[number], used[number]

        def arrays(rows: np.ndarray) -> tuple[np.ndarray | int, ...]:
            return padded(rows) if start is None else pack(start, *padded(rows), whole=whole, multiple=multiple)

        def results(*inputs: Any) -> tuple[Tensor, ...]:
            read = replica(*inputs) if start is None else replica.packed(Row(attention, *inputs))  # type: ignore[arg-type]
            return read if isinstance(read, tuple) else (read,)

        with ExitStack() as stack:
            # Inference mode and the current device are set per thread.
            stack.enter_context(torch.inference_mode())
            if where.type == "cuda":
                stack.enter_context(torch.cuda.device(where))
            if start is not None:
                stack.enter_context(reads_packed(replica.backbone))
            # Batches are assigned by number, not to the next free device: the same device reads a batch every time.
            own_batches = ((rows, arrays(rows)) for rows in batches[number :: len(used)] if not stop.is_set())
            for rows, read in streamed(own_batches, results, where):
                with storing:
                    store(rows, *read)

    side_by_side(work, len(used))


def streamed(
    batches: Iterable[tuple[Key, Given]], work: Callable[..., tuple[Tensor, ...]], where: torch.device
) -> Iterator[tuple[Key, tuple[np.ndarray, ...]]]:
    """Yields the results of `work` for each batch, in order.

    Each batch is copied from pinned memory and queued while a GPU works on the previous batch, whose results are
    awaited then. `work` gets the arrays of a batch as tensors on the device `where`, and the numbers unchanged.
    """
    transfer = _Transfer(where)
    waiting: tuple[Key, list[Arrived]] | None = None
    for key, values in batches:
        on_device = (value if isinstance(value, int) else transfer.to_device(value) for value in values)
        queued = key, [transfer.to_host(tensor) for tensor in work(*on_device)]
        if waiting:
            yield _arrived(*waiting)
        waiting = queued
    if waiting:
        yield _arrived(*waiting)


def _arrived(key: Key, results: list[Arrived]) -> tuple[Key, tuple[np.ndarray, ...]]:
    return key, tuple(arrived() for arrived in results)


class _Transfer:
    """Copies between the host and a device; none if the device is the CPU."""

    def __init__(self, where: torch.device) -> None:
        self.where, self.copies = where, torch.cuda.Stream(where) if where.type == "cuda" else None

    def to_device(self, array: np.ndarray) -> Tensor:
        if not self.copies:
            return torch.from_numpy(array)
        pinned = torch.from_numpy(array).pin_memory()
        with torch.cuda.stream(self.copies):
            tensor = pinned.to(self.where, non_blocking=True)
        work = torch.cuda.current_stream(self.where)
        work.wait_stream(self.copies)
        tensor.record_stream(work)  # otherwise the next copy could reuse the memory while `work` still reads it
        return tensor

    def to_host(self, tensor: Tensor) -> Arrived:
        if not self.copies:
            return tensor.numpy
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        copied = torch.cuda.current_stream(self.where).record_event()

        def arrived() -> np.ndarray:
            copied.synchronize()
            return host.numpy()

        return arrived
