"""The same work in several threads, which end together: with the last of them, or with the first error."""

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from itertools import count as count_from
from threading import Event, Lock
from typing import TypeVar

import torch

from gnn_encoder.tracking.progress import Progress

Chunk = TypeVar("Chunk")
WORKERS = 16
"""Chunks in memory at once, at most."""
TRIMMED, SHORT = 16, 64
"""Chunks after which the C library is told to give back what is free, but for work of fewer than `SHORT` chunks: it is
over before that would pay."""


def side_by_side(work: Callable[[int, Event], None], count: int) -> None:
    """Call `work(number, stop)` in `count` threads, numbered from 0; with one, in the caller's own.

    Raises:
        Exception: what one of them raised, or the interrupt that the caller got; `stop` is set for the others then,
            and they have ended.
    """
    stop = Event()
    if count == 1:
        return work(0, stop)

    def stopping(number: int) -> None:
        try:
            work(number, stop)
        except BaseException:
            stop.set()
            raise

    with ThreadPoolExecutor(count, "side-by-side") as threads:
        try:
            for ended in as_completed([threads.submit(stopping, number) for number in range(count)]):
                ended.result()
        finally:
            stop.set()


def chunk_by_core(
    work: Callable[[Chunk], int], chunks: Sequence[Chunk], where: torch.device, progress: Progress | None = None
) -> None:
    """Call `work` with each chunk, in no order: on a CPU every core is at a chunk of its own, or where there are fewer
    chunks, or more cores than `WORKERS`, so many cores at one.

    Where operations are small and wait for memory or the disk, as in a gather, torch's way of splitting each over all
    cores makes them wait for one another at every one.

    Args:
        work: returns how many units are done with it, for `progress`.
        where: the device that works; on a GPU one thread gives out all the work.

    Raises:
        Exception: what `work` raised; no chunk is begun after it.
    """
    cores, left, taking, counting = torch.get_num_threads(), iter(chunks), Lock(), Lock()
    ended = count_from(1)

    def take(number: int, stop: Event) -> None:
        if count > 1:
            torch.set_num_threads(cores // count)  # of this thread, and of those that begin after it
        while not stop.is_set():
            with taking:
                chunk = next(left, None)
            if chunk is None:
                return
            done = work(chunk)
            if (number_ended := next(ended)) >= SHORT and number_ended % TRIMMED == 0:
                give_back()
            if progress:
                with counting:
                    progress.advance(done)

    count = max(1, min(cores, len(chunks), WORKERS)) if where.type == "cpu" else 1
    try:
        side_by_side(take, count)
    finally:
        torch.set_num_threads(cores)


def give_back() -> None:
    """Return free memory to the system, by glibc's malloc_trim; other C libraries have none, and nothing happens.

    Where large arrays come and go beside small ones that stay, the heap fills with holes too small for the next; each
    thread has a heap of its own.
    """
    _malloc_trim()(0)


@cache
def _malloc_trim() -> Callable[[int], int]:
    trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)
    return trim
