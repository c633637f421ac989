"""Arrays in unlinked temporary files: larger than memory, deleted with the process."""

import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa


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


def scratch_texts(batches: Iterable[pa.Array]) -> pa.Array:
    """Writes texts to an unlinked temporary file and returns them memory-mapped; memory holds 8 bytes a text.

    Batches have no null. Raises OSError if the disk has too little space.
    """
    lengths = [np.zeros(1, np.int64)]
    with tempfile.TemporaryFile() as file:
        for batch in batches:
            texts = batch.cast(pa.large_string())
            _, offsets, characters = texts.buffers()
            bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
            if bounds[-1] > bounds[0]:
                file.write(characters[int(bounds[0]) : int(bounds[-1])])
            lengths.append(np.diff(bounds))
        file.flush()
        ends = np.cumsum(np.concatenate(lengths))
        content = np.memmap(file, np.uint8, mode="r") if ends[-1] else np.empty(0, np.uint8)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.large_string(), len(ends) - 1, buffers)


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
