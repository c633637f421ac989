"""The search index of a bundle: builds FAISS indexes of several kinds from arrays larger than memory, and searches.

    flat       exact: no index, the vectors themselves are searched
    flat_fp16  exact over vectors rounded to fp16: half the size of fp32 vectors (`build_graph.vector_type`)
    sq8        exhaustive over 8-bit codes, a byte a number
    ivf        inverted lists of fp16 codes: the lists nearest to the query are searched
    hnsw       a neighbour graph over fp16 codes; FAISS builds it in memory, with codes and links of all passages

All kinds but hnsw are built with one chunk in memory at a time, ivf after the training of its lists, which reads
`POINTS` passages a list. An index in parts is built part by part, so that memory holds the graph or the training
passages of one part (`index_parts`).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, isqrt
from pathlib import Path
from typing import Any, TypeAlias

import faiss
import numpy as np

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.bundle import INDEX
from gnn_encoder.artifacts.parts import in_parts, stored_parts
from gnn_encoder.errors import Damaged, UserError, one_line
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.hits import Hits, best_first, merge, no_hits
from gnn_encoder.settings.outcome import IndexKind

CHUNK = 65_536
"""Passages written at a time."""
POINTS = 40
"""Training passages per centroid of an inverted list (FAISS warns below 39)."""
SAMPLE = 65_536
"""Training passages for the range of 8-bit codes."""
PER_CANDIDATE = 64
"""Passages that are compared one by one in the time that hnsw takes for a candidate, if it has a filter."""
FLAT = IndexKind()


@dataclass(frozen=True)
class IndexInParts:
    """FAISS indexes over consecutive passages, in order, as one index. A search asks all of them and merges exactly.

    `faiss.IndexShards` holds the hits of all parts at once: 4.9 GB of 4,096 queries with 1,000 hits in 100 parts.
    """

    parts: list[faiss.Index]

    def search(self, queries: np.ndarray, k: int, only: Selection | None = None) -> Hits:
        """As `search_index`."""
        (scores, rows), start = no_hits(len(queries), k), 0
        for part in self.parts:
            inside = only and only.at(slice(start, start + part.ntotal))
            more_scores, more_rows = search_index(part, queries, k, inside)
            scores, rows = merge(scores, rows, more_scores, np.where(more_rows >= 0, more_rows + start, -1))
            start += part.ntotal
        return scores, rows


@dataclass(frozen=True)
class ChangedIndex:
    """A FAISS index of which the passages `rows` [c] have other `vectors` [c, d] now, which are searched exactly.

    FAISS cannot replace a vector in a memory-mapped file, nor in an index of the kind hnsw.
    """

    index: faiss.Index | IndexInParts
    rows: np.ndarray
    vectors: np.ndarray

    def search(self, queries: np.ndarray, k: int, only: Selection | None = None) -> Hits:
        """As `search_index`."""
        scores, rows = search_index(self.index, queries, k + len(self.rows), only)
        scores = np.where(np.isin(rows, self.rows), -np.inf, scores)
        inside = only and only.at(self.rows).rows
        changed_scores, changed = exact.search(self.vectors, queries, min(k, len(self.rows)), only=inside)
        changed = np.append(self.rows, -1)[changed]
        scores, rows = merge(scores, np.where(scores > -np.inf, rows, -1), changed_scores, changed)
        return scores[:, :k], rows[:, :k]


Index: TypeAlias = faiss.Index | np.ndarray | IndexInParts | ChangedIndex
"""A FAISS index, in parts or not, with changed vectors or without, or the vectors [m, d] themselves."""


def build_index(vectors: np.ndarray, path: Path, kind: IndexKind = FLAT) -> None:
    """Writes an inner-product index over `vectors` [m, d]; for the kind `flat` it writes nothing.

    An index in parts has the files `in_parts` of `path`. A part has at least one vector.

    Raises:
        RuntimeError: the file layout of this FAISS version is unknown.
    """
    if kind.index == "flat":
        return
    count = max(1, min(kind.index_parts, len(vectors)))
    for file, rows in zip(in_parts(path, count), _part_rows(len(vectors), count), strict=True):
        _build_part(vectors[rows], file, kind)


def _part_rows(m: int, count: int) -> list[slice]:
    """The rows of each part: consecutive ranges of m rows whose lengths differ by at most one."""
    return [slice(m * part // count, m * (part + 1) // count) for part in range(count)]


def _build_part(vectors: np.ndarray, path: Path, kind: IndexKind) -> None:
    """Writes one index, in one file, over `vectors` [m, d]."""
    m, d = vectors.shape
    if kind.index == "ivf" and m:
        _write_lists(vectors, path, kind)
    elif kind.index == "hnsw":
        links = faiss.IndexHNSWSQ(d, faiss.ScalarQuantizer.QT_fp16, kind.hnsw_links, faiss.METRIC_INNER_PRODUCT)  # type: ignore[arg-type]
        links.hnsw.efSearch = kind.hnsw_breadth
        _train(links, vectors, 1)  # fp16 codes need no training, but FAISS demands the call
        for chunk in _chunks(vectors):
            links.add(chunk)
        faiss.write_index(links, str(path))
    else:
        bits = faiss.ScalarQuantizer.QT_8bit if kind.index == "sq8" else faiss.ScalarQuantizer.QT_fp16
        flat = faiss.IndexScalarQuantizer(d, bits, faiss.METRIC_INNER_PRODUCT)
        _train(flat, vectors, SAMPLE)
        # FAISS can write codes only from memory. So an index without codes is serialized, and the codes are appended.
        # The serialized index ends with the number of bytes of the codes.
        flat.ntotal = m
        with path.open("wb") as file:
            file.write(_before(flat, bytes(8)) + struct.pack("<Q", m * flat.sa_code_size()))
            for chunk in _chunks(vectors):
                file.write(flat.sa_encode(chunk).data)


def _write_lists(vectors: np.ndarray, path: Path, kind: IndexKind) -> None:
    """Writes an index of inverted lists, list by list: the codes, then the int64 passage rows.

    Memory holds 12 bytes per passage. A list's vectors are not adjacent in `vectors`; they are read in row order.
    """
    m, d = vectors.shape
    lists = max(1, min(kind.ivf_lists or 4 * isqrt(m), m // POINTS))
    quantizer = faiss.IndexFlatIP(d)
    ivf = faiss.IndexIVFScalarQuantizer(
        quantizer, d, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT, False
    )
    ivf.cp.min_points_per_centroid = 1  # fewer than FAISS wants only in a tiny corpus: no warning
    ivf.nprobe = kind.ivf_probes
    _train(ivf, vectors, lists * POINTS)
    into = np.concatenate([quantizer.search(chunk, 1)[1][:, 0].astype(np.int32) for chunk in _chunks(vectors)])
    sizes = np.bincount(into, minlength=lists)
    ivf.ntotal = m
    # FAISS writes an index without vectors as "sprs", without lists; "full" and the size of each list replace this.
    begin = struct.pack("<4sQQ", b"ilar", lists, ivf.code_size)
    with path.open("wb") as file:
        file.write(_before(ivf, begin + b"sprs" + bytes(8)) + begin + b"full")
        file.write(struct.pack("<Q", lists) + sizes.astype("<u8").tobytes())
        for rows in np.split(np.argsort(into, kind="stable"), np.cumsum(sizes)[:-1]):
            file.write(ivf.sq.compute_codes(_fp32(vectors[rows])).data)
            file.write(rows.astype("<i8").data)


def _before(index: faiss.Index, end: bytes) -> bytes:
    """Serializes an index by FAISS and removes `end`."""
    header: bytes = faiss.serialize_index(index).tobytes()
    if not header.endswith(end):
        raise RuntimeError(f"faiss {faiss.__version__} writes a {type(index).__name__} in an unknown layout")
    return header.removesuffix(end)


def _train(index: faiss.Index, vectors: np.ndarray, most: int) -> None:
    """Trains an index on at most `most` evenly spaced rows; if there are no rows, on a zero vector."""
    rows = np.unique(np.linspace(0, len(vectors) - 1, min(len(vectors), most)).astype(np.int64))
    index.train(_fp32(vectors[rows]) if len(rows) else np.zeros((1, vectors.shape[1]), np.float32))


def _chunks(vectors: np.ndarray) -> Iterator[np.ndarray]:
    """All rows in fp32, `CHUNK` of them at a time."""
    for start in range(0, len(vectors), CHUNK):
        yield _fp32(vectors[start : start + CHUNK])


def _fp32(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def bundle_index(bundle: Bundle) -> Index:
    """Opens the index of a bundle, with the vectors that added labels change; errors as `load_index`.

    If passages have several vectors, these changes are left out: `PassageIndex` has them.
    """
    several = bundle.stored_vector_passages is not None
    if not bundle.index_files:
        return bundle.stored_vectors if several else bundle.vectors
    index, changes = load_index(bundle.path / INDEX, bundle.stored_vectors.shape), bundle.changes
    if several or not (changes and len(changes.rows)):
        return index
    return ChangedIndex(index, changes.rows, bundle.vectors[changes.rows])


def load_index(path: Path, shape: tuple[int, ...]) -> faiss.Index | IndexInParts:
    """Opens what `build_index` wrote, memory-mapped; `shape`: of the vectors, [m, d].

    Raises:
        Damaged: a file is missing, or is no inner-product index of a known kind over vectors of this shape.
    """
    (m, d), files = shape, stored_parts(path) or [path]
    parts = [
        _open(file, rows.stop - rows.start, d) for file, rows in zip(files, _part_rows(m, len(files)), strict=True)
    ]
    return parts[0] if len(parts) == 1 else IndexInParts(parts)


def _open(path: Path, m: int, d: int) -> faiss.Index:
    """Opens one file over m vectors of width d; errors as `load_index`."""
    try:
        _check_file(path, m, d)
        faiss.set_deserialization_vector_byte_limit(path.stat().st_size)
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (OSError, RuntimeError, ValueError, MemoryError, struct.error) as error:
        raise Damaged(f"{path} is no readable FAISS index ({one_line(error)[:160]}): run encode_corpus again") from None


def _check_file(path: Path, m: int, d: int) -> None:
    """Raises ValueError or struct.error unless the header and size of an index file fit m vectors of width d.

    FAISS 1.15 reads damaged files safely, but a memory-mapped file that ends inside the header crashes the process. A
    complete file ends with the number of codes and the codes.
    """
    with path.open("rb") as file:
        # kind, d, m, two unused numbers, is trained, metric, then: type of the quantizer, or number of inverted lists
        kind, *header, detail = struct.unpack("<4siq17xiQ", file.read(45))
        code = d if detail & 0xFFFFFFFF == faiss.ScalarQuantizer.QT_8bit else 2 * d
        code_size = {b"IxSQ": code, b"IHNs": 2 * d, b"IwSq": 2 * d + 8}.get(kind)
        if code_size is None or header != [d, m, faiss.METRIC_INNER_PRODUCT]:
            raise ValueError(f"a {kind.decode('latin-1')!r} with d, m, metric {header} for {m} vectors of {d}")
        # Inverted lists: the number of lists, then the size of each list. Other kinds: the bytes of all codes.
        before, number = (8 + 8 * detail, detail) if kind == b"IwSq" else (8, m * code_size)
        file.seek(max(path.stat().st_size - m * code_size - before, 0))
        if struct.unpack("<Q", file.read(8)) != (number,):
            raise ValueError(f"its size is not that of {m} vectors")


def approximates(index: Index) -> bool:
    """Whether a search compares some of the vectors only (ivf, hnsw)."""
    if isinstance(index, ChangedIndex):
        return approximates(index.index)
    part = index.parts[0] if isinstance(index, IndexInParts) else index
    return isinstance(part, (faiss.IndexHNSW, faiss.IndexIVF))


def search_index(index: Index, queries: np.ndarray, k: int, only: Selection | None = None) -> Hits:
    """The `k` best passages by the index, in the form of `exact.search`; an array of vectors is searched exactly.

    With `only`, the best among these passages. An index that finds fewer than it could compares all of them.
    """
    if isinstance(index, np.ndarray):
        return exact.search(index, queries, k, only=only and only.rows)
    if isinstance(index, (ChangedIndex, IndexInParts)):
        return index.search(queries, k, only)
    if index.ntotal == 0 or (only and not len(only.rows)):
        return exact.search(np.empty((0, index.d), np.float32), queries, k)
    scores, rows = _searched(index, queries, k, only)
    if only and (rows[:, min(k, len(only.rows)) - 1] < 0).any():
        scores, rows = _searched(index, queries, k, only, compares_all=True)
    if rows.min(initial=0) < -1 or rows.max(initial=-1) >= index.ntotal:
        raise UserError("the index names a passage that is not in the corpus: run encode_corpus again")
    scores[rows < 0] = -np.inf
    return best_first(scores, rows.astype(np.int32))


def _searched(
    index: faiss.Index, queries: np.ndarray, k: int, only: Selection | None, compares_all: bool = False
) -> Hits:
    """FAISS's hits in its order; ivf and hnsw look at as many of the passages in `only` as of all without it.

    hnsw compares all of them where that takes less time.
    """
    api: Any = faiss  # its types know neither the selectors nor the parameters
    selector, more = (api.IDSelectorBitmap(only.bits), index.ntotal / len(only.rows)) if only else (None, 1.0)
    parameters = api.SearchParameters(sel=selector) if only else None
    if isinstance(index, faiss.IndexHNSW):
        candidates = ceil(max(index.hnsw.efSearch, k) * more)
        if compares_all or (only and PER_CANDIDATE * candidates > len(only.rows)):
            index = faiss.downcast_index(index.storage)
        else:
            parameters = api.SearchParametersHNSW(efSearch=candidates, sel=selector)
    elif isinstance(index, faiss.IndexIVF) and only:
        probes = index.nlist if compares_all else min(index.nlist, ceil(index.nprobe * more))
        parameters = api.SearchParametersIVF(nprobe=probes, sel=selector)
    scores, rows = index.search(_fp32(queries), k, params=parameters)
    return scores, rows


def recall(index: Index, vectors: np.ndarray, queries: np.ndarray, k: int) -> float:
    """Share of the exact `k` best passages of `queries` [n, d] that the index finds."""
    _, hits = search_index(index, queries, k)
    _, best = exact.search(vectors, queries, k)
    return float(np.mean([np.isin(row[row >= 0], hit_row).mean() for row, hit_row in zip(best, hits, strict=True)]))
