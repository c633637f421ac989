"""Exact inner-product search through FAISS, over arrays larger than memory, with one order for ties.

The vectors are read a chunk at a time, so a memory-mapped corpus is never resident as a whole.
Hits are ordered by score and, where the computed fp32 scores are equal, by passage row. FAISS itself
leaves open which of several equal scores it keeps at the cut; those queries are scored again in
NumPy, chunk by chunk. Two passages whose exact scores tie but whose fp32 sums differ in the last bit
are no tie here, and which bit comes out depends on the BLAS and on `CHUNK`.
"""

import struct
from pathlib import Path

import faiss
import numpy as np

from gnn_encoder.errors import UserError
from gnn_encoder.progress import Progress

CHUNK = 65_536
"""Passages searched, or written to an index, at a time."""
QUERIES = 4096
"""Queries whose hits of one chunk are held and merged at a time."""

Hits = tuple[np.ndarray, np.ndarray]


def search(
    vectors: np.ndarray, queries: np.ndarray, k: int, *, chunk: int = CHUNK, progress: Progress | None = None
) -> Hits:
    """The `k` passages of largest inner product with each query.

    Args:
        vectors: [m, d], fp32 or fp16, in memory or memory-mapped.
        queries: [n, d].
        k: hits per query.
        chunk: passages searched at a time; each is read once, for all queries.
        progress: counts passages.

    Returns:
        Scores fp32 [n, k] and passage rows int32 [n, k], best first, ties by ascending row. Where
        k > m the rest is row -1 with score -inf.
    """
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    rows = np.full((len(queries), k), -1, dtype=np.int32)
    for start in range(0, len(vectors), chunk):
        block = np.ascontiguousarray(vectors[start : start + chunk], dtype=np.float32)
        for first in range(0, len(queries), QUERIES):
            some = slice(first, first + QUERIES)
            found, where = _top(block, np.ascontiguousarray(queries[some], dtype=np.float32), k)
            scores[some], rows[some] = _merge(scores[some], rows[some], found, where + start)
        if progress:
            progress.advance(len(block))
    return scores, rows


def _top(block: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """The best min(k, b) of a block [b, d], in any order, cut at ties by ascending row."""
    depth = min(k + 1, len(block))
    scores, rows = faiss.knn(queries, block, depth, metric=faiss.METRIC_INNER_PRODUCT)
    if depth <= k:
        return scores, rows
    for query in np.flatnonzero(scores[:, k - 1] == scores[:, k]):
        exact = block @ queries[query]
        best = np.argsort(-exact, kind="stable")[:k]
        scores[query, :k], rows[query, :k] = exact[best], best
    return scores[:, :k], rows[:, :k]


def _merge(scores: np.ndarray, rows: np.ndarray, more_scores: np.ndarray, more_rows: np.ndarray) -> Hits:
    """The best k of two hit lists [n, k] and [n, j]; a pad's score, -inf, sorts last."""
    all_scores = np.concatenate([scores, more_scores], axis=1)
    all_rows = np.concatenate([rows, more_rows.astype(np.int32)], axis=1)
    order = np.lexsort((all_rows, -all_scores), axis=1)[:, : scores.shape[1]]
    return np.take_along_axis(all_scores, order, axis=1), np.take_along_axis(all_rows, order, axis=1)


def build_index(vectors: np.ndarray, path: Path) -> None:
    """Write a flat inner-product FAISS index over `vectors` [m, d], a chunk in memory at a time.

    FAISS writes an index only from memory, where all m·d floats would have to be. So an empty one is
    serialized for its header, the counts in it are set, and the vectors are appended to the file.

    Raises:
        RuntimeError: this FAISS has another file layout than the one written here.
    """
    m, d = vectors.shape
    # "IxFI", int32 d, int64 m, two unused int64, bool trained, int32 metric, uint64 floats.
    header = bytearray(faiss.serialize_index(faiss.IndexFlatIP(d)).tobytes())
    if header[:4] != b"IxFI" or len(header) != 45 or struct.unpack_from("<iq", header, 4) != (d, 0):
        raise RuntimeError(f"faiss {faiss.__version__} writes flat indexes in a layout unknown here")
    struct.pack_into("<q", header, 8, m)
    struct.pack_into("<Q", header, len(header) - 8, m * d)
    with path.open("wb") as file:
        file.write(header)
        for start in range(0, m, CHUNK):
            file.write(np.ascontiguousarray(vectors[start : start + CHUNK], dtype="<f4").data)


def load_index(path: Path) -> faiss.IndexFlatIP:
    """Open an index that `build_index` wrote, memory-mapped.

    Raises:
        UserError: no such file, or not a flat inner-product index.
    """
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError:
        raise UserError(f"{path} is no readable FAISS index: run encode_corpus again") from None
    if not isinstance(index, faiss.IndexFlatIP):
        raise UserError(f"{path} holds a FAISS {type(index).__name__} where a flat inner-product index is needed")
    return index


def search_index(index: faiss.IndexFlatIP, queries: np.ndarray, k: int) -> Hits:
    """`search` over the vectors inside a flat index, without copying them."""
    if index.ntotal == 0:
        return search(np.empty((0, index.d), np.float32), queries, k)
    stored = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
    return search(stored.reshape(index.ntotal, index.d), queries, k)
