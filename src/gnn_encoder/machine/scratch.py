"""Arrays in unlinked temporary files: larger than memory, gone with the process."""

import math
import os
import tempfile
from typing import IO, Any

import numpy as np

ZEROS = 2**24
"""Bytes written at once where the system cannot reserve room."""


def scratch(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An array in an unlinked temporary file.

    Raises:
        OSError: the disk has no room for it.
    """
    size = np.dtype(dtype).itemsize * math.prod(shape)
    if not size:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        reserve(file, size)
        return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


def reserve(file: IO[bytes], size: int) -> None:
    """Lengthen a file to `size` bytes that have room on the disk; what it holds stays.

    Writing to a memory-mapped file whose disk is full ends the process without a message, so the room is taken first.

    Raises:
        OSError: the disk has no room for it.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    length = file.seek(0, os.SEEK_END)  # macOS: only writing takes room
    while length < size:
        length += file.write(bytes(min(ZEROS, size - length)))
    file.flush()
