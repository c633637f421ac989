"""Batches to a GPU and results back without waiting: while one is worked on, the next is made and copied.

A GPU works through a queue. A batch is put together in pinned memory, copied beside the work on the one before and
queued behind it; its results are waited for only when the next one is queued too, so that the GPU always has work.
On a CPU nothing is copied.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Key = TypeVar("Key")
Given = tuple[np.ndarray | int, ...]
Arrived = Callable[[], np.ndarray]


def streamed(
    batches: Iterable[tuple[Key, Given]], work: Callable[..., tuple[Tensor, ...]], where: torch.device
) -> Iterator[tuple[Key, tuple[np.ndarray, ...]]]:
    """`work`'s results for each batch, in order, each one batch late.

    `work` is called with a batch's arrays as tensors at `where`, and its numbers as they are.
    """
    road = _Road(where) if where.type == "cuda" else _NoRoad()
    waiting: tuple[Key, list[Arrived]] | None = None
    for key, given in batches:
        there = (value if isinstance(value, int) else road.to_device(value) for value in given)
        queued = key, [road.to_host(tensor) for tensor in work(*there)]
        if waiting:
            yield _waited_for(*waiting)
        waiting = queued
    if waiting:
        yield _waited_for(*waiting)


def _waited_for(key: Key, results: list[Arrived]) -> tuple[Key, tuple[np.ndarray, ...]]:
    return key, tuple(arrived() for arrived in results)


class _NoRoad:
    """Between a CPU and itself."""

    def to_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array)

    def to_host(self, tensor: Tensor) -> Arrived:
        return tensor.numpy


class _Road:
    """Between the host and a GPU."""

    def __init__(self, where: torch.device) -> None:
        self.where, self.copies = where, torch.cuda.Stream(where)

    def to_device(self, array: np.ndarray) -> Tensor:
        pinned = torch.from_numpy(array).pin_memory()
        with torch.cuda.stream(self.copies):
            tensor = pinned.to(self.where, non_blocking=True)
        work = torch.cuda.current_stream(self.where)
        work.wait_stream(self.copies)
        tensor.record_stream(work)  # else its memory would be given to the next copy while the work still reads it
        return tensor

    def to_host(self, tensor: Tensor) -> Arrived:
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        copied = torch.cuda.current_stream(self.where).record_event()

        def arrived() -> np.ndarray:
            copied.synchronize()
            array: np.ndarray = host.numpy()
            return array

        return arrived
