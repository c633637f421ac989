"""Reading batches with a replica of a model on each device, packed where model and device allow it."""

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
    """Where models run: all visible GPUs, else the CPU. In distributed training each process uses its own GPU only."""
    if not torch.cuda.is_available():
        return [torch.device("cpu")]
    own = [torch.cuda.current_device()] if dist.is_initialized() else range(torch.cuda.device_count())
    return [torch.device("cuda", number) for number in own]


def read_batches(
    model: nn.Module,
    batches: Sequence[np.ndarray],
    padded: Callable[[np.ndarray], tuple[np.ndarray, ...]],
    store: Callable[..., None],
    whole: int,
) -> None:
    """Call `store(rows, *results)` with the model's results for each batch, in no order.

    With several devices, model and `padded` are called in several threads; `store` is called by one at a time. After an
    exception, which is raised here, no further batch begins.

    Args:
        model: on the first of `devices`, with a `backbone`, a `forward` for padded batches and a `packed` for `Row`s.
        batches: row numbers of each batch.
        padded: ids, mask and maybe token types [b, l] of a batch.
        whole: tokens that a packed batch is filled up to, so that results do not depend on what is read together
            (`gnn_encoder.models.packed`). A longer text must be alone in its batch.
    """
    if not batches:
        return
    places = devices()[: len(batches)]
    backbone: Any = model.backbone
    attention = packed_attention(places[0], next(model.parameters()).dtype)
    start = first_position(backbone, attention) if attention else None
    replicas: list[Any] = [model, *(copy.deepcopy(model).to(where) for where in places[1:])]
    storing = Lock()

    def work(number: int, stop: Event) -> None:
        replica, where = replicas[number], places[number]

        def arrays(rows: np.ndarray) -> tuple[np.ndarray | int, ...]:
            return padded(rows) if start is None else pack(start, *padded(rows), whole=whole)

        def results(*inputs: Any) -> tuple[Tensor, ...]:
            read = replica(*inputs) if start is None else replica.packed(Row(attention, *inputs))  # type: ignore[arg-type]
            return read if isinstance(read, tuple) else (read,)

        with ExitStack() as stack:
            # Inference mode and the current device belong to a thread.
            stack.enter_context(torch.inference_mode())
            if where.type == "cuda":
                stack.enter_context(torch.cuda.device(where))
            if start is not None:
                stack.enter_context(reads_packed(replica.backbone))
            # Assigned by number, not to the next free device: a batch is read by the same device every time.
            mine = ((rows, arrays(rows)) for rows in batches[number :: len(places)] if not stop.is_set())
            for rows, read in streamed(mine, results, where):
                with storing:
                    store(rows, *read)

    side_by_side(work, len(places))


def streamed(
    batches: Iterable[tuple[Key, Given]], work: Callable[..., tuple[Tensor, ...]], where: torch.device
) -> Iterator[tuple[Key, tuple[np.ndarray, ...]]]:
    """`work`'s results for each batch, in order, each one batch late, so that a GPU always has work.

    A GPU works through a queue. A batch is copied from pinned memory while the batch before is worked on, and queued
    behind it; its results are awaited only when the next batch is queued, too. `work` is called with a batch's arrays
    as tensors on the device `where`, and its numbers as they are.
    """
    transfer = _Transfer(where)
    waiting: tuple[Key, list[Arrived]] | None = None
    for key, given in batches:
        there = (value if isinstance(value, int) else transfer.to_device(value) for value in given)
        queued = key, [transfer.to_host(tensor) for tensor in work(*there)]
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
        tensor.record_stream(work)  # else the next copy could get its memory while the work still reads it
        return tensor

    def to_host(self, tensor: Tensor) -> Arrived:
        if not self.copies:
            return tensor.numpy
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        copied = torch.cuda.current_stream(self.where).record_event()

        def arrived() -> np.ndarray:
            copied.synchronize()
            array: np.ndarray = host.numpy()
            return array

        return arrived
