"""The index that a bundle serves: kinds of FAISS index, built from an array larger than memory, and searched.

    flat       exact, fp32
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

import faiss
import numpy as np

from gnn_encoder.errors import UserError
from gnn_encoder.machine.scratch import reserve
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.exact import Hits
from gnn_encoder.settings.outcome import IndexKind

CHUNK = 65_536
"""Passages written at a time."""
POINTS = 40
"""Passages per inverted list that its centroid is learned from (FAISS warns below 39)."""
SAMPLE = 65_536
"""Passages that the range of 8-bit codes is learned from."""


FLAT = IndexKind()


def build_index(vectors: np.ndarray, path: Path, kind: IndexKind = FLAT) -> None:
    """Write an inner-product index over `vectors` [m, d].

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
        for _, chunk in _chunks(vectors):
            links.add(chunk)
        faiss.write_index(links, str(path))
    else:
        codes = {"flat_fp16": faiss.ScalarQuantizer.QT_fp16, "sq8": faiss.ScalarQuantizer.QT_8bit}.get(kind.index)
        flat = (
            faiss.IndexFlatIP(d) if codes is None else faiss.IndexScalarQuantizer(d, codes, faiss.METRIC_INNER_PRODUCT)
        )
        _train(flat, vectors, SAMPLE)
        _write_codes(flat, vectors, path)


def _write_codes(empty: faiss.IndexFlatCodes, vectors: np.ndarray, path: Path) -> None:
    """Write an index of one code per vector, a chunk in memory at a time.

    FAISS writes an index only from memory, where all codes would have to be. So the empty one is serialized
    for its header, the counts in it are set, and the codes are appended to the file.
    """
    m, d = vectors.shape
    # Four letters, int32 d, int64 m, …, and last the uint64 length of the codes: in floats where they are floats.
    header = bytearray(faiss.serialize_index(empty).tobytes())
    unit = {b"IxFI": 4, b"IxSQ": 1}.get(bytes(header[:4]))
    if unit is None or struct.unpack_from("<iq", header, 4) != (d, 0) or header[-8:] != bytes(8):
        raise RuntimeError(f"faiss {faiss.__version__} writes flat indexes in a layout unknown here")
    struct.pack_into("<q", header, 8, m)
    struct.pack_into("<Q", header, len(header) - 8, m * empty.sa_code_size() // unit)
    with path.open("wb") as file:
        file.write(header)
        for _, chunk in _chunks(vectors):
            file.write(empty.sa_encode(chunk).data)


def _write_lists(vectors: np.ndarray, path: Path, kind: IndexKind) -> None:
    """Write an index of inverted lists: each vector's list first (4 bytes a vector), then every code at its place."""
    m, d = vectors.shape
    lists = max(1, min(kind.ivf_lists or 4 * isqrt(m), m // POINTS))
    quantizer = faiss.IndexFlatIP(d)
    ivf = faiss.IndexIVFScalarQuantizer(
        quantizer, d, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT, False
    )
    ivf.cp.min_points_per_centroid = 1  # fewer than 39 only where there are no more: no warning
    ivf.nprobe = kind.ivf_probes
    _train(ivf, vectors, lists * POINTS)
    into = np.concatenate([quantizer.search(chunk, 1)[1][:, 0].astype(np.int32) for _, chunk in _chunks(vectors)])
    sizes = np.bincount(into, minlength=lists)
    header = bytearray(faiss.serialize_index(ivf).tobytes())
    # "ilar", uint64 lists and bytes a code, "full", the lists' sizes; then of each list its codes and its int64 ids.
    begin = struct.pack("<4sQQ", b"ilar", lists, ivf.code_size)
    start = header.rfind(begin)
    if struct.unpack_from("<iq", header, 4) != (d, 0) or start < 0:
        raise RuntimeError(f"faiss {faiss.__version__} writes inverted lists in a layout unknown here")
    struct.pack_into("<q", header, 8, m)
    head = bytes(header[:start]) + begin + b"full" + struct.pack("<Q", lists) + sizes.astype("<u8").tobytes()
    bytes_each = ivf.code_size + 8
    first = np.concatenate([[0], np.cumsum(sizes)])  # vectors before each list
    with path.open("w+b") as file:
        file.write(head)
        file.flush()
        reserve(file, len(head) + m * bytes_each)
        body = np.memmap(file, dtype=np.uint8, mode="r+", offset=len(head), shape=(m * bytes_each,))
        filled = np.zeros(lists, dtype=np.int64)
        for row, chunk in _chunks(vectors):
            codes = ivf.sq.compute_codes(chunk)
            order = np.argsort(into[row : row + len(chunk)], kind="stable")
            mine, begins, counts = np.unique(into[row + order], return_index=True, return_counts=True)
            for number, begin_at, count in zip(mine, begins, counts, strict=True):
                these = order[begin_at : begin_at + count]
                at, size = first[number] * bytes_each, sizes[number]
                place = filled[number] + np.arange(count)
                body[at : at + size * ivf.code_size].reshape(size, -1)[place] = codes[these]
                ids = body[at + size * ivf.code_size : at + size * bytes_each].reshape(size, 8)
                ids[place] = (row + these).astype("<i8").view(np.uint8).reshape(-1, 8)
            filled[mine] += counts
        body.flush()


def _train(index: faiss.Index, vectors: np.ndarray, most: int) -> None:
    """On at most so many evenly spaced rows; on a zero where there are none."""
    rows = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), most)).astype(np.int64))
    index.train(_fp32(vectors[rows]) if len(rows) else np.zeros((1, vectors.shape[1]), np.float32))


def _chunks(vectors: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Some rows after others in fp32, with the first one's number."""
    for start in range(0, len(vectors), CHUNK):
        yield start, _fp32(vectors[start : start + CHUNK])


def _fp32(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, dtype=np.float32)


SERVED = (faiss.IndexFlatIP, faiss.IndexScalarQuantizer, faiss.IndexIVFScalarQuantizer, faiss.IndexHNSWSQ)


def load_index(path: Path) -> faiss.Index:
    """Open an index that `build_index` wrote, memory-mapped where FAISS can.

    Raises:
        UserError: no such file, or no inner-product index of a kind that is written here.
    """
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError:
        raise UserError(f"{path} is no readable FAISS index: run encode_corpus again") from None
    if not isinstance(index, SERVED) or index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise UserError(
            f"{path} holds a FAISS {type(index).__name__} where encode_corpus writes an inner-product index"
        )
    return index


def search_index(index: faiss.Index, queries: np.ndarray, k: int) -> Hits:
    """The `k` best passages that the index finds, as `index.search` gives them: exact where it is flat fp32."""
    if index.ntotal == 0:
        return exact.search(np.empty((0, index.d), np.float32), queries, k)
    if isinstance(index, faiss.IndexFlatIP):
        stored = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
        return exact.search(stored.reshape(index.ntotal, index.d), queries, k)
    breadth = None
    if isinstance(index, faiss.IndexHNSW):
        breadth = faiss.SearchParametersHNSW(efSearch=max(index.hnsw.efSearch, k))  # type: ignore[attr-defined]
    scores, rows = index.search(_fp32(queries), k, params=breadth)
    scores[rows < 0] = -np.inf
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1).astype(np.int32)


def recall(index: faiss.Index, vectors: np.ndarray, queries: np.ndarray, k: int) -> float:
    """Share of the exact `k` best passages of `queries` [n, d] that the index finds."""
    _, found = search_index(index, queries, k)
    _, best = exact.search(vectors, queries, k)
    hits = [np.isin(wanted[wanted >= 0], got).mean() for wanted, got in zip(best, found, strict=True)]
    return float(np.mean(hits))
