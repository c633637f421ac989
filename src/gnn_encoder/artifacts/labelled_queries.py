"""Training queries with labelled passages, and the use that a bundle makes of them: the folder `labels/` of a bundle.

queries.npy       fp32 [n, d]: vectors of the training queries that have a labelled passage
queries.parquet   their ids and texts, aligned
indptr.npy        int64 [m + 1]
query.npy         int32 [e]: passage p is a labelled positive of the queries query[indptr[p]:indptr[p + 1]]
plain.npy         [l, d], in the type of the bundle's vectors: vectors without labels of the passages that have a
                  labelled query, ascending; missing if labels change no vector
use.json          `LabelUse`

Labels that were added after the run change pairs of some passages: `ChangedPairs`, in `added/labels/` of the bundle.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnn_encoder.artifacts.added_labels import ChangedPairs
from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.artifacts.dataset import Dataset
from gnn_encoder.artifacts.tables import pair_keys

Method = Literal["sum", "max", "softmax", "clusters", "fusion"]
QUERIES, TEXTS, INDPTR, QUERY = "queries.npy", "queries.parquet", "indptr.npy", "query.npy"
PLAIN, USE = "plain.npy", "use.json"


@dataclass(frozen=True)
class LabelUse:
    """How labelled queries change the scores of their passages (`retrieval.labelled_vectors`, `retrieval.memory`).

    A `weight` of 0 leaves all passages as they are. `clusters`: most vectors of a passage besides its own;
    `neighbours`, `temperature` and `threshold`: of the softmax. A method that has no such number has 0. `fusion`: the
    queries are read by parts of a fusion (`retrieval.parts`), whose own numbers say how.
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
        return bool(self.weight) and self.method not in ("softmax", "fusion")

    def __str__(self) -> str:
        near = f" with a similarity of {self.threshold:g} or more" if self.threshold else ""
        more = {
            "sum": "",
            "max": ", best query",
            "softmax": f", softmax of the {self.neighbours} nearest queries{near}, temperature {self.temperature:g}",
            "clusters": f", up to {self.clusters} clusters",
        }
        if self.method == "fusion":
            return "among the parts of a fusion"
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
        return cls.grouped(query, passage, passages, np.asarray(vectors[rows], np.float32))

    @classmethod
    def grouped(cls, query: np.ndarray, passage: np.ndarray, passages: int, vectors: np.ndarray) -> "LabelledQueries":
        """As `of`, with all `vectors` [n, d] as they are, which may lie on the disk."""
        pairs = np.unique(pair_keys(passage, query))
        indptr = np.zeros(passages + 1, np.int64)
        np.cumsum(np.bincount(pairs >> 32, minlength=passages), out=indptr[1:])
        return cls(vectors, indptr, (pairs & 0xFFFFFFFF).astype(np.int32))

    @classmethod
    def read(cls, folder: Path) -> "LabelledQueries":
        """Opens the folder, its arrays memory-mapped."""
        return cls(*(np.load(folder / name, mmap_mode="r") for name in (QUERIES, INDPTR, QUERY)))

    def write(self, folder: Path, ids: pa.Array, texts: pa.Array, plain: np.ndarray | None, use: LabelUse) -> None:
        """Writes the folder; `ids` and `texts` [n] are the queries', `plain` [m, d] the passages' vectors."""
        folder.mkdir()
        arrays = {QUERIES: self.vectors, INDPTR: self.indptr, QUERY: self.query}
        if plain is not None:
            arrays[PLAIN] = plain[self.passages]
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


@dataclass(frozen=True)
class BundleLabels:
    """The folder `labels/` of a bundle, and the pairs that added labels change in it."""

    folder: Path
    changed: ChangedPairs | None = None

    @cached_property
    def use(self) -> LabelUse:
        """The use that the bundle makes of its labelled queries."""
        return LabelUse(**json.loads((self.folder / USE).read_text("utf-8")))

    @cached_property
    def of_run(self) -> LabelledQueries:
        """The labelled queries as the run wrote them, memory-mapped."""
        return LabelledQueries.read(self.folder)

    @property
    def queries(self) -> LabelledQueries:
        """The labelled queries with the changed pairs; without any, they are memory-mapped."""
        return self._numbered[1]

    @cached_property
    def _numbered(self) -> tuple[np.ndarray | None, LabelledQueries]:
        """Returns `queries`, and the number [n'] of each query as in `ChangedPairs.query`; None: 0, 1, …"""
        run, changed = self.of_run, self.changed
        if changed is None:
            return None, run
        passages = len(run.indptr) - 1
        owner, query = run.into(np.arange(passages))
        stays = np.isin(owner, changed.passages, invert=True)
        owner = np.concatenate([owner[stays], np.repeat(changed.passages, np.diff(changed.indptr))])
        query = np.concatenate([query[stays], changed.query])
        vectors = np.concatenate([run.vectors, changed.vectors])
        return np.unique(query), LabelledQueries.of(query, owner, passages, vectors)

    def names(self, rows: np.ndarray) -> tuple[list[str], list[str]]:
        """Ids and texts of the queries at `rows` of `queries`, in the order of `rows`."""
        numbers, table = self._numbered[0], pq.read_table(self.folder / TEXTS)
        if self.changed is not None and numbers is not None:
            changed = pa.table({"query_id": self.changed.ids, "text": self.changed.texts}, table.schema)
            table, rows = pa.concat_tables([table, changed]), numbers[rows]
        table = table.take(pa.array(rows))
        return table.column("query_id").to_pylist(), table.column("text").to_pylist()

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns {query id: row of `of_run`} of those `ids` that it has."""
        known = pq.read_table(self.folder / TEXTS, columns=["query_id"]).column("query_id")
        rows = np.flatnonzero(pc.is_in(known, value_set=pa.array(sorted(set(ids)), known.type)).to_numpy())
        return dict(zip(known.take(pa.array(rows)).to_pylist(), rows.tolist(), strict=True))

    def plain(self, passages: np.ndarray, vectors: np.ndarray, of: np.ndarray | None) -> np.ndarray:
        """Returns the vectors fp32 [b, d] without labels of `passages` [b].

        Args:
            vectors, of: the bundle's vectors [v, d] and their passages [v] as the run wrote them. The first vector of a
                passage without labelled queries is the plain one.
        """
        plain_vectors = np.array(vectors[passages if of is None else np.searchsorted(of, passages)], np.float32)
        labelled = self.of_run.passages
        known = np.isin(passages, labelled)
        plain_vectors[known] = np.load(self.folder / PLAIN, mmap_mode="r")[np.searchsorted(labelled, passages[known])]
        return plain_vectors
