"""Digests that identify texts across runs: 128 bits of BLAKE2b, stored as two uint64."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

WORDS = np.dtype("<u8")


def text_digests(texts: Iterable[str]) -> np.ndarray:
    """Digests uint64 [n, 2] of n texts."""
    return digests_of(text.encode() for text in texts)


class Finder:
    """Finds digests among `known` [m, 2], whose order is made once."""

    def __init__(self, known: np.ndarray) -> None:
        self._order = np.argsort(known[:, 0], kind="stable")
        self._known = np.asarray(known)[self._order]

    def __call__(self, wanted: np.ndarray) -> np.ndarray:
        """The row in `known` of each digest of `wanted` [n, 2], int64 [n]; -1: missing."""
        if not len(self._known):
            return np.full(len(wanted), -1, np.int64)
        # Both sides in order: a binary search for unordered digests waits for memory, seven times as long for 10
        # million.
        order = np.argsort(wanted[:, 0], kind="stable")
        positions = np.empty(len(wanted), np.int64)
        positions[order] = np.searchsorted(self._known[:, 0], wanted[order, 0])
        positions = np.minimum(positions, len(self._known) - 1)
        # If two known digests share the first word, one counts as missing. That costs time, not correctness.
        return np.where((self._known[positions] == wanted).all(axis=1), self._order[positions], -1)


def find(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The row in `known` [m, 2] of each digest of `wanted` [n, 2], int64 [n]; -1: missing."""
    return Finder(known)(wanted)


def digests_of(contents: Iterable[bytes]) -> np.ndarray:
    """Digests uint64 [n, 2] of n contents."""
    joined = b"".join(blake2b(content, digest_size=16).digest() for content in contents)
    return np.frombuffer(joined, WORDS).reshape(-1, 2)
