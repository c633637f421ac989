"""Arrays in unlinked temporary files: larger than memory, deleted with the process."""

import math
import os
import tempfile
from typing import IO, Any

import numpy as np


def scratch(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An array in an unlinked temporary file; an OSError if the disk has no space for it."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    if not size:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        reserve(file, size)
        return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


def reserve(file: IO[bytes], size: int) -> None:
    """Lengthen a file to `size` bytes of reserved disk space and keep its content; an OSError if there is no space.

    Writing to a memory-mapped file whose disk is full would end the process without a message.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    length = file.seek(0, os.SEEK_END)  # macOS: only writing takes space
    while length < size:
        length += file.write(bytes(min(2**24, size - length)))
    file.flush()
