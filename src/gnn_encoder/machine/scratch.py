"""Arrays in unlinked temporary files: larger than memory, deleted with the process."""

import math
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import numpy as np


def scratch(*shape: int, dtype: Any = np.float32, folder: Path | None = None) -> np.ndarray:
    """Creates an array in an unlinked temporary file; raises OSError if the disk has too little space.

    Args:
        folder: any folder on the disk to use; None: the system's folder for temporary files.
    """
    size = np.dtype(dtype).itemsize * math.prod(shape)
    if not size:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        reserve(file, size)
        return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


def reserve(file: IO[bytes], size: int) -> None:
    """Lengthens a file to `size` bytes of reserved disk space, keeping its content; raises OSError without space.

    Without a reservation, writing to a memory-mapped file on a full disk ends the process without a message.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    length = file.seek(0, os.SEEK_END)  # macOS: only writing reserves space
    while length < size:
        length += file.write(bytes(min(2**24, size - length)))
    file.flush()
