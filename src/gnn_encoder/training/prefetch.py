"""Batches are put together while the model works on the one before."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(items: Iterator[Item], ahead: int = 2) -> Iterator[Item]:
    """The same items in the same order, made in a thread up to `ahead` of the consumer.

    A thread and not a process: what makes a batch is NumPy's, which leaves the interpreter to others meanwhile, and
    the arrays it reads are mapped here already.

    Raises:
        Exception: what `items` raised, where the item would have been.
    """
    end = object()
    with ThreadPoolExecutor(1, "batches") as thread:
        waiting = deque(thread.submit(next, items, end) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(thread.submit(next, items, end))
            yield item  # type: ignore[misc]  # only `end` is no Item
