"""The rows of an export: one for each vector of a bundle, in blocks, each row with a digest of all its content.

A digest is the first 8 bytes of the SHA-256 of passage_id, title, text, part and vector. Two of 10 million rows share
one with a probability of 3 in a million. So a table that has the digests of a bundle has its rows, and an update needs
8 bytes of memory for each row on either side. SHA-256, because PostgreSQL can compute it from its own rows.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.passages import Passages

ROWS = 16_384
"""Rows of a block: 25 MB of vectors at width 384."""


@dataclass(frozen=True)
class Block:
    """Some rows: their passages, `parts` int32 [b] and `vectors` fp32 [b, d].

    A part is the number of a vector within its passage, from 0.
    """

    passages: Passages
    parts: np.ndarray
    vectors: np.ndarray

    def digests(self) -> np.ndarray:
        """Returns the rows' digests int64 [b]."""
        width = self.vectors.shape[1]
        head, vectors = struct.pack(">HH", width, 0), np.ascontiguousarray(self.vectors, ">f4").tobytes()
        passages, parts, digests = self.passages, np.ascontiguousarray(self.parts, ">i4").tobytes(), []
        for i, words in enumerate(zip(passages.ids, passages.titles, passages.texts, strict=True)):
            # As PostgreSQL has it: int4send(part), and vector_send(vector), which begins with the width and a zero.
            numbers = parts[4 * i : 4 * i + 4] + head + vectors[4 * width * i : 4 * width * (i + 1)]
            content = b"\0".join([*(word.encode() for word in words), numbers])
            digests.append(hashlib.sha256(content).digest()[:8])
        return np.frombuffer(b"".join(digests), ">i8").astype(np.int64)

    def columns(self) -> dict[str, pa.Array]:
        """Returns the columns passage_id, title, text and vector."""
        passages = self.passages
        texts = {"passage_id": passages.ids, "title": passages.titles, "text": passages.texts}
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(self.vectors.ravel()), self.vectors.shape[1])
        return {name: pa.array(column, pa.string()) for name, column in texts.items()} | {"vector": vectors}


def fields(width: int) -> list[pa.Field]:
    """Returns the fields of `Block.columns`."""
    texts = [pa.field(name, pa.string()) for name in ("passage_id", "title", "text")]
    return [*texts, pa.field("vector", pa.list_(pa.float32(), width))]


def passages_of(bundle: Bundle, rows: np.ndarray) -> np.ndarray:
    """Returns the passages [n] of the vectors `rows` [n]."""
    return rows if bundle.vector_passages is None else np.asarray(bundle.vector_passages[rows])


def blocks(
    bundle: Bundle, rows: np.ndarray | None = None, done: Callable[[int], None] | None = None
) -> Iterator[Block]:
    """Yields the rows of a bundle, or those at `rows` [n], ascending; `done` counts the rows that were taken."""
    of = bundle.vector_passages
    for start in range(0, len(bundle.vectors) if rows is None else len(rows), ROWS):
        if rows is None:
            chunk = np.arange(start, min(start + ROWS, len(bundle.vectors)))
            vectors = bundle.vectors[start : start + ROWS]
        else:
            chunk = rows[start : start + ROWS]
            vectors = bundle.vectors[chunk]
        passages = passages_of(bundle, chunk)
        parts = (
            np.zeros(len(chunk), np.int32) if of is None else (chunk - np.searchsorted(of, passages)).astype(np.int32)
        )
        yield Block(bundle.passages.take(passages), parts, np.ascontiguousarray(vectors, np.float32))
        if done:
            done(len(chunk))


def digests_of(
    bundle: Bundle, done: Callable[[int], None], stored: Callable[[Block], Block] = lambda block: block
) -> np.ndarray:
    """Returns the digest int64 [v] of every row of a bundle, in the form in which a table has it (`stored`)."""
    return np.concatenate([stored(block).digests() for block in blocks(bundle, done=done)])


@dataclass(frozen=True)
class Changes:
    """What makes a table that has some rows a bundle's: `new` int64 [n], rows of the bundle, ascending, and `old`
    int64 [o], digests of the table's rows to delete."""

    new: np.ndarray
    old: np.ndarray
    stayed: int

    @classmethod
    def between(cls, digests: np.ndarray, stored: np.ndarray) -> "Changes":
        """Compares the digests [v] of a bundle with those of a table [t]."""
        new = np.flatnonzero(np.isin(digests, stored, invert=True))
        return cls(new, np.setdiff1d(stored, digests), len(digests) - len(new))

    def __str__(self) -> str:
        return f"sent {len(self.new):,} rows, deleted {len(self.old):,}, {self.stayed:,} stayed"
