"""The memory of a process."""

import ctypes
import resource
import sys

USUAL, LARGEST_REUSED = 32 << 20, 256 << 20
"""Bytes of the largest array that glibc reuses by itself, at most, and that `reuse_freed` lets it reuse."""
MALLOCS_OWN = 1 << 20
"""An upper bound of the bytes that malloc adds to an array."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""


def peak_gib() -> float:
    """Returns the largest resident memory of this process or of any ended child process, in GiB."""
    peak = max(
        resource.getrusage(processes).ru_maxrss for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return peak / 2 ** (30 if sys.platform == "darwin" else 20)  # macOS counts bytes, Linux KiB


def reuse_freed(largest: int = USUAL) -> None:
    """Lets glibc reuse freed arrays of up to `largest` bytes in this process; does nothing with other C libraries.

    glibc gives freed memory at the heap's end, and arrays above 32 MB at once, back to the system, and each page of a
    new array costs a page fault: 7 % of an encoding's processor time, and with the gradient of a table of embeddings
    (MiniLM: 47 MB, several times a step) a tenth of a training's. Above `LARGEST_REUSED` nothing changes, because holes
    of that size would be worth more memory than time. For a larger table `training.computation` makes one gradient a
    step, on a CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and USUAL <= largest <= LARGEST_REUSED:
        mallopt(M_MMAP_THRESHOLD, largest)
        mallopt(M_TRIM_THRESHOLD, 4 * largest)
