"""The index that a bundle serves: kinds of FAISS index, built from an array larger than memory, and searched.

    flat       exact, fp32: no index, the vectors themselves are searched
    flat_fp16  exact over vectors rounded to fp16, half the size
    sq8        exhaustive over 8-bit codes, a quarter of the size
    ivf        inverted lists of fp16 codes: the lists nearest to the query are searched
    hnsw       a neighbour graph over fp16 codes; FAISS builds it in memory, codes and links of all passages

All but the last are built with a chunk in memory at a time.
"""

import struct
from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from typing import TypeAlias

import faiss
import numpy as np

from gnn_encoder.errors import UserError
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.exact import Hits
from gnn_encoder.settings.outcome import IndexKind

CHUNK = 65_536
"""Passages written at a time."""
POINTS = 40
"""Passages per inverted list that its centroid is learned from (FAISS warns below 39)."""
SAMPLE = 65_536
"""Passages that the range of 8-bit codes is learned from."""
FLAT_FILE = b"IxFI"
"""What FAISS calls the kind of index that earlier versions wrote for `flat`."""

Index: TypeAlias = faiss.Index | np.ndarray
"""What is searched: an index, or the vectors [m, d] themselves."""


FLAT = IndexKind()


def build_index(vectors: np.ndarray, path: Path, kind: IndexKind = FLAT) -> None:
    """Write an inner-product index over `vectors` [m, d]; of the kind `flat` there is nothing to write.

    Raises:
        RuntimeError: this FAISS has another file layout than the one written here.
    """
    m, d = vectors.shape
    if kind.index == "ivf" and m:
        _write_lists(vectors, path, kind)
    elif kind.index == "hnsw":
        links = faiss.IndexHNSWSQ(d, faiss.ScalarQuantizer.QT_fp16, kind.hnsw_links, faiss.METRIC_INNER_PRODUCT)  # type: ignore[arg-type]
        links.hnsw.efSearch = kind.hnsw_breadth
        _train(links, vectors, 1)  # fp16 codes learn nothing, but FAISS wants to be asked
        for chunk in _chunks(vectors):
            links.add(chunk)
        faiss.write_index(links, str(path))
    elif kind.index != "flat":
        bits = faiss.ScalarQuantizer.QT_8bit if kind.index == "sq8" else faiss.ScalarQuantizer.QT_fp16
        flat = faiss.IndexScalarQuantizer(d, bits, faiss.METRIC_INNER_PRODUCT)
        _train(flat, vectors, SAMPLE)
        # FAISS writes an index only from memory, where all codes would have to be. So the one without codes is
        # serialized, which ends with the codes' number of bytes, and the codes are appended.
        flat.ntotal = m
        with path.open("wb") as file:
            file.write(_before(flat, bytes(8)) + struct.pack("<Q", m * flat.sa_code_size()))
            for chunk in _chunks(vectors):
                file.write(flat.sa_encode(chunk).data)


def _write_lists(vectors: np.ndarray, path: Path, kind: IndexKind) -> None:
    """Write an index of inverted lists, one list after the other: its codes, then its int64 passage rows.

    In memory are 12 bytes a passage. A list's vectors lie scattered in `vectors` and are read in ascending order.
    """
    m, d = vectors.shape
    lists = max(1, min(kind.ivf_lists or 4 * isqrt(m), m // POINTS))
    quantizer = faiss.IndexFlatIP(d)
    ivf = faiss.IndexIVFScalarQuantizer(
        quantizer, d, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT, False
    )
    ivf.cp.min_points_per_centroid = 1  # fewer than 39 only where there are no more: no warning
    ivf.nprobe = kind.ivf_probes
    _train(ivf, vectors, lists * POINTS)
    into = np.concatenate([quantizer.search(chunk, 1)[1][:, 0].astype(np.int32) for chunk in _chunks(vectors)])
    sizes = np.bincount(into, minlength=lists)
    ivf.ntotal = m
    # Without vectors FAISS writes "sprs" and that no list has any: "full" and the size of every list go in its place.
    begin = struct.pack("<4sQQ", b"ilar", lists, ivf.code_size)
    with path.open("wb") as file:
        file.write(_before(ivf, begin + b"sprs" + bytes(8)) + begin + b"full")
        file.write(struct.pack("<Q", lists) + sizes.astype("<u8").tobytes())
        for rows in np.split(np.argsort(into, kind="stable"), np.cumsum(sizes)[:-1]):
            file.write(ivf.sq.compute_codes(_fp32(vectors[rows])).data)
            file.write(rows.astype("<i8").data)


def _before(index: faiss.Index, end: bytes) -> bytes:
    """An index as FAISS serializes it, without the `end` that it must have."""
    header: bytes = faiss.serialize_index(index).tobytes()
    if not header.endswith(end):
        raise RuntimeError(f"faiss {faiss.__version__} writes a {type(index).__name__} in a layout unknown here")
    return header.removesuffix(end)


def _train(index: faiss.Index, vectors: np.ndarray, most: int) -> None:
    """On at most so many evenly spaced rows; on a zero where there are none."""
    rows = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), most)).astype(np.int64))
    index.train(_fp32(vectors[rows]) if len(rows) else np.zeros((1, vectors.shape[1]), np.float32))


def _chunks(vectors: np.ndarray) -> Iterator[np.ndarray]:
    """All rows in fp32, `CHUNK` of them at a time."""
    for start in range(0, len(vectors), CHUNK):
        yield _fp32(vectors[start : start + CHUNK])


def _fp32(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def load_index(path: Path, shape: tuple[int, ...]) -> Index:
    """Open the index over vectors of that shape [m, d], memory-mapped where FAISS can.

    Args:
        path: what `build_index` wrote, or the vectors themselves, an .npy file.

    Raises:
        UserError: no such file, or no inner-product index over such vectors of a kind that is written here.
    """
    try:
        if path.suffix == ".npy":
            vectors: np.ndarray = np.load(path, mmap_mode="r")
            return vectors
        kind, begin = _codes_in(path, *shape)
        if kind == FLAT_FILE:
            return np.memmap(path, np.float32, "r", begin, shape) if shape[0] else np.empty(shape, np.float32)
        faiss.set_deserialization_vector_byte_limit(path.stat().st_size)
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (OSError, RuntimeError, ValueError, MemoryError, struct.error) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{path} is no readable FAISS index ({reason}): run encode_corpus again") from None


def _codes_in(path: Path, m: int, d: int) -> tuple[bytes, int]:
    """FAISS's four letters for the kind of an index file, and the byte at which its codes begin: they are what it ends
    with, and their number stands before them.

    FAISS trusts a memory-mapped file: one that is cut inside its header ends the process. So the header is compared
    with m, d and the file's size first.

    Raises:
        ValueError, struct.error: they do not fit.
    """
    with path.open("rb") as file:
        # After d and m two unused numbers and whether it is trained; after the metric the 8-bit flag or how many lists.
        kind, *header, own = struct.unpack("<4siq17xiQ", file.read(45))
        code = d if own & 0xFFFFFFFF == faiss.ScalarQuantizer.QT_8bit else 2 * d
        each = {FLAT_FILE: 4 * d, b"IxSQ": code, b"IHNs": 2 * d, b"IwSq": 2 * d + 8}.get(kind)
        if each is None or header != [d, m, faiss.METRIC_INNER_PRODUCT]:
            raise ValueError(f"a {kind.decode('latin-1')!r} with d, m, metric {header} for {m} vectors of {d}")
        begin = path.stat().st_size - m * each
        # Lists: how many, then the size of each.
        before, number = {FLAT_FILE: (8, m * d), b"IwSq": (8 + 8 * own, own)}.get(kind, (8, m * each))
        file.seek(max(begin - before, 0))
        if struct.unpack("<Q", file.read(8)) != (number,):
            raise ValueError(f"its size is not that of {m} vectors")
    return kind, begin


def search_index(index: Index, queries: np.ndarray, k: int) -> Hits:
    """The `k` best passages that the index finds, as `exact.search` gives them; vectors themselves: exactly.

    Raises:
        UserError: the index names a passage that there is not.
    """
    if isinstance(index, np.ndarray):
        return exact.search(index, queries, k)
    if index.ntotal == 0:
        return exact.search(np.empty((0, index.d), np.float32), queries, k)
    breadth = None
    if isinstance(index, faiss.IndexHNSW):
        breadth = faiss.SearchParametersHNSW(efSearch=max(index.hnsw.efSearch, k))  # type: ignore[attr-defined]
    scores, rows = index.search(_fp32(queries), k, params=breadth)
    if rows.min(initial=0) < -1 or rows.max(initial=-1) >= index.ntotal:
        raise UserError("the index names a passage that is not in the corpus: run encode_corpus again")
    scores[rows < 0] = -np.inf
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1).astype(np.int32)


def recall(index: Index, vectors: np.ndarray, queries: np.ndarray, k: int) -> float:
    """Share of the exact `k` best passages of `queries` [n, d] that the index finds."""
    _, found = search_index(index, queries, k)
    _, best = exact.search(vectors, queries, k)
    hits = [np.isin(wanted[wanted >= 0], got).mean() for wanted, got in zip(best, found, strict=True)]
    return float(np.mean(hits))
