"""Exact inner-product search by FAISS, over arrays larger than memory, with ties in a defined order.

The vectors are read in chunks, so memory never holds a whole memory-mapped corpus. Hits are ordered by score; hits with
equal fp32 scores are ordered by passage row. If several passages have the score at the cut-off, FAISS keeps arbitrary
ones, so these queries are scored again in NumPy. Passages with equal exact scores but different last bits of the fp32
sums are no tie; the last bit depends on the BLAS, on the chunk and on the number of queries.

On a GPU, if torch is loaded and there are many queries, each chunk is copied there, and a product and `topk` of torch
take the place of FAISS, with any build of it. This has not been measured yet, nor has FAISS's own search on a GPU.

Sums of fp16 vectors are fp32, too. For a few queries FAISS reads fp16 codes as they are, which needs no torch: loading
it would take longer than the search. For many, torch widens each chunk, seven times as fast as NumPy.
"""

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

import faiss
import numpy as np

from gnn_encoder.artifacts.arrays import JoinedRows, Rows
from gnn_encoder.retrieval.hits import Hits, merge, no_hits
from gnn_encoder.tracking.progress import Progress

if TYPE_CHECKING:
    from torch import Tensor

# The tensors over memory-mapped arrays are only read here, so torch's warning about them does not apply.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

CHUNK = 65_536
"""Passages searched at a time."""
FEW, CODES = 20, 16_384
"""From so many queries on FAISS multiplies matrices. For fewer, so many fp16 vectors are copied at a time, a copy that
stays in the processor's caches."""
GATHERED = 4096
"""Of fp16 vectors at chosen rows, which are copied twice, so many are copied at a time."""
PRODUCTS_BELOW = faiss.cvar.distance_compute_blas_threshold
"""FAISS's own bound, in numbers of all queries, below which it multiplies vector by vector."""
QUERIES = 4096
"""Queries with the hits of one chunk in memory at a time."""
LARGER = 4
"""On a GPU so many times as many passages, and as few queries: a product has 1 GB."""
_kept = threading.local()
"""The FAISS codes of each thread's last search (`_codes`)."""


def search(
    vectors: Rows,
    queries: np.ndarray,
    k: int,
    *,
    chunk: int = CHUNK,
    progress: Progress | None = None,
    only: np.ndarray | None = None,
) -> Hits:
    """The `k` passages of largest inner product with each query.

    Args:
        vectors: [m, d], fp32 or fp16, in memory or memory-mapped, in one piece or in parts, whose hits have the same
            bits; each is read once. queries: [n, d].
        chunk: passages searched at a time (on a GPU, see `LARGER`). progress: counts passages.
        only: rows of the passages that are searched, ascending; None: all.

    Returns:
        Scores fp32 [n, k] and passage rows int32 [n, k], best first, ties by ascending row. With k > m the remaining
        scores are -inf and the remaining rows -1. A passage whose product is NaN is no hit.
    """
    scores, rows = no_hits(len(queries), k)
    nearest, wide, together = _by_products, np.empty((0, vectors.shape[1]), np.float32), QUERIES
    if len(queries) >= FEW and _has_gpu():
        nearest, chunk, together = _OnGpu(), LARGER * chunk, QUERIES // LARGER
    elif vectors.dtype == np.float16 and len(queries) < FEW:
        nearest = partial(_by_codes, _codes(vectors.shape[1]))
        chunk = min(chunk, CODES if only is None else GATHERED)
    elif vectors.dtype != np.float32:
        wide = np.empty((min(chunk, len(vectors)), vectors.shape[1]), np.float32)
    for start, block in _blocks(vectors, chunk) if only is None else _gathered(vectors, chunk, only):
        if len(wide):
            block = _widened(block, wide[: len(block)])
        for first in range(0, len(queries), together):
            some = slice(first, first + together)
            more_scores, more_rows = _top(nearest, block, np.ascontiguousarray(queries[some], dtype=np.float32), k)
            missing = more_rows < 0  # fewer than k products of the chunk are numbers
            more_scores[missing] = -np.inf
            passage_rows = np.where(missing, -1, more_rows + start)
            scores[some], rows[some] = merge(scores[some], rows[some], more_scores, passage_rows)
        if progress:
            progress.advance(len(block))
    return scores, rows if only is None else np.where(rows >= 0, np.append(only, -1)[rows], -1).astype(np.int32)


def _blocks(vectors: Rows, chunk: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the first row of each chunk, and the chunk [c, d]; of vectors in parts it is gone with the next one."""
    starts = range(0, len(vectors), chunk)
    if not isinstance(vectors, JoinedRows):
        for start in starts:
            yield start, np.ascontiguousarray(vectors[start : start + chunk])
        return
    memory = np.empty((min(chunk, len(vectors)), vectors.shape[1]), vectors.dtype)
    for start in starts:
        stop = min(start + chunk, len(vectors))
        yield start, vectors.between(start, stop, memory[: stop - start])


def _gathered(vectors: Rows, chunk: int, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """As `_blocks`, of the vectors at some rows; yields their places among the rows."""
    if len(rows) and rows[-1] >= len(vectors):
        raise IndexError(f"row {rows[-1]} of an array of {len(vectors)} rows")
    memory = np.empty((min(chunk, len(rows)), vectors.shape[1]), vectors.dtype)
    for start in range(0, len(rows), chunk):
        some = rows[start : start + chunk]
        if isinstance(vectors, JoinedRows):
            yield start, np.ascontiguousarray(vectors[some])
        else:  # into the same memory, since new pages take longer than the copy
            yield start, np.take(vectors, some, axis=0, out=memory[: len(some)], mode="clip")


def _widened(block: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Writes a block to `out` fp32 and returns it."""
    import torch

    torch.from_numpy(out).copy_(torch.from_numpy(block))
    return out


def _by_products(block: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """The best k of a block fp32 [b, d]."""
    # FAISS would multiply 300 queries vector by vector, and take seven times as long.
    faiss.cvar.distance_compute_blas_threshold = 1 if len(queries) >= FEW else PRODUCTS_BELOW
    scores, rows = faiss.knn(queries, block, k, metric=faiss.METRIC_INNER_PRODUCT)
    return scores, rows


def _has_gpu() -> bool:
    torch = sys.modules.get("torch")  # loading it takes longer than the search of a few queries
    return torch is not None and bool(torch.cuda.is_available())


class _OnGpu:
    """As `_by_products`, of a block fp32 or fp16. A block is copied to the GPU once, for all queries."""

    def __init__(self) -> None:
        self._block, self._copy = np.empty(0), cast("Tensor", None)

    def __call__(self, block: np.ndarray, queries: np.ndarray, k: int) -> Hits:
        import torch

        from gnn_encoder.models.dual_encoder import on_device

        if block is not self._block:
            self._block, self._copy = block, on_device(block).float()
        products = on_device(queries) @ self._copy.T
        scores, rows = products.masked_fill_(products.isnan(), -torch.inf).topk(k)
        return scores.cpu().numpy(), rows.masked_fill_(scores.isneginf(), -1).cpu().numpy()


def _codes(width: int) -> faiss.IndexScalarQuantizer:
    """What holds this thread's fp16 vectors. It is kept, since new pages can take longer than the products."""
    codes: faiss.IndexScalarQuantizer | None = getattr(_kept, "codes", None)
    if codes is None or codes.d != width:
        codes = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
        _kept.codes = codes
    return codes


def _by_codes(codes: faiss.IndexScalarQuantizer, block: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """The best k of a block fp16 [b, d]; `codes` keeps its memory from block to block."""
    codes.reset()
    codes.add_sa_codes(block.view(np.uint8))
    scores, rows = codes.search(queries, k)
    return scores, rows


def _top(nearest: Callable[..., Hits], block: np.ndarray, queries: np.ndarray, k: int) -> Hits:
    """The best min(k, b) of a block [b, d], in any order; at the cut-off the lower row of a tie is kept."""
    depth = min(k + 1, len(block))
    scores, rows = nearest(block, queries, depth)
    if depth <= k:
        return scores, rows
    tied = np.flatnonzero((scores[:, k - 1] == scores[:, k]) & (rows[:, k] >= 0))
    wide = np.asarray(block, np.float32) if len(tied) else block
    for query in tied:
        # One product for all these queries would give copies of a vector different last bits on some processors.
        worse = -(wide @ queries[query])
        # Sorting the whole block would take as long as the product.
        near = np.flatnonzero(worse <= np.partition(worse, k - 1)[k - 1])
        best = near[np.argsort(worse[near], kind="stable")[:k]]
        scores[query, :k], rows[query, :k] = -worse[best], best
    return scores[:, :k], rows[:, :k]
