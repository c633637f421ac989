"""Batches are put together while the model works on the one before: in a thread, or in processes.

What is random in a batch is drawn here, one after the other and cheaply; the rest of its making depends on its draw
alone. So whoever makes it makes the same, and batches that a resumed training skips are never made.
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
        """What each batch of an epoch is made from, `steps_per_epoch` of them: the part that depends on the others."""
        ...

    def batch(self, drawn: Any) -> Any:
        """The batch of a draw, made from it alone; maybe in another process."""
        ...


Made = Generator[Item, None, None]


def made(plan: BatchPlan, epoch: int, *, skip: int = 0, workers: int = 0) -> Made[Any]:
    """The epoch's batches from number `skip` on, made ahead by a thread or by `workers` processes until it is closed.

    On macOS always by a thread; the batches are the same.

    Raises:
        Exception: what making a batch raised, where the batch would have been.
        RuntimeError: a worker was killed.
    """
    draws = islice(plan.draws(epoch), skip, None)
    if not workers or sys.platform == "darwin":  # macOS's own libraries crash in forked processes
        return prefetched(plan.batch(drawn) for drawn in draws)
    return _in_processes(plan.batch, draws, workers)


def prefetched(items: Iterator[Item], ahead: int = 2) -> Made[Item]:
    """The same items in the same order, made in a thread up to `ahead` of the consumer.

    What makes a batch is mostly NumPy's, which leaves the interpreter to others meanwhile.

    Raises:
        Exception: what `items` raised, where the item would have been.
    """
    end = object()
    with ThreadPoolExecutor(1, "batches") as thread:
        waiting = deque(thread.submit(next, items, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]  # only `end` is no Item


class _Making:
    """What a worker runs; torch takes it for a data set whose indices are draws."""

    def __init__(self, batch: Callable[[Any], Any]) -> None:
        self.batch = batch

    def __getitem__(self, drawn: Any) -> Any:
        return self.batch(drawn)


def _in_processes(batch: Callable[[Any], Any], draws: Iterable[Any], workers: int) -> Made[Any]:
    loader: DataLoader[Any] = DataLoader(
        _Making(batch),  # type: ignore[arg-type]
        batch_size=None,
        sampler=draws,
        num_workers=workers,
        collate_fn=_as_it_is,
        # Forked, so that the arrays mapped here stay mapped there; pickled, they would be copied into each.
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


def _as_it_is(item: Any) -> Any:
    return item
