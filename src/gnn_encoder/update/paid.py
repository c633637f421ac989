"""The vectors that a service has given, in a folder that grows by each answer: a text is paid once.

digests   uint64 [n, 2] of the texts, one after the other; zeros: a forgotten text. vectors: fp32 [n, d], likewise
width     d
"""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts.digests import WORDS, Finder, find
from gnn_encoder.artifacts.replacing import replace_content

RECENT = 65_536
"""Texts that are looked up without an order of all texts."""
WIDE, WIDTH = 2 * WORDS.itemsize, "width"


class Paid:
    """What a service with vectors of `width` numbers has given for texts; one process writes at a time."""

    def __init__(self, folder: Path, width: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._digests, self._vectors, self._width = folder / "digests", folder / "vectors", width
        for file in (self._digests, self._vectors):
            file.touch()
        if not (folder / WIDTH).exists():
            replace_content(folder / WIDTH, str(width).encode())
        # A killed process may have written a part of an answer.
        self._count = min(self._digests.stat().st_size // WIDE, self._vectors.stat().st_size // (4 * width))
        for file, wide in ((self._digests, WIDE), (self._vectors, 4 * width)):
            with file.open("r+b") as opened:
                opened.truncate(self._count * wide)
        self._recent = np.empty((0, 2), WORDS)
        self._order()

    def find(self, digests: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns which digests uint64 [n, 2] are there, bool [n], and the vectors fp32 [p, d] of these p."""
        rows, recent = self._finder(digests), Finder(self._recent)(digests)
        rows = np.where(rows >= 0, rows, np.where(recent >= 0, recent + self._ordered, -1))
        is_paid = rows >= 0
        if not is_paid.any():
            return is_paid, np.empty((0, self._width), np.float32)
        vectors = np.memmap(self._vectors, np.float32, "r", shape=(self._count, self._width))
        return is_paid, np.array(vectors[rows[is_paid]])

    def add(self, digests: np.ndarray, vectors: np.ndarray) -> None:
        """Keeps the vectors [n, d] of n digests; with the digests, which are written last, they count."""
        for file, rows in ((self._vectors, np.asarray(vectors, np.float32)), (self._digests, digests)):
            with file.open("ab") as opened:
                opened.write(np.ascontiguousarray(rows).tobytes())
        self._count += len(digests)
        self._recent = np.concatenate([self._recent, digests])
        if len(self._recent) > RECENT:
            self._order()

    def _order(self) -> None:
        self._finder, self._ordered = Finder(np.fromfile(self._digests, WORDS).reshape(-1, 2)), self._count
        self._recent = np.empty((0, 2), WORDS)


def forget(folder: Path, digests: np.ndarray) -> bool:
    """Writes zeros over the vectors and digests of some texts [n, 2] in a folder of `Paid`; returns whether it had any.

    The digests are written last: after a crash, the same call finds and finishes what it began.
    """
    vectors, known = folder / "vectors", np.fromfile(folder / "digests", WORDS)
    known = known[: len(known) // 2 * 2].reshape(-1, 2)
    gone = np.flatnonzero(find(digests, known) >= 0)
    if not len(gone):
        return False
    # Folders of version 0.1.0 do not say it.
    width = (
        int((folder / WIDTH).read_text()) if (folder / WIDTH).exists() else vectors.stat().st_size // 4 // len(known)
    )
    for file, kind, wide in ((vectors, np.float32, width), (folder / "digests", WORDS, 2)):
        rows = np.memmap(file, kind, "r+", shape=(len(known), wide))
        rows[gone] = 0
        rows.flush()
    return True
