"""The same work in several threads. All threads end with the last of them, or with the first error."""

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count as count_from
from threading import Event, Lock
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

from gnn_encoder.tracking.progress import Progress

Chunk = TypeVar("Chunk")
WORKERS = 16
"""Most chunks in memory at once."""
TRIMMED, SHORT = 16, 64
"""Free memory is returned after every 16 chunks, from chunk 64 on: in shorter work the cost exceeds the gain."""


def side_by_side(work: Callable[[int, Event], None], count: int) -> None:
    """Calls `work(number, stop)` in `count` threads, numbered from 0; a single thread is the caller's thread.

    Raises:
        Exception: a thread's first exception, or the caller's interrupt; `stop` is set, and all threads have ended.
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
    """Calls `work` with each chunk, in any order. On a CPU each core works on its own chunk; several cores share a
    chunk if there are fewer chunks than cores, or more cores than `WORKERS`.

    Otherwise torch splits each operation over all cores. If operations are small and wait for memory or the disk (such
    as a gather), the cores then wait for each other at every operation.

    Args:
        work: returns the number of units done, for `progress`.
        where: the device of the work; for a GPU one thread calls `work`.

    Raises:
        Exception: the first exception of `work`; no chunk begins after it.
    """
    cores, remaining, taking, counting = torch.get_num_threads(), iter(chunks), Lock(), Lock()
    ended = count_from(1)

    def take(number: int, stop: Event) -> None:
        if count > 1:
            torch.set_num_threads(cores // count)  # holds for this thread, and for threads that begin later
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


def numpy_on_one_core() -> None:
    """Lets NumPy compute products in the calling thread alone, in the whole process from now on.

    Its wheel's OpenBLAS splits a product of a few thousand numbers over all cores, and its threads then look for the
    next one for milliseconds, on cores that torch and others need. Ranking 64 questions by a learned fusion took 1.69
    ms each on two cores, and 0.84 ms on one.
    """
    ThreadpoolController().select(prefix="libscipy_openblas").limit(limits=1)


def give_back() -> None:
    """Returns free memory to the system by glibc's malloc_trim; with other C libraries it does nothing.

    If large arrays come and go beside small arrays that stay, the heap fills with holes that are too small for the
    next large array. Each thread has its own heap.
    """
    getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)
