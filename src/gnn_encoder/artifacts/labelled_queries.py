"""Training queries with labelled passages, and the use that a bundle makes of them: the folder `labels/` of a bundle.

queries.npy       fp32 [n, d]: vectors of the training queries that have a labelled passage
queries.parquet   their ids and texts, aligned
indptr.npy        int64 [m + 1]
query.npy         int32 [e]: passage p is a labelled positive of the queries query[indptr[p]:indptr[p + 1]]
plain.npy         [l, d], in the type of the bundle's vectors: vectors without labels of the passages that have a
                  labelled query, ascending
use.json          `LabelUse`
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.artifacts.dataset import Dataset

Method = Literal["sum", "max", "softmax", "clusters"]
QUERIES, TEXTS, INDPTR, QUERY = "queries.npy", "queries.parquet", "indptr.npy", "query.npy"
PLAIN, USE = "plain.npy", "use.json"


@dataclass(frozen=True)
class LabelUse:
    """How labelled queries change the scores of their passages (`retrieval.labelled_vectors`, `retrieval.memory`).

    A `weight` of 0 leaves all passages as they are. `clusters`: most vectors of a passage besides its own;
    `neighbours`, `temperature` and `threshold`: of the softmax. A method that has no such number has 0.
    """

    method: Method
    weight: float
    clusters: int = 0
    neighbours: int = 0
    temperature: float = 0.0
    threshold: float = 0.0

    @property
    def changes_vectors(self) -> bool:
        """Whether some passages have other vectors than without labels."""
        return bool(self.weight) and self.method != "softmax"

    def __str__(self) -> str:
        near = f" with a similarity of {self.threshold:g} or more" if self.threshold else ""
        more = {
            "sum": "",
            "max": ", best query",
            "softmax": f", softmax of the {self.neighbours} nearest queries{near}, temperature {self.temperature:g}",
            "clusters": f", up to {self.clusters} clusters",
        }
        return f"weight {self.weight:g}{more[self.method]}" if self.weight else "weight 0: as the dual encoder"


@dataclass(frozen=True)
class LabelledQueries:
    """Labelled pairs as CSR over m passages, and the vectors fp32 [n, d] of their queries; see the module."""

    vectors: np.ndarray
    indptr: np.ndarray
    query: np.ndarray

    @classmethod
    def of(cls, query: np.ndarray, passage: np.ndarray, passages: int, vectors: np.ndarray) -> "LabelledQueries":
        """Groups pairs by passages: `query` [e], a row of `vectors`, and `passage` [e]. A repeated pair counts once.

        Queries without a pair are left out.
        """
        rows, query = np.unique(query, return_inverse=True)
        pairs = np.unique(np.stack([passage, query], axis=1).astype(np.int64), axis=0)
        indptr = np.zeros(passages + 1, np.int64)
        np.cumsum(np.bincount(pairs[:, 0], minlength=passages), out=indptr[1:])
        return cls(np.asarray(vectors[rows], np.float32), indptr, pairs[:, 1].astype(np.int32))

    @classmethod
    def read(cls, folder: Path) -> "LabelledQueries":
        """Opens the folder, its arrays memory-mapped."""
        return cls(*(np.load(folder / name, mmap_mode="r") for name in (QUERIES, INDPTR, QUERY)))

    def write(self, folder: Path, ids: pa.Array, texts: pa.Array, plain: np.ndarray, use: LabelUse) -> None:
        """Writes the folder; `ids` and `texts` [n] are the queries', `plain` [m, d] the passages' vectors."""
        folder.mkdir()
        arrays = {QUERIES: self.vectors, INDPTR: self.indptr, QUERY: self.query, PLAIN: plain[self.passages]}
        for name, array in arrays.items():
            np.save(folder / name, array, allow_pickle=False)
        pq.write_table(pa.table({"query_id": ids, "text": texts}), folder / TEXTS)
        (folder / USE).write_text(json.dumps(asdict(use)), encoding="utf-8")

    @property
    def passages(self) -> np.ndarray:
        """Passage rows int64 [l] that have a labelled query, ascending."""
        return np.flatnonzero(np.diff(self.indptr))

    def into(self, passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of some passages [b]: the place in `passages` int64 [p], ascending, and the query's row [p]."""
        starts, stops = self.indptr[passages], self.indptr[passages + 1]
        return np.repeat(np.arange(len(passages)), stops - starts), self.query[ranges(starts, stops)]

    @cached_property
    def by_query(self) -> tuple[np.ndarray, np.ndarray]:
        """The same pairs as CSR over queries: (indptr int64 [n + 1], passage rows int64 [e], ascending per query)."""
        passage, _ = self.into(np.arange(len(self.indptr) - 1))
        indptr = np.zeros(len(self.vectors) + 1, np.int64)
        np.cumsum(np.bincount(self.query, minlength=len(self.vectors)), out=indptr[1:])
        return indptr, passage[np.argsort(self.query, kind="stable")]

    @cached_property
    def scale(self) -> float:
        """Mean squared length of the vectors, 1 if they have unit length: the size of a score."""
        return float(np.einsum("nd,nd->n", self.vectors, self.vectors).mean()) if len(self.vectors) else 1.0


def labelled_pairs(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """The labelled positives of the training queries: places int64 [e] in `query_rows("train")`, and passages [e]."""
    labels = data.split_qrels("train").positive()
    return np.searchsorted(data.query_rows("train"), labels.query), labels.passage


def read_use(folder: Path) -> LabelUse:
    """The use that a bundle makes of its labelled queries."""
    return LabelUse(**json.loads((folder / USE).read_text("utf-8")))


def read_plain(folder: Path) -> np.ndarray:
    """The vectors without labels of the labelled passages [l, d], memory-mapped."""
    plain: np.ndarray = np.load(folder / PLAIN, mmap_mode="r")
    return plain


def read_texts(folder: Path, rows: np.ndarray) -> tuple[list[str], list[str]]:
    """Ids and texts of the queries at `rows`, in the order of `rows`."""
    table = pq.read_table(folder / TEXTS).take(pa.array(rows))
    return table.column("query_id").to_pylist(), table.column("text").to_pylist()
