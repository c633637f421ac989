"""Prepares batches while the model works on the previous batch: in a thread, or in processes.

Everything random in a batch is drawn here, one cheap draw after the other. The batch depends only on its draw. So the
batches are the same with threads and processes, and a resumed training prepares no finished batch.
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
    """The batches of an epoch. The same epoch always has the same batches."""

    steps_per_epoch: int
    batch_examples: float
    """Mean number of examples in a batch, for the throughput shown."""

    def draws(self, epoch: int) -> Iterator[Any]:
        """The `steps_per_epoch` draws of an epoch: the part of each batch that depends on earlier draws."""

    def batch(self, drawn: Any) -> Any:
        """Makes the batch of a draw; depends only on the draw, and may run in another process."""


def batches_of(plan: BatchPlan, epoch: int, *, skip: int = 0, workers: int = 0) -> Generator[Any]:
    """Yields the epoch's batches from number `skip` on, prepared ahead by a thread or `workers` processes until closed.

    On macOS a thread always prepares the batches; the batches are the same.

    Raises:
        Exception: an exception in preparing a batch, raised at the position of the batch.
        RuntimeError: a worker was killed.
    """
    draws = islice(plan.draws(epoch), skip, None)
    if not workers or sys.platform == "darwin":  # macOS's own libraries crash in forked processes
        return prefetched(plan.batch(drawn) for drawn in draws)
    return _in_processes(plan.batch, draws, workers)


def prefetched(items: Iterator[Item], ahead: int = 2) -> Generator[Item]:
    """Yields the same items in the same order; a thread prepares up to `ahead` items before the consumer needs them.

    Preparing a batch is mostly NumPy's work, and NumPy releases the interpreter for other threads.

    Raises:
        Exception: an exception of `items`, raised at the position of the item.
    """
    end = object()
    with ThreadPoolExecutor(1, "batches") as thread:
        waiting = deque(thread.submit(next, items, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]  # only `end` is no Item


class _Prepared:
    """The function of a worker, in the form of a torch data set with draws as indices."""

    def __init__(self, batch: Callable[[Any], Any]) -> None:
        self.batch = batch

    def __getitem__(self, drawn: Any) -> Any:
        return self.batch(drawn)


def _in_processes(batch: Callable[[Any], Any], draws: Iterable[Any], workers: int) -> Generator[Any]:
    loader: DataLoader[Any] = DataLoader(
        _Prepared(batch),  # type: ignore[arg-type]
        batch_size=None,
        sampler=draws,
        num_workers=workers,
        collate_fn=lambda item: item,
        # With fork, mapped arrays stay mapped; pickling would copy the arrays into each process.
        multiprocessing_context="fork",
        # The loader draws a seed. A draw from torch's global generator would change the dropout.
        generator=torch.Generator(),
    )
    batches = iter(loader)
    try:
        yield from batches
    finally:
        # torch shuts workers down only when nothing holds the iterator, but a traceback may hold it for long.
        batches._shutdown_workers()  # type: ignore[attr-defined]
