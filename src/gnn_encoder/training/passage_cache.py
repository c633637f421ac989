"""Passage vectors for eq. 6: first those of the plain dual encoder, later those of the encoder in training.

M_de's vectors become stale while the encoder trains, as the paper says. The current encoder can recompute the vectors
several times per epoch. Each version is a numbered file in the checkpoint's folder, so a resumed training uses the same
vectors.
"""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from gnn_encoder.models.dual_encoder import device
from gnn_encoder.storage.checkpoint_store import discard, sealed
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.training.checkpoint import FILE
from gnn_encoder.training.ranks import alone, is_leader, to_every_machine, writes_copies

NAME = "passages-{}.npy"
CHUNK = 8192
"""Passages encoded between two writes."""


class PassageCache:
    """Vectors [m, d] by passage row, memory-mapped, in the type of version 0, which has M_de's vectors.

    Args:
        vectors: M_de's vectors.
        rows: passages that training reads; only these passages are recomputed.
        encode: returns current vectors of passage rows.
    """

    def __init__(self, vectors: np.ndarray, rows: np.ndarray, encode: Callable[[np.ndarray], np.ndarray]) -> None:
        self.vectors, self.version = vectors, 0
        self._rows, self._encode = rows, encode

    def advance(self, version: int, folder: Path, progress: Callable[[int], Progress]) -> None:
        """Switches to a version. A file from before an interruption is reused; otherwise the leader writes the file."""
        if version == self.version:
            return
        file = folder / NAME.format(version)
        if is_leader():
            if not file.is_file():
                with alone():
                    self._write(file, progress(len(self._rows)))
            # Its time is the start of its use: an earlier checkpoint still needs the previous version.
            os.utime(file, ns=(now := time.time_ns(), now))
        to_every_machine(device(), file)
        self.vectors, self.version = np.load(file, mmap_mode="r"), version
        if is_leader():
            _remove_outdated(folder, version)
        elif writes_copies():  # the other machines resume from the leader's files
            for copy in set(folder.glob(NAME.format("*"))) - {file}:
                copy.unlink()

    def _write(self, file: Path, progress: Progress) -> None:
        stored = self.vectors
        with sealed(file) as partial, torch.autocast(device().type, enabled=False):
            vectors = np.lib.format.open_memmap(partial, mode="w+", dtype=stored.dtype, shape=stored.shape)
            for start in range(0, len(self._rows), CHUNK):
                rows = self._rows[start : start + CHUNK]
                new = self._encode(rows)
                if not np.isfinite(new).all():  # before the loss, of which the loop reads some steps later
                    raise FloatingPointError("passage vectors are not finite: lower learning_rate or score_scale")
                vectors[rows] = new
                progress.advance(len(rows))
            vectors.flush()


def _remove_outdated(folder: Path, version: int) -> None:
    """Deletes the versions that no resumed training reads: a later version came into use before the last checkpoint.

    A checkpoint's time is when its state was copied. Versions above `version` stay; they are of an earlier attempt
    that got further.
    """
    checkpoint = folder / FILE
    if not checkpoint.is_file():
        return
    files = [file for number in range(1, version + 1) if (file := folder / NAME.format(number)).is_file()]
    for file, successor in itertools.pairwise(files):
        if successor.stat().st_mtime_ns < checkpoint.stat().st_mtime_ns:
            discard(file)
