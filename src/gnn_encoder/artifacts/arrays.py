"""Artifacts that are memory-mapped arrays: vectors and the query–passage graph."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from gnn_encoder.artifacts.folder import Artifact, Draft, read_manifest
from gnn_encoder.artifacts.parts import part_folders
from gnn_encoder.errors import UserError

VECTORS = "vectors.npy"
GRAPH_FILES = {
    "queries": "queries.npy",
    "edges": "edges.npy",
    "labelled": "labelled.npy",
    "features": "edge_features.npy",
    "indptr": "reverse_indptr.npy",
    "reverse": "reverse_edges.npy",
    "query_loops": "query_self_loops.npy",
    "passage_loops": "passage_self_loops.npy",
    "retrieved": "retrieved.npy",
    "scales": "edge_feature_scales.npy",
}
"""Field of `Graph` → file."""
QUERIES, EVALUATED = "queries", "evaluated"
"""Arrays beside the passages' vectors: M_de's of all training queries, and of `evaluated_queries`, fp32."""
WINDOWS, WINDOW_PASSAGES = "windows", "window_passages"
"""Arrays beside the passages' vectors, where long passages have several: those of all windows [v, d], in the type of
the vectors, and the passage row int32 [v] of each, ascending. A passage's first window is in `VECTORS`, too."""
NEIGHBOURS, NEIGHBOUR_SCORES = "neighbours", "neighbour_scores"
"""Arrays beside the vectors of a share of the passages: the rows int32 [n, k] of each trained query's nearest passages
in the share, and the scores fp32 [n, k], in the form of `exact.search`."""
DIGESTS, MODELS = "_digests.npy", "models.json"
STORED: dict[str, np.dtype] = {"fp16": np.dtype(np.float16), "fp32": np.dtype(np.float32)}
CHUNK = 65_536
"""Vectors checked at a time."""


def create_vectors(draft: Draft, rows: int, width: int, dtype: DTypeLike = np.float32) -> np.memmap:
    """Create the memory-mapped [rows, width] array of a vectors draft; row i is row i of the dataset."""
    return create_rows(draft, Path(VECTORS).stem, (rows, width), dtype)


def create_rows(draft: Draft, name: str, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> np.memmap:
    """Create a memory-mapped array [rows, …] of a draft, by name."""
    draft.rows(**{name: shape[0]})
    return np.lib.format.open_memmap(draft / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)


def check_range(vectors: np.ndarray, first: int = 0) -> None:
    """Raises UserError if a number of stored vectors [m, d] is infinite, because fp16 cannot hold it.

    first: the row of the first vector, for a part of the vectors.
    """
    for start in range(0, len(vectors) if vectors.dtype == np.float16 else 0, CHUNK):
        if len(rows := np.flatnonzero(np.isinf(vectors[start : start + CHUNK]).any(axis=1))):
            raise UserError(
                f"vector {first + start + rows[0]:,} has a number beyond fp16, whose largest is 65,504: set "
                "build_graph.vector_type: fp32"
            )


def read_rows(path: str | Path, name: str) -> np.ndarray:
    """The array that `create_rows` created, memory-mapped read-only."""
    array: np.ndarray = np.load(Path(path) / f"{name}.npy", mmap_mode="r")
    return array


def read_vectors(path: str | Path) -> np.ndarray:
    """The array of a vectors artifact, memory-mapped read-only."""
    read_manifest(path, "vectors")
    return read_rows(path, Path(VECTORS).stem)


def read_scored(path: str | Path) -> tuple[np.ndarray, np.ndarray | None]:
    """The vectors [v, d] by which passages are scored, and the passage int32 [v], ascending, of each, memory-mapped.

    None instead of the passages: vector i is of passage i. Of several vectors of a passage the best one counts.
    """
    if not (Path(path) / f"{WINDOWS}.npy").is_file():
        return read_vectors(path), None
    read_manifest(path, "vectors")
    return read_rows(path, WINDOWS), read_rows(path, WINDOW_PASSAGES)


def rows_of(of: np.ndarray | None, passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows int64 [r] of the vectors of `passages` [b], passage by passage, and the place [r] of each's
    passage in `passages`; `of` as `read_scored` returns it."""
    if of is None:
        return np.arange(len(passages)), passages
    starts, stops = np.searchsorted(of, passages, "left"), np.searchsorted(of, passages, "right")
    return np.repeat(np.arange(len(passages)), stops - starts), ranges(starts, stops)


class JoinedRows:
    """Several arrays [r_i, d] as one array [Σ r_i, d], without a copy: memory-mapped arrays stay on the disk."""

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self._parts, self._starts = parts, np.cumsum([0, *map(len, parts)])
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """Returns a copy of the rows of a slice, or at indices [n] from 0, in that order. IndexError beyond the end."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1 and start < stop:
                return self.between(start, stop)
            rows = np.arange(start, stop, step)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of an array of {len(self)} rows")
        part = np.searchsorted(self._starts, rows, side="right") - 1  # never an empty part
        values = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for number in np.unique(part):
            inside = part == number
            values[inside] = self._parts[number][rows[inside] - self._starts[number]]
        return values

    def between(self, start: int, stop: int, out: np.ndarray | None = None) -> np.ndarray:
        """Returns a copy of the rows from `start` to before `stop`, one at least, in `out` if that is given.

        Filling the same memory again is faster than taking new memory: the system clears each page of that.
        """
        pieces = []
        for part, first in zip(self._parts, self._starts[:-1].tolist(), strict=True):
            if first < stop and first + len(part) > start:
                pieces.append(part[max(start - first, 0) : stop - first])
        return np.concatenate(pieces, out=out)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """A copy of all rows, for NumPy."""
        return np.asarray(self[:], dtype)


Rows = np.ndarray | JoinedRows
"""An array [r, d], or the arrays of merged parts."""


def write_joined(draft: Draft, merged: Path, name: str) -> np.memmap:
    """Write the arrays [r_i, …] of an artifact's parts as one array [Σ r_i, …] of a draft, where one file is needed."""
    parts = [read_rows(folder, name) for folder in part_folders(merged)]
    whole = create_rows(draft, name, (sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    np.concatenate(parts, out=whole)
    whole.flush()
    return whole


def joined(parts: Sequence[np.ndarray]) -> Rows:
    """Several arrays [r_i, d] as one, without a copy."""
    return parts[0] if len(parts) == 1 else JoinedRows(parts)


@dataclass(frozen=True)
class Contents:
    """Digests of the texts and models behind an artifact's rows. A later run compares them to find unchanged rows.

    `digests`: name → uint64 [rows, 2] (`gnn_encoder.update.changes`); `models`: digests and settings of all models
    that turned texts into rows.
    """

    digests: dict[str, np.ndarray]
    models: dict[str, str]

    @classmethod
    def read(cls, path: str | Path) -> "Contents":
        """Read an artifact's digests, memory-mapped; those of merged parts are copied into memory.

        Both are empty for an artifact without digests.
        """
        folders = part_folders(path)
        if not (folders[0] / MODELS).is_file():  # vectors that a user gave
            return cls({}, {})
        names = sorted(file.name for file in folders[0].glob(f"*{DIGESTS}"))
        arrays = {name: [np.load(folder / name, mmap_mode="r") for folder in folders] for name in names}
        models = json.loads((folders[0] / MODELS).read_text(encoding="utf-8"))
        return cls({name.removesuffix(DIGESTS): np.asarray(joined(parts)) for name, parts in arrays.items()}, models)

    @staticmethod
    def write(draft: Draft, models: dict[str, str], **digests: np.ndarray) -> None:
        """Write digests and models into an artifact."""
        for name, array in digests.items():
            np.save(draft / f"{name}{DIGESTS}", array, allow_pickle=False)
        (draft / MODELS).write_text(json.dumps(models, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class Encoding:
    """The vectors of the graph's nodes, which `encode_nodes` writes and the next update reuses.

    `passages` [m, d], fp16 or fp32: h_p of all passages; `queries` fp32 [n, d]: h_q of the graph's queries. Both are
    memory-mapped; of merged parts, one array over the parts' arrays. The digests of the same names are of the texts.
    """

    passages: Rows
    queries: Rows
    contents: Contents

    @classmethod
    def read(cls, path: str | Path) -> "Encoding":
        """Read an encoding artifact, its arrays memory-mapped."""
        read_manifest(path, "encoding")
        folders = part_folders(path)
        passages, queries = (joined([read_rows(part, name) for part in folders]) for name in ("passages", "queries"))
        return cls(passages, queries, Contents.read(path))


@dataclass(frozen=True)
class Graph:
    """The query–passage graph; every array is memory-mapped.

    queries    int32 [n]        dataset rows of the graph's queries (node i is query row queries[i])
    edges      int32 [n, k]     passage rows, best first; -1: no edge
    labelled   bool  [n, k]     the edge is a labelled positive
    features   fp16  [n, k, d]  cross-encoder [CLS] of (query, passage), or None (ablation); int8 with scales
    indptr     int64 [m + 1]    reverse CSR: the edges of passage p are reverse[indptr[p]:indptr[p + 1]]
    reverse    int64 [edges]    an edge's flat position in [n, k], ascending per passage (query = position // k)
    query_loops, passage_loops  fp16 [n, d], [m, d]: features of the pairs (x, x), or None (learned)
    retrieved  int32 [n, r]     M_de's first passages; the first k of them are edges; -1: no passage
    scales     fp32  [n, k]     only for int8 features: a feature is features[i, j] · scales[i, j]
    marked     bool             whether a last column of the features marks labelled edges; None: if some, but not all
                                edges are labelled. Not stored: a part of a graph keeps the whole graph's answer.
    """

    queries: np.ndarray
    edges: np.ndarray
    labelled: np.ndarray
    features: np.ndarray | None
    indptr: np.ndarray
    reverse: np.ndarray
    query_loops: np.ndarray | None = None
    passage_loops: np.ndarray | None = None
    retrieved: np.ndarray | None = None
    scales: np.ndarray | None = None
    marked: bool | None = None

    @property
    def marks_labelled(self) -> bool:
        """Whether the edge features have a last column that marks labelled edges."""
        if self.marked is not None:
            return self.marked
        return bool(self.labelled.any() and (self.labelled != (self.edges >= 0)).any())

    @classmethod
    def read(cls, path: str | Path) -> "Graph":
        """Read a graph artifact."""
        files = read_manifest(path, "graph").files
        arrays = {
            name: np.load(Path(path) / file, mmap_mode="r") if file in files else None
            for name, file in GRAPH_FILES.items()
        }
        return cls(**arrays)  # type: ignore[arg-type]  # only fields that may be None have no file

    def save(self, draft: Draft, whole: "Graph", source: Path) -> None:
        """Fill a draft with this graph, which is a part of `whole`, or `whole` itself, which was read from `source`.

        Arrays that the graph shares with `whole` take no space of their own. The draft has the source's digests of
        texts, and its origin.
        """
        of = Artifact(source, read_manifest(source, "graph"))
        for name in [file for file in of.manifest.files if file not in GRAPH_FILES.values()]:
            draft.share(of, name)
        for field, file in GRAPH_FILES.items():
            array, stored = getattr(self, field), getattr(whole, field)
            if array is None:
                continue
            if array is stored:
                draft.share(of, file)
            else:
                np.save(draft / file, array, allow_pickle=False)
        draft.rows(queries=len(self.queries), passages=len(self.indptr) - 1, edges=len(self.reverse))
        draft.take_origin(of.manifest)

    @staticmethod
    def create_features(draft: Draft, name: str, shape: tuple[int, ...], dtype: type = np.float16) -> np.memmap:
        """Create a memory-mapped array of a draft: `features`, `scales`, `query_loops` or `passage_loops`."""
        return np.lib.format.open_memmap(draft / GRAPH_FILES[name], mode="w+", dtype=dtype, shape=shape)

    @staticmethod
    def write_structure(
        draft: Draft, queries: np.ndarray, edges: np.ndarray, labelled: np.ndarray, retrieved: np.ndarray, passages: int
    ) -> None:
        """Write nodes, edges, retrieved passages, and the reverse CSR over `passages` passages."""
        arrays = {"queries": queries, "edges": edges, "labelled": labelled, "retrieved": retrieved}
        arrays["indptr"], arrays["reverse"] = reverse_csr(edges, passages)
        for name, array in arrays.items():
            np.save(draft / GRAPH_FILES[name], array, allow_pickle=False)
        draft.rows(queries=len(queries), passages=passages, edges=len(arrays["reverse"]))


def reverse_csr(edges: np.ndarray, passages: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (indptr, positions): each passage's flat positions in `edges` [n, k], as reverse CSR."""
    flat = edges.ravel()
    order = np.argsort(flat, kind="stable")
    order = order[np.searchsorted(flat[order], 0) :]  # the -1 of missing edges sort first
    indptr = np.zeros(passages + 1, dtype=np.int64)
    np.cumsum(np.bincount(flat[order], minlength=passages), out=indptr[1:])
    return indptr, order.astype(np.int64)


def eight_bits(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [n, d] as integers int8 [n, d] and scales fp32 [n]: round(x / s) and s = max|x| / 127 for a vector x."""
    wide = vectors.astype(np.float32)
    scales = np.maximum(np.abs(wide).max(axis=1, initial=0), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(wide / scales[:, None]).astype(np.int8), scales


def at_unit_length(vectors: np.ndarray) -> np.ndarray:
    """Vectors [n, d] at unit length, as torch's `normalize` has them; a zero vector stays zero."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12)))


def ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Concatenates arange(start, stop) of all pairs of `starts` [n] and `stops` [n]: int64 [Σ (stop − start)]."""
    counts = stops - starts
    before = np.cumsum(counts) - counts
    return np.asarray(np.arange(int(counts.sum())) + np.repeat(starts - before, counts))
