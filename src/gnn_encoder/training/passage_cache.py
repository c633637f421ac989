"""The passage vectors of eq. 6, which training reads and does not compute: M_de's, or fresher ones.

While the passage encoder is trained, M_de's vectors go stale: a limit that the paper names. Here they can be made anew
by the encoder as it then is, a few times in an epoch. Each making has a number and a file in the checkpoint's folder,
so that a resumed training goes on with the vectors that it had.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from gnn_encoder.models.dual_encoder import device
from gnn_encoder.storage.checkpoints import seal
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.training.checkpoint import FILE
from gnn_encoder.training.ranks import is_leader, meet

NAME = "passages-{}.npy"
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

        Of several processes that train together the leader makes them.
        """
        if making == self.making:
            return
        file = folder / NAME.format(making)
        if is_leader():
            if file.is_file():
                file.touch()  # in use from now on: the one before may be needed by a checkpoint made until now
            else:
                self._make(file, progress(len(self._rows)))
        meet()
        self.vectors, self.making = np.load(file, mmap_mode="r"), making
        if is_leader():
            _remove_outdated(folder, making)

    def _make(self, file: Path, progress: Progress) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.partial")
        made = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=self.vectors.shape)
        with torch.autocast(device().type, enabled=False):
            for start in range(0, len(self._rows), CHUNK):
                rows = self._rows[start : start + CHUNK]
                made[rows] = self._encode(rows)
                progress.advance(len(rows))
        made.flush()
        seal(partial, file)


def _remove_outdated(folder: Path, making: int) -> None:
    """Makings that were followed by another before the last checkpoint: no resumed training asks for them again.

    Those after `making`, the one in use, were left by an attempt that came further.
    """
    checkpoint = folder / FILE
    if not checkpoint.is_file():
        return
    made = [file for number in range(1, making + 1) if (file := folder / NAME.format(number)).is_file()]
    for file, next_one in itertools.pairwise(made):
        if next_one.stat().st_mtime_ns < checkpoint.stat().st_mtime_ns:
            file.unlink()
