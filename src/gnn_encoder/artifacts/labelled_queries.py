"""Training queries with labelled passages, and the use that a bundle makes of them: the folder `labels/` of a bundle.

queries.npy       fp32 [n, d]: vectors of the training queries that have a labelled passage
queries.parquet   their ids and texts, aligned
indptr.npy        int64 [m + 1]
query.npy         int32 [e]: passage p is a labelled positive of the queries query[indptr[p]:indptr[p + 1]]
query_indptr.npy  int64 [n + 1]
passage.npy       int32 [e]: the same pairs by query
index.faiss       index over the queries' vectors, in parts or not (`retrieval.query_index`); missing if all are read
plain.npy         [l, d], in the type of the bundle's vectors: vectors without labels of the passages that have a
                  labelled query, ascending; missing if labels change no vector
plain_of.npy      int32 [l]: the passage of each; missing if each has one
use.json          `LabelUse`, and `LabelledQueries.scale`

Labels that were added after the run change pairs of some passages: `ChangedPairs`, in `added/labels/` of the bundle.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts.added_labels import ChangedPairs
from gnn_encoder.artifacts.arrays import Rows, joined, ranges, rows_of
from gnn_encoder.artifacts.dataset import Dataset
from gnn_encoder.artifacts.dataset_writer import ROW_GROUP
from gnn_encoder.artifacts.passages import BATCH, StoredTable
from gnn_encoder.artifacts.tables import pair_keys

Method = Literal["sum", "max", "softmax", "clusters", "fusion"]
QUERIES, TEXTS, QUERY_INDEX = "queries.npy", "queries.parquet", "index.faiss"
BY_PASSAGE, BY_QUERY = ("indptr.npy", "query.npy"), ("query_indptr.npy", "passage.npy")
PLAIN, PLAIN_OF, USE = "plain.npy", "plain_of.npy", "use.json"
SUMMED = 65_536
"""Vectors whose lengths are summed at a time."""


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
        details = {
            "sum": "",
            "max": ", best query",
            "softmax": f", softmax of the {self.neighbours} nearest queries{near}, temperature {self.temperature:g}",
            "clusters": f", up to {self.clusters} clusters",
        }
        if self.method == "fusion":
            return "among the parts of a fusion"
        return f"weight {self.weight:g}{details[self.method]}" if self.weight else "weight 0: as the dual encoder"


@dataclass(frozen=True)
class Groups:
    """Numbers in groups (CSR): group i has values[indptr[i]:indptr[i + 1]]. The groups `changed` have `others` instead.

    So a change copies nothing of the arrays, which may lie on the disk.

    indptr   int64 [g + 1]
    values   int32 [e]
    changed  int64 [c], ascending; a number from g on is a group more
    """

    indptr: np.ndarray
    values: np.ndarray
    changed: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    others: "Groups | None" = None

    @classmethod
    def of_pairs(cls, group: np.ndarray, value: np.ndarray, groups: int) -> "Groups":
        """Groups pairs [e]; a repeated pair counts once. Values of a group are ascending."""
        pairs = np.unique(pair_keys(group, value))
        indptr = np.zeros(groups + 1, np.int64)
        np.cumsum(np.bincount(pairs >> 32, minlength=groups), out=indptr[1:])
        return cls(indptr, (pairs & 0xFFFFFFFF).astype(np.int32))

    @classmethod
    def read(cls, folder: Path, names: tuple[str, str]) -> "Groups":
        """Opens two arrays of a folder, memory-mapped."""
        indptr, values = (np.asarray(np.load(folder / name, mmap_mode="r")) for name in names)
        return cls(indptr, values)

    def write(self, folder: Path, names: tuple[str, str]) -> None:
        """Writes the arrays; there must be no change."""
        for name, array in zip(names, (self.indptr, self.values), strict=True):
            np.save(folder / name, array, allow_pickle=False)

    @cached_property
    def numbers(self) -> Rows:
        """The values [e], and behind them the others."""
        return joined([self.values, self.others.values]) if self.others else self.values

    @property
    def sizes(self) -> np.ndarray:
        """The number int64 [g] of values of each group in `indptr`."""
        sizes = np.diff(self.indptr)
        if self.others:
            inside = self.changed < len(sizes)
            sizes[self.changed[inside]] = self.others.sizes[inside]
        return sizes

    def bounds(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns where each of some groups [b] starts and stops in `numbers`; a group that does not exist is empty."""
        last = len(self.indptr) - 1
        exists = (groups >= 0) & (groups < last)
        group = np.where(exists, groups, 0)
        starts, stops = self.indptr[group], self.indptr[np.where(exists, group + 1, group)]
        if self.others and len(self.changed):
            position = np.minimum(np.searchsorted(self.changed, groups), len(self.changed) - 1)
            other, first = self.changed[position] == groups, len(self.values)
            starts = np.where(other, first + self.others.indptr[position], starts)
            stops = np.where(other, first + self.others.indptr[position + 1], stops)
        return starts, stops

    def into(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values of some groups [b]: the place in `groups` int64 [p], ascending, and the value int32 [p]."""
        starts, stops = self.bounds(groups)
        return np.repeat(np.arange(len(groups)), stops - starts), self.numbers[ranges(starts, stops)]


@dataclass(frozen=True)
class LabelledQueries:
    """Labelled pairs of m passages and n queries, by passage and by query, and the queries' vectors; see the module.

    stored      fp32 [n', d]: vectors of the first queries, memory-mapped if they come from a bundle
    added       fp32 [n - n', d]: vectors of the queries that labels added after the run
    unlabelled  number of queries without a pair
    known_scale `scale`, if it is known
    """

    stored: np.ndarray
    by_passage: Groups
    by_query: Groups
    added: np.ndarray
    unlabelled: int = 0
    known_scale: float | None = None

    @classmethod
    def of(cls, query: np.ndarray, passage: np.ndarray, passages: int, vectors: np.ndarray) -> "LabelledQueries":
        """Groups pairs by passages: `query` [e], a row of `vectors`, and `passage` [e]. A repeated pair counts once.

        Queries without a pair are left out; the vectors of the others are copied, unless all have one.
        """
        rows, query = np.unique(query, return_inverse=True)
        if len(rows) < len(vectors) or vectors.dtype != np.float32:
            vectors = np.asarray(vectors[rows], np.float32)
        return cls.grouped(query, passage, passages, vectors)

    @classmethod
    def grouped(cls, query: np.ndarray, passage: np.ndarray, passages: int, vectors: np.ndarray) -> "LabelledQueries":
        """As `of`, with all `vectors` [n, d] as they are, which may lie on the disk."""
        by_query = Groups.of_pairs(query, passage, len(vectors))
        by_passage = Groups.of_pairs(passage, query, passages)
        return cls(vectors, by_passage, by_query, vectors[:0], int((by_query.sizes == 0).sum()))

    @classmethod
    def read(cls, folder: Path) -> "LabelledQueries":
        """Opens the folder, its arrays memory-mapped."""
        vectors = np.load(folder / QUERIES, mmap_mode="r")
        by_passage, by_query = (Groups.read(folder, names) for names in (BY_PASSAGE, BY_QUERY))
        scale = json.loads((folder / USE).read_text("utf-8"))["scale"]
        return cls(vectors, by_passage, by_query, np.asarray(vectors[:0]), known_scale=scale)

    def write(
        self,
        folder: Path,
        ids: pa.Array,
        texts: pa.Array,
        plain: np.ndarray | None,
        use: LabelUse,
        of: np.ndarray | None = None,
    ) -> None:
        """Writes the folder; `ids` and `texts` [n] are the queries', `plain` [m, d] the passages' vectors.

        of: the passage of each vector, if some have several.
        """
        folder.mkdir()
        np.save(folder / QUERIES, self.stored, allow_pickle=False)
        self.by_passage.write(folder, BY_PASSAGE)
        self.by_query.write(folder, BY_QUERY)
        if plain is not None:
            owner, rows = rows_of(of, self.passages)
            np.save(folder / PLAIN, plain[rows], allow_pickle=False)
            if of is not None:
                np.save(folder / PLAIN_OF, self.passages[owner].astype(np.int32), allow_pickle=False)
        schema = pa.schema({"query_id": pa.string(), "text": pa.string()})
        with pq.ParquetWriter(folder / TEXTS, schema, compression="zstd") as writer:
            for start in range(0, len(ids), BATCH):
                columns = [column.slice(start, BATCH).cast(pa.string()) for column in (ids, texts)]
                writer.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP)
        (folder / USE).write_text(json.dumps({**asdict(use), "scale": self.scale}), encoding="utf-8")

    def with_pairs(
        self, passages: np.ndarray, indptr: np.ndarray, query: np.ndarray, added: np.ndarray | None = None
    ) -> "LabelledQueries":
        """Returns the pairs in which passage i of `passages` [c], ascending, has query[indptr[i]:indptr[i + 1]] alone.

        The pairs must be as they were stored or grouped; nothing of them is copied. added: vectors [a, d] of new
        queries, numbered from n on.
        """
        added = self.added if added is None else added
        former, owner = self.by_passage.into(passages)[1], np.repeat(passages, np.diff(indptr))
        queries = np.union1d(former, query).astype(np.int64)
        position, passage = self.by_query.into(queries)
        stays = np.isin(passage, passages, invert=True)
        position = np.concatenate([position[stays], np.searchsorted(queries, query)])
        others = Groups.of_pairs(position, np.concatenate([passage[stays], owner]), len(queries))
        new = int((queries >= len(self.stored)).sum())
        return replace(
            self,
            by_passage=replace(self.by_passage, changed=passages, others=Groups(indptr, query)),
            by_query=replace(self.by_query, changed=queries, others=others),
            added=added,
            unlabelled=self.unlabelled + int((others.sizes == 0).sum()) + len(added) - new,
            known_scale=self.scale,
        )

    def without(self, held: np.ndarray) -> "LabelledQueries":
        """Returns the pairs without those of the queries `held`, bool [n]; see `with_pairs`."""
        passages = np.unique(self.by_query.into(np.flatnonzero(held))[1]).astype(np.int64)
        owner, query = self.by_passage.into(passages)
        stays = ~held[query]
        kept = Groups.of_pairs(owner[stays], query[stays], len(passages))
        return self.with_pairs(passages, kept.indptr, kept.values)

    def __len__(self) -> int:
        return len(self.stored) + len(self.added)

    @cached_property
    def vectors(self) -> Rows:
        """The queries' vectors fp32 [n, d]."""
        return joined([self.stored, self.added]) if len(self.added) else self.stored

    @property
    def passages(self) -> np.ndarray:
        """Passage rows int64 [l] that have a labelled query, ascending."""
        return np.flatnonzero(self.by_passage.sizes)

    @cached_property
    def scale(self) -> float:
        """Mean squared length of the vectors as the run had them, 1 if they have unit length: the size of a score."""
        if self.known_scale is not None or not len(self.stored):
            return self.known_scale or 1.0
        blocks = (self.stored[start : start + SUMMED] for start in range(0, len(self.stored), SUMMED))
        return sum(float(np.einsum("nd,nd->", block, block)) for block in blocks) / len(self.stored)


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
        facts = json.loads((self.folder / USE).read_text("utf-8"))
        del facts["scale"]
        return LabelUse(**facts)

    @cached_property
    def of_run(self) -> LabelledQueries:
        """The labelled queries as the run wrote them, memory-mapped."""
        return LabelledQueries.read(self.folder)

    @cached_property
    def queries(self) -> LabelledQueries:
        """The labelled queries with the changed pairs. What did not change stays memory-mapped.

        Row n + j is query j of the changed pairs, n the number of queries that the run wrote.
        """
        run, changed = self.of_run, self.changed
        return run.with_pairs(changed.passages, changed.indptr, changed.query, changed.vectors) if changed else run

    @cached_property
    def _table(self) -> StoredTable:
        return StoredTable(self.folder / TEXTS)

    def names(self, rows: np.ndarray) -> tuple[list[str], list[str]]:
        """Ids and texts of the queries at `rows` of `queries`, in the order of `rows`."""
        stored = rows < len(self.of_run)
        table = self._table.rows(np.where(stored, rows, 0)) if stored.any() else None
        ids, texts = ([""] * len(rows), [""] * len(rows))
        if table:
            ids, texts = (table.column(name).to_pylist() for name in ("query_id", "text"))
        for index in np.flatnonzero(~stored).tolist():
            assert self.changed, "a row beyond the queries"
            number = int(rows[index]) - len(self.of_run)
            ids[index], texts[index] = self.changed.ids[number], self.changed.texts[number]
        return ids, texts

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Returns {query id: row of `of_run`} of those `ids` that it has."""
        return self._table.places("query_id", ids)

    @cached_property
    def in_windows(self) -> bool:
        """Whether passages have several vectors without labels."""
        return (self.folder / PLAIN_OF).is_file()

    def plain(self, passages: np.ndarray, vectors: np.ndarray, of: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the vectors fp32 [r, d] without labels of `passages` [b], and the place [r] of each one's passage.

        Args:
            vectors, of: the bundle's vectors [v, d] and their passages [v] as the run wrote them. The vectors of a
                passage without labelled queries are the plain ones.
        """
        labelled, known = self.of_run.passages, np.isin(passages, self.of_run.passages)
        of_plain = np.load(self.folder / PLAIN_OF, mmap_mode="r") if self.in_windows else labelled
        sides = ((of, ~known, vectors), (of_plain, known, np.load(self.folder / PLAIN, mmap_mode="r")))
        positions, plain_vectors = [], []
        for owner, mask, stored in sides:
            position, rows = rows_of(owner, passages[mask])
            positions.append(np.flatnonzero(mask)[position])
            plain_vectors.append(np.asarray(stored[rows], np.float32))
        order = np.argsort(np.concatenate(positions), kind="stable")
        return np.concatenate(plain_vectors)[order], np.concatenate(positions)[order]
