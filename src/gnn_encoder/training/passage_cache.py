"""The passage vectors of eq. 6, which training reads and does not compute: M_de's, or fresher ones.

While the passage encoder is trained, M_de's vectors go stale: a limit that the paper names. Here the encoder as it then
is can refresh them, a few times in an epoch. Each version has a number and a file in the checkpoint's folder, so that a
resumed training goes on with the vectors that it had.
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
    """Vectors [m, d] by passage row, memory-mapped: version 0 is M_de's.

    Args:
        vectors: M_de's.
        rows: passages that training reads; others are not refreshed.
        encode: passage rows → their vectors now.
    """

    def __init__(self, vectors: np.ndarray, rows: np.ndarray, encode: Callable[[np.ndarray], np.ndarray]) -> None:
        self.vectors, self.version = vectors, 0
        self._rows, self._encode = rows, encode

    def advance(self, version: int, folder: Path, progress: Callable[[int], Progress]) -> None:
        """Switch to a version: the folder's, if it was written before an interruption, else a new one.

        Of several processes that train together the leader writes it.
        """
        if version == self.version:
            return
        file = folder / NAME.format(version)
        if is_leader():
            if file.is_file():
                file.touch()  # in use from now on: a checkpoint written until now may need the version before
            else:
                self._write(file, progress(len(self._rows)))
        meet()
        self.vectors, self.version = np.load(file, mmap_mode="r"), version
        if is_leader():
            _remove_outdated(folder, version)

    def _write(self, file: Path, progress: Progress) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.partial")
        vectors = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=self.vectors.shape)
        with torch.autocast(device().type, enabled=False):
            for start in range(0, len(self._rows), CHUNK):
                rows = self._rows[start : start + CHUNK]
                vectors[rows] = self._encode(rows)
                progress.advance(len(rows))
        vectors.flush()
        seal(partial, file)


def _remove_outdated(folder: Path, version: int) -> None:
    """Remove versions that another followed before the last checkpoint: no resumed training needs them.

    An attempt that came further left those after `version`, the one in use.
    """
    checkpoint = folder / FILE
    if not checkpoint.is_file():
        return
    files = [file for number in range(1, version + 1) if (file := folder / NAME.format(number)).is_file()]
    for file, successor in itertools.pairwise(files):
        if successor.stat().st_mtime_ns < checkpoint.stat().st_mtime_ns:
            file.unlink()
