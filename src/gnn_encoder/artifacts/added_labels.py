"""Labels that were added after a run: the folder `added/` of a bundle, and `labels.jsonl` of a dataset.

labels.jsonl   the added labels in force, one a line, oldest first; the setting `ingest.labels` reads this file
rows.npy       int64 [c]: the passage of each vector below, ascending
vectors.npy    fp32 [c, d]: all vectors of the passages for which the bundle's vectors.npy is outdated
nodes.parquet  queries whose edges differ from those of the run's graph [a], see `AddedNodes`; its arrays lie beside it
labels/        instead of nodes, in a bundle of labelled queries: the pairs that differ from the bundle's `labels/`

A bundle has only labels.jsonl if its run has read all added labels. Then its graph has them already.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts.texts import text_lines
from gnn_encoder.errors import UserError

ADDED_LABELS, ROWS, CHANGED, NODES = "labels.jsonl", "rows.npy", "vectors.npy", "nodes.parquet"
PAIRS = "labels"
NODE_FILES = {
    "replaced": "replaced.npy",
    "vectors": "query_vectors.npy",
    "edges": "edges.npy",
    "labelled": "labelled.npy",
    "features": "edge_features.npy",
    "scales": "edge_feature_scales.npy",
    "loops": "query_self_loops.npy",
}
"""Field of `AddedNodes` → file."""
QUERIES, PAIR_FILES = "queries.parquet", ("queries.npy", "passages.npy", "indptr.npy", "query.npy")
"""Files of `ChangedPairs`: the ids and texts, and the arrays in the order of the fields."""
PREFIX = "added-"


@dataclass(frozen=True)
class AddedLabel:
    """A query and a passage that is relevant to the query; `added`: the time in UTC."""

    query_id: str
    query: str
    passage_id: str
    added: str = ""


def new_query_id(text: str) -> str:
    """The id of a query that the data do not have. The same text has the same id in every run."""
    return PREFIX + blake2b(text.encode(), digest_size=8).hexdigest()


def read_labels(path: Path) -> list[AddedLabel]:
    """The labels in a file of `write_labels`; raises UserError for another file."""
    labels = []
    try:
        for number, line in text_lines(path):
            if line.strip():
                try:
                    labels.append(AddedLabel(**json.loads(line)))
                except (ValueError, TypeError, RecursionError):
                    raise UserError(f"{path} line {number} is no added label: restore the file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): name a labels.jsonl of a bundle") from None
    if any(not isinstance(value, str) for label in labels for value in asdict(label).values()):
        raise UserError(f"{path} holds values that are not text: restore the file")
    return labels


def write_labels(path: Path, labels: Iterable[AddedLabel]) -> None:
    """Write labels, one JSON object a line."""
    lines = (json.dumps(asdict(label), ensure_ascii=False) + "\n" for label in labels)
    path.write_text("".join(lines), encoding="utf-8")


@dataclass(frozen=True)
class AddedNodes:
    """Queries whose edges differ from those of the run's graph, with all their edges.

    ids, texts          query ids and texts, a each
    replaced   int64 [a]        node of the run's graph that the query replaces; -1: a new query
    vectors    fp32 [a, d]      h_q
    edges, labelled, features, scales: as in `Graph`, [a, k, …]. A query without an edge has left the graph.
    loops      fp16 [a, d_e]    features of the pairs (q, q), or None (learned)
    """

    ids: list[str]
    texts: list[str]
    replaced: np.ndarray
    vectors: np.ndarray
    edges: np.ndarray
    labelled: np.ndarray
    features: np.ndarray | None = None
    scales: np.ndarray | None = None
    loops: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def read(cls, folder: Path) -> "AddedNodes":
        """Read what `write` wrote."""
        names = pq.read_table(folder / NODES)
        arrays = {
            field: np.load(folder / file) if (folder / file).is_file() else None for field, file in NODE_FILES.items()
        }
        return cls(*(column.to_pylist() for column in names.columns), **arrays)  # type: ignore[arg-type]

    def write(self, folder: Path) -> None:
        """Write the names, and each array that is not None."""
        pq.write_table(pa.table({"query_id": pa.array(self.ids, pa.string()), "text": self.texts}), folder / NODES)
        for field, file in NODE_FILES.items():
            if (array := getattr(self, field)) is not None:
                np.save(folder / file, array, allow_pickle=False)


@dataclass(frozen=True)
class ChangedPairs:
    """All labelled queries of the passages for which `labels/` is outdated: `added/labels/`.

    ids, texts            queries that `labels/` lacks, a each
    vectors  fp32 [a, d]  their vectors
    passages int64 [c]    the passages, ascending
    indptr   int64 [c + 1]
    query    int32 [e]    passage i of these is a labelled positive of the queries query[indptr[i]:indptr[i + 1]]. A
                          number below n is a row of `labels/`, and n + j is query j of these.
    """

    ids: list[str]
    texts: list[str]
    vectors: np.ndarray
    passages: np.ndarray
    indptr: np.ndarray
    query: np.ndarray

    @classmethod
    def read(cls, folder: Path) -> "ChangedPairs":
        """Reads what `write` wrote."""
        names = pq.read_table(folder / QUERIES)
        return cls(*(column.to_pylist() for column in names.columns), *(np.load(folder / f) for f in PAIR_FILES))

    def write(self, folder: Path) -> None:
        """Writes the folder, which must not exist."""
        folder.mkdir()
        for file, array in zip(PAIR_FILES, (self.vectors, self.passages, self.indptr, self.query), strict=True):
            np.save(folder / file, array, allow_pickle=False)
        names = {"query_id": pa.array(self.ids, pa.string()), "text": pa.array(self.texts, pa.string())}
        pq.write_table(pa.table(names), folder / QUERIES)


@dataclass(frozen=True)
class Changes:
    """What the added labels change in a bundle: vectors fp32 [c, d] of the passages `rows` [c], and queries.

    The vectors of a passage in `rows` replace all that the bundle has of the passage. The queries are nodes of a graph,
    or labelled queries.
    """

    rows: np.ndarray
    vectors: np.ndarray
    nodes: AddedNodes | None = None
    pairs: ChangedPairs | None = None

    def applied(self, vectors: np.ndarray, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns vectors [v, d] and the passage int32 [v] of each with the changes in place, in the order of passages.

        All vectors are copied. For bundles with one vector a passage, `Bundle.vectors` copies nothing.
        """
        stays = np.isin(of, self.rows, invert=True)
        owner = np.concatenate([of[stays], self.rows]).astype(np.int32)
        order = np.argsort(owner, kind="stable")
        return np.concatenate([vectors[stays], self.vectors.astype(vectors.dtype)])[order], owner[order]


@dataclass(frozen=True)
class AddedLabels:
    """The folder `added/` of a bundle; `changes` is None if the bundle's run has read all labels."""

    labels: list[AddedLabel]
    changes: Changes | None = None

    @classmethod
    def read(cls, folder: Path) -> "AddedLabels":
        """Read what `write` wrote."""
        labels = read_labels(folder / ADDED_LABELS)
        if not (folder / ROWS).is_file():
            return cls(labels)
        nodes = AddedNodes.read(folder) if (folder / NODES).is_file() else None
        pairs = ChangedPairs.read(folder / PAIRS) if (folder / PAIRS).is_dir() else None
        return cls(labels, Changes(np.load(folder / ROWS), np.load(folder / CHANGED), nodes, pairs))

    def write(self, folder: Path) -> None:
        """Write the folder, which must not exist."""
        folder.mkdir()
        write_labels(folder / ADDED_LABELS, self.labels)
        if self.changes:
            np.save(folder / ROWS, self.changes.rows, allow_pickle=False)
            np.save(folder / CHANGED, self.changes.vectors, allow_pickle=False)
            if self.changes.nodes is not None:
                self.changes.nodes.write(folder)
            if self.changes.pairs is not None:
                self.changes.pairs.write(folder / PAIRS)
