"""The same work in several threads, which end together: with the last of them, or with the first error."""

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count as count_from
from threading import Event, Lock
from typing import TypeVar

import torch

from gnn_encoder.tracking.progress import Progress

Chunk = TypeVar("Chunk")
WORKERS = 16
"""Most chunks in memory at once."""
TRIMMED, SHORT = 16, 64
"""Free memory is returned after every 16 chunks, in work of 64 chunks and more: shorter work ends before it pays."""


def side_by_side(work: Callable[[int, Event], None], count: int) -> None:
    """Call `work(number, stop)` in `count` threads, numbered from 0; with one, in the caller's thread.

    Raises:
        Exception: the first of a thread, or the caller's interrupt. `stop` is set then, and all threads have ended.
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
    """Call `work` with each chunk, in no order. On a CPU each core works on a chunk of its own; several cores share a
    chunk where there are fewer chunks than cores, or more cores than `WORKERS`.

    torch splits each operation over all cores. Where operations are small and wait for memory or the disk, as in a
    gather, the cores would wait for one another at every operation.

    Args:
        work: returns how many units it has done, for `progress`.
        where: the device that works; for a GPU one thread calls `work`.

    Raises:
        Exception: the first of `work`; no chunk is begun after it.
    """
    cores, remaining, taking, counting = torch.get_num_threads(), iter(chunks), Lock(), Lock()
    ended = count_from(1)

    def take(number: int, stop: Event) -> None:
        if count > 1:
            torch.set_num_threads(cores // count)  # of this thread, and of those that begin after it
        while not stop.is_set():
            with taking:
                chunk = next(remaining, None)
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
    """Return free memory to the system, by glibc's malloc_trim. Other C libraries have none, and nothing happens.

    Where large arrays come and go beside small ones that stay, the heap fills with holes too small for the next; each
    thread has a heap of its own.
    """
    getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)
