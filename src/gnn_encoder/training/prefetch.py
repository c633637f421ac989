"""Batches are prepared while the model works on the one before: in a thread, or in processes.

Everything random in a batch is drawn here, one draw after the other and cheaply. The rest depends on the draw alone:
the batches are the same whoever prepares them, and a resumed training prepares none of those that are done.
"""

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader

Item = TypeVar("Item")


class BatchPlan(Protocol):
    """Which batches an epoch has. The same epoch has the same batches, every time."""

    steps_per_epoch: int
    batch_examples: int
    """Examples in a full batch, for the throughput shown."""

    def draws(self, epoch: int) -> Iterator[Any]:
        """The `steps_per_epoch` draws of an epoch: the part of each batch that depends on the draws before it."""

    def batch(self, drawn: Any) -> Any:
        """The batch of a draw, which depends on the draw alone; may run in another process."""


def batches_of(plan: BatchPlan, epoch: int, *, skip: int = 0, workers: int = 0) -> Generator[Any]:
    """The epoch's batches from number `skip` on, prepared ahead by a thread or by `workers` processes until closed.

    On macOS always by a thread; the batches are the same.

    Raises:
        Exception: what preparing a batch raised, where the batch would have been.
        RuntimeError: a worker was killed.
    """
    draws = islice(plan.draws(epoch), skip, None)
    if not workers or sys.platform == "darwin":  # macOS's own libraries crash in forked processes
        return prefetched(plan.batch(drawn) for drawn in draws)
    return _in_processes(plan.batch, draws, workers)


def prefetched(items: Iterator[Item], ahead: int = 2) -> Generator[Item]:
    """The same items in the same order, prepared by a thread up to `ahead` of the consumer.

    Preparing a batch is mostly NumPy's work, during which the interpreter is free for others.

    Raises:
        Exception: what `items` raised, where the item would have been.
    """
    end = object()
    with ThreadPoolExecutor(1, "batches") as thread:
        waiting = deque(thread.submit(next, items, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]  # only `end` is no Item


class _Prepared:
    """What a worker runs; for torch a data set whose indices are draws."""

    def __init__(self, batch: Callable[[Any], Any]) -> None:
        self.batch = batch

    def __getitem__(self, drawn: Any) -> Any:
        return self.batch(drawn)


def _unchanged(item: Any) -> Any:
    return item


def _in_processes(batch: Callable[[Any], Any], draws: Iterable[Any], workers: int) -> Generator[Any]:
    loader: DataLoader[Any] = DataLoader(
        _Prepared(batch),  # type: ignore[arg-type]
        batch_size=None,
        sampler=draws,
        num_workers=workers,
        collate_fn=_unchanged,
        # Forked, so that mapped arrays stay mapped; pickled, they would be copied into each process.
        multiprocessing_context="fork",
        # The loader draws a seed. From the common generator it would change the dropout.
        generator=torch.Generator(),
    )
    batches = iter(loader)
    try:
        yield from batches
    finally:
        # torch does so when nobody holds the iterator, and an exception's traceback may hold it for long.
        batches._shutdown_workers()  # type: ignore[attr-defined]
