"""What the C library holds of memory that is free."""

import ctypes
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """glibc's malloc_trim; nothing where there is another C library.

    Where large arrays come and go beside small ones that stay, the heap fills with holes too small for the next; each
    thread has a heap of its own.
    """
    _malloc_trim()(0)


@cache
def _malloc_trim() -> Callable[[int], int]:
    trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)
    return trim
