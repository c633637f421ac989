"""This process's memory: how much it took at most, and returning what is free to the system."""

import ctypes
import resource
import sys
from collections.abc import Callable
from functools import cache


def peak_gib() -> float:
    """The largest resident memory of this process, or of one that it started and that has ended, in GiB."""
    counted = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return counted / 2 ** (30 if sys.platform == "darwin" else 20)  # macOS counts bytes, Linux KiB


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
