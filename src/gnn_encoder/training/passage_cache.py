"""The passage vectors of eq. 6, which training reads and does not compute: M_de's, or fresher ones.

While the passage encoder is trained, M_de's vectors go stale: a limit that the paper names. Here they can be made anew
by the encoder as it then is, a few times in an epoch. Each making has a number and a file in the checkpoint's folder,
so that a resumed training goes on with the vectors that it had.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from gnn_encoder.models.dual_encoder import device
from gnn_encoder.progress import Progress

CHUNK = 8192
"""Passages encoded between two writes."""


class PassageCache:
    """Vectors [m, d] by passage row, memory-mapped: making 0 is what was given.

    Args:
        vectors: M_de's.
        rows: passages that will be asked for; of others nothing is made.
        encode: passage rows → their vectors now.
    """

    def __init__(self, vectors: np.ndarray, rows: np.ndarray, encode: Callable[[np.ndarray], np.ndarray]) -> None:
        self.vectors, self.making = vectors, 0
        self._rows, self._encode = rows, encode

    def advance(self, making: int, folder: Path, progress: Callable[[int], Progress]) -> None:
        """Have the vectors of that making: those in the folder, if it was made before an interruption, else new ones.

        The making before the last goes: no checkpoint is as old.
        """
        if making == self.making:
            return
        file = folder / f"passages-{making}.npy"
        if not file.is_file():
            self._make(file, progress(len(self._rows)))
        self.vectors, self.making = np.load(file, mmap_mode="r"), making
        (folder / f"passages-{making - 2}.npy").unlink(missing_ok=True)

    def _make(self, file: Path, progress: Progress) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.partial-{os.getpid()}")
        made = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=self.vectors.shape)
        with torch.autocast(device().type, enabled=False):
            for start in range(0, len(self._rows), CHUNK):
                rows = self._rows[start : start + CHUNK]
                made[rows] = self._encode(rows)
                progress.advance(len(rows))
        made.flush()
        partial.replace(file)
