"""Arrays in unlinked temporary files: larger than memory, gone with the process."""

import math
import os
import tempfile
from typing import Any

import numpy as np


def scratch(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An array in an unlinked temporary file.

    Raises:
        OSError: no room for it (a memory-mapped file that outgrows its disk would end the process without a word).
    """
    size = np.dtype(dtype).itemsize * math.prod(shape)
    if not size:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return np.memmap(file, dtype=dtype, mode="r+", shape=shape)
