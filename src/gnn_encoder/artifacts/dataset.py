"""The canonical dataset: Parquet tables (`dataset_writer` writes them). Row numbers are used in place of text ids.

corpus.parquet   passage_id, title, text
queries.parquet  query_id, text, split, answers (list of strings), group (int32, see `Dataset.groups`)
qrels.parquet    query_id, passage_id, relevance, and the row numbers of both: query, passage (int32)
pool.parquet     query, passage: row numbers of the candidates that were given with the data, if any were
passage_groups.npy  int32 [m], see `Dataset.passage_groups`, if any passages have one text
recurring.parquet  query: row numbers of the queries that nearly equal another training query, if any do
identical.parquet  query, passage: row numbers of the queries that have the id of a passage or quote one, and of that
                 passage, which is left out of the query's hits, if there are any
missing.parquet  query, passage_id, relevance: labels of dev and test queries for passages that no ranking can have, if
                 there are any: the corpus lacks the passage, or it is the query itself
trained.parquet  query: row numbers of the training queries that are trained on, if these are a draw
written_splits.json  the splits that have queries of a generator, if any have (`Dataset.written_splits`)
traffic.parquet  query, clicks: how often queries of a log were used in their part of it, if a log gave any
fields.arrow     further fields of the passages, by which a search filters, if there are any (`artifacts.fields`)
query_values.parquet  query, value: the queries with a value of `ingest.query_field`, if it is set
labels.jsonl     labels that were added to an earlier bundle and are in the other tables, if any are (`added_labels`)

Data with documents have three files more (`artifacts.structure`). Files that only some data have leave the schema's
version as it is: a dataset without them means the same as before.
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnn_encoder.artifacts.added_labels import ADDED_LABELS, AddedLabel, read_labels
from gnn_encoder.artifacts.folder import Manifest, digest_of, read_manifest
from gnn_encoder.artifacts.passages import CORPUS, CORPUS_SCHEMA, PassageTable, StoredTable
from gnn_encoder.artifacts.structure import CITATIONS, NODES, STRUCTURE_SCHEMAS, Structure
from gnn_encoder.artifacts.texts import written_id

QUERIES, QRELS, POOL = "queries.parquet", "qrels.parquet", "pool.parquet"
RECURRING, IDENTICAL, MISSING = "recurring.parquet", "identical.parquet", "missing.parquet"
PASSAGE_GROUPS, TRAINED, TRAFFIC = "passage_groups.npy", "trained.parquet", "traffic.parquet"
WRITTEN_SPLITS, QUERY_VALUES = "written_splits.json", "query_values.parquet"
TEXT, NUMBER = pa.string(), pa.int32()
SCHEMAS = {
    CORPUS: CORPUS_SCHEMA,
    QUERIES: pa.schema({"query_id": TEXT, "text": TEXT, "split": TEXT, "answers": pa.list_(TEXT), "group": NUMBER}),
    QRELS: pa.schema({"query_id": TEXT, "passage_id": TEXT, "relevance": NUMBER, "query": NUMBER, "passage": NUMBER}),
    POOL: pa.schema({"query": NUMBER, "passage": NUMBER}),
    RECURRING: pa.schema({"query": NUMBER}),
    IDENTICAL: pa.schema({"query": NUMBER, "passage": NUMBER}),
    MISSING: pa.schema({"query": NUMBER, "passage_id": TEXT, "relevance": NUMBER}),
    TRAINED: pa.schema({"query": NUMBER}),
    TRAFFIC: pa.schema({"query": NUMBER, "clicks": pa.float64()}),
    QUERY_VALUES: pa.schema({"query": NUMBER, "value": TEXT}),
    **STRUCTURE_SCHEMAS,
}
SPLITS = ("train", "dev", "test")
HIGHEST_RELEVANCE = 1000
"""Largest absolute value of a label. trec_eval allocates memory for every grade up to a query's highest label: a label
of 10**9 took 8 GB. With a label of 2**31 - 1, RR, nDCG and MAP were 0 without an error."""


def relevance_of(field: str) -> int | None:
    """The label in a field of a qrels file; None if the field is not an integer up to `HIGHEST_RELEVANCE`.

    Only ASCII digits are accepted; `int` would also accept 1_0 and digits of other scripts.
    """
    label = int(field) if re.fullmatch(r"[+-]?[0-9]{1,10}", field) else HIGHEST_RELEVANCE + 1
    return label if abs(label) <= HIGHEST_RELEVANCE else None


def read_columns(path: Path, *names: str) -> list[np.ndarray]:
    """Reads numeric columns of a Parquet file, by name."""
    return [column.to_numpy() for column in pq.read_table(path, columns=list(names)).columns]


@dataclass(frozen=True)
class Qrels:
    """Relevance labels as row numbers: `query`, `passage` int32 [r], `relevance` int32 [r]."""

    query: np.ndarray
    passage: np.ndarray
    relevance: np.ndarray

    def positive(self) -> "Qrels":
        """The labels with relevance of at least 1."""
        return self.where(self.relevance >= 1)

    def where(self, keep: np.ndarray | slice) -> "Qrels":
        """The labels at some rows, or where a mask [r] is true."""
        return Qrels(self.query[keep], self.passage[keep], self.relevance[keep])


class Texts(Protocol):
    """Queries and passages by row: a `Dataset`, or questions to a bundle (`Asked`)."""

    @property
    def passages(self) -> PassageTable:
        """The corpus, m rows."""

    def query_texts(self, rows: np.ndarray) -> list[str]:
        """Texts of the queries at `rows`, in the order of `rows`."""


@dataclass(frozen=True)
class Asked:
    """Questions that are in no dataset, and the passages of a bundle."""

    questions: list[str]
    passages: PassageTable

    def query_texts(self, rows: np.ndarray) -> list[str]:
        """As `Texts`."""
        return [self.questions[row] for row in rows.tolist()]


class Dataset:
    """Reads a dataset artifact."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest: Manifest = read_manifest(self.path, "dataset")

    @cached_property
    def passages(self) -> PassageTable:
        """The corpus, m rows."""
        return PassageTable(self.path / CORPUS)

    @cached_property
    def queries(self) -> pa.Table:
        """All queries of all splits, in row order (columns of `SCHEMAS[QUERIES]`)."""
        return pq.read_table(self.path / QUERIES)

    def query_rows(self, split: str) -> np.ndarray:
        """Row numbers of a split's queries, int32, ascending."""
        number = SPLITS.index(split) if split in SPLITS else -1
        return np.flatnonzero(self._splits == number).astype(np.int32)

    @cached_property
    def query_table(self) -> StoredTable:
        """All queries as `queries`, of which memory holds what is read."""
        return StoredTable(self.path / QUERIES)

    @cached_property
    def _splits(self) -> np.ndarray:
        """Int8 [n]: the place of each query's split in `SPLITS`."""
        values, start = pa.array(SPLITS), 0
        numbers = np.full(len(self.query_table), -1, np.int8)
        for batch in self.query_table.batches("split"):
            numbers[start : start + len(batch)] = pc.index_in(batch.column(0), values).fill_null(-1).to_numpy()
            start += len(batch)
        return numbers

    @cached_property
    def groups(self) -> np.ndarray:
        """Int32 [n]: for each query the row of the first query in its group.

        Training queries that are twins (`data.twins`) form a group: twins share their positives and leave the graph
        together. Every other query is alone in its group.
        """
        return read_columns(self.path / QUERIES, "group")[0]

    @cached_property
    def passage_groups(self) -> np.ndarray | None:
        """Int32 [m], memory-mapped: for each passage the row of the first passage in its group; None: all are alone.

        Passages of equal text form a group, or by `ingest.copy_similarity` of similar text. A passage in the group of a
        query's positive is no negative of the query.
        """
        file = self.path / PASSAGE_GROUPS
        return np.load(file, mmap_mode="r") if file.is_file() else None

    def query_texts(self, rows: np.ndarray) -> list[str]:
        """Texts of the queries at `rows`, in the order of `rows`."""
        return list(self.queries.column("text").take(pa.array(rows)).to_pylist())

    @cached_property
    def qrels(self) -> Qrels:
        """Labels of all splits, as row numbers."""
        return Qrels(*read_columns(self.path / QRELS, "query", "passage", "relevance"))

    @property
    def pool(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Rows int32 [c] of queries and of their candidates, sorted by both; None: the data have no pool."""
        file = self.path / POOL
        if not file.is_file():
            return None
        query, passage = read_columns(file, "query", "passage")
        return query, passage

    @cached_property
    def recurring(self) -> np.ndarray:
        """Rows int32, ascending, of the queries that nearly equal another query, one of train, as
        `ingest.recurrence_similarity` says."""
        file = self.path / RECURRING
        return read_columns(file, "query")[0] if file.is_file() else np.empty(0, np.int32)

    @cached_property
    def identical(self) -> np.ndarray:
        """Int32 [n]: row of the passage that is left out of the query's hits, since it has the query's id
        (`ingest.ignore_identical_ids`), or a written query quotes it (`select_queries`); -1: none."""
        rows, file = np.full(len(self.query_table), -1, np.int32), self.path / IDENTICAL
        if file.is_file():
            query, passage = read_columns(file, "query", "passage")
            rows[query] = passage
        return rows

    @cached_property
    def _missing(self) -> tuple[Qrels, pa.Array]:
        """Labels of passages that no ranking can have, with rows from m on, and the text ids of these passages."""
        file = self.path / MISSING
        table = pq.read_table(file) if file.is_file() else SCHEMAS[MISSING].empty_table()
        query, relevance = (table.column(name).to_numpy() for name in ("query", "relevance"))
        names = table.column("passage_id").combine_chunks().dictionary_encode()
        return Qrels(query, len(self.passages) + names.indices.to_numpy(), relevance), names.dictionary

    @cached_property
    def trained(self) -> np.ndarray:
        """Rows int32, ascending, of the training queries that are trained on: all, or `ingest.max_trained_queries`.

        The labels of the others count wherever labels are used without training: in the strata, in the graph, among
        known positives, and in the systems of `encode_with_labels`.
        """
        file = self.path / TRAINED
        return read_columns(file, "query")[0] if file.is_file() else self.query_rows("train")

    @cached_property
    def traffic(self) -> np.ndarray | None:
        """Float64 [n]: clicks of each query in its part of the log that labels it (`ingest.log`), 0 for other queries;
        None: the data have no log."""
        file = self.path / TRAFFIC
        if not file.is_file():
            return None
        clicks, (query, used) = np.zeros(len(self.query_table)), read_columns(file, "query", "clicks")
        clicks[query] = used
        return clicks

    def query_values(self, rows: np.ndarray) -> list[str]:
        """The values of `ingest.query_field` of the queries at `rows`; empty where a query has none."""
        file = self.path / QUERY_VALUES
        table = pq.read_table(file) if file.is_file() else SCHEMAS[QUERY_VALUES].empty_table()
        values = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
        return [values.get(row, "") for row in rows.tolist()]

    @cached_property
    def trained_labels(self) -> Qrels:
        """Labels with relevance of at least 1 of the queries in `trained`."""
        return self.qrels.where(np.isin(self.qrels.query, self.trained)).positive()

    @cached_property
    def written_splits(self) -> tuple[str, ...]:
        """The splits with queries that a generator wrote (`select_queries`), of `SPLITS`; people wrote all others."""
        return tuple(self._written["splits"])

    def written_rows(self, split: str) -> np.ndarray:
        """Rows of a split's queries that a generator wrote; train may have queries of people, too."""
        if split not in self.written_splits:
            return np.empty(0, np.int32)
        rows = self.query_rows(split)
        ids = self.queries.column("query_id").take(pa.array(rows)).to_pylist()
        return rows[[name == written_id(text) for name, text in zip(ids, self.query_texts(rows), strict=True)]]

    @cached_property
    def seen_labels(self) -> Qrels:
        """Labels of train that make a passage warm (`evaluation.strata`): those of people's queries, or, if a generator
        wrote all training queries, of these. So written queries beside people's leave the strata as they are."""
        train = self.split_qrels("train")
        of_people = train.where(~np.isin(train.query, self.written_rows("train")))
        return of_people if len(of_people.query) else train

    @property
    def quoting(self) -> bool:
        """Whether the dev queries were written, and quote their passages (`select_queries.quoting`): then they say
        nothing about people's queries."""
        return bool(self._written["quoting"])

    @cached_property
    def _written(self) -> dict[str, Any]:
        file = self.path / WRITTEN_SPLITS
        return dict(json.loads(file.read_text("utf-8"))) if file.is_file() else {"splits": [], "quoting": False}

    @cached_property
    def added(self) -> list[AddedLabel]:
        """The labels of `ingest.labels` that are in the tables and not in the data themselves."""
        return read_labels(file) if (file := self.path / ADDED_LABELS).is_file() else []

    @cached_property
    def structure(self) -> Structure | None:
        """The documents of the passages; None: the data have no structure."""
        return Structure(self.path, len(self.passages)) if (self.path / NODES).is_file() else None

    @property
    def corpus_digests(self) -> dict[str, str]:
        """Digests of the `passages`, in order, and of the `structure`: what a passage's context depends on."""
        files = self.manifest.files
        structure = {name: files[name].sha256 for name in (NODES, CITATIONS) if name in files}
        return {"passages": self.passages.digest, "structure": digest_of(structure)}

    def split_qrels(self, split: str) -> Qrels:
        """Labels of one split's queries for passages of the corpus."""
        return self.qrels.where(np.isin(self.qrels.query, self.query_rows(split)))

    def judged(self, split: str) -> Qrels:
        """Labels of one split's queries to measure a ranking with: `split_qrels`, and labels of missing passages.

        A missing passage, which the corpus lacks or which is the query itself (`identical`), has a row from m on, as in
        `judged_ids`. No ranking has it, so a relevant one counts as missed, as trec_eval and BEIR count it. Labels of
        train are of passages in the corpus alone.
        """
        of_corpus, (missing, _) = self.split_qrels(split), self._missing
        of_missing = missing.where(np.isin(missing.query, self.query_rows(split)))
        if not len(of_missing.query):
            return of_corpus
        pairs = zip(vars(of_corpus).values(), vars(of_missing).values(), strict=True)
        return Qrels(*(np.concatenate(pair) for pair in pairs))

    def judged_ids(self) -> pa.ChunkedArray:
        """The text ids of all passages, then the text ids of the missing passages that labels name."""
        return pa.chunked_array([*self.passages.ids().chunks, self._missing[1]], TEXT)
