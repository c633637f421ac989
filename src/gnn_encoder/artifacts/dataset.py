"""The canonical dataset: Parquet tables. The package uses row numbers in place of text ids.

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
query_values.parquet  query, value: the queries with a value of `ingest.query_field`, if it is set
labels.jsonl     labels that were added to an earlier bundle and are in the other tables, if any are (`added_labels`)

Data with documents have three files more (`artifacts.structure`). Files that only some data have leave the schema's
version as it is: a dataset without them means the same as before.
"""

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnn_encoder.artifacts.added_labels import ADDED_LABELS, AddedLabel, read_labels, write_labels
from gnn_encoder.artifacts.folder import Draft, Manifest, digest_of, read_manifest
from gnn_encoder.artifacts.structure import CITATIONS, DOCUMENTS, NODES, STRUCTURE_SCHEMAS, Structure
from gnn_encoder.artifacts.texts import written_id

CORPUS, QUERIES, QRELS, POOL = "corpus.parquet", "queries.parquet", "qrels.parquet", "pool.parquet"
RECURRING, IDENTICAL, MISSING = "recurring.parquet", "identical.parquet", "missing.parquet"
PASSAGE_GROUPS, TRAINED, TRAFFIC = "passage_groups.npy", "trained.parquet", "traffic.parquet"
WRITTEN_SPLITS, QUERY_VALUES = "written_splits.json", "query_values.parquet"
BATCH = 10_000
"""Rows that a reader holds in memory at a time."""
ROW_GROUP = 1_000
"""Rows of a file that are decompressed together. Ten passages anywhere in 104,096 take 6.5 ms to read; with 10,000 rows
they take 27 ms, and the file is 5 % smaller."""
RECENT = 2**26
"""Bytes of row groups that a file's reader keeps: a server's hits are often in the same ones."""

TEXT, NUMBER = pa.string(), pa.int32()
SCHEMAS = {
    CORPUS: pa.schema({"passage_id": TEXT, "title": TEXT, "text": TEXT}),
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
Column: TypeAlias = list[Any] | np.ndarray | pa.ChunkedArray
HIGHEST_RELEVANCE = 1000
"""Largest absolute value of a label. trec_eval allocates memory for every grade up to a query's highest label: a label
of 10**9 took 8 GB. With a label of 2**31 - 1, RR, nDCG and MAP were 0 without an error."""


def relevance_of(field: str) -> int | None:
    """The label in a field of a qrels file; None if the field is not an integer up to `HIGHEST_RELEVANCE`.

    Only ASCII digits are accepted; `int` would also accept 1_0 and digits of other scripts.
    """
    label = int(field) if re.fullmatch(r"[+-]?[0-9]{1,10}", field) else HIGHEST_RELEVANCE + 1
    return label if abs(label) <= HIGHEST_RELEVANCE else None


def passage_text(title: str, text: str) -> str:
    """A passage as models and BM25 read it: title and text, or the one of them that is not empty.

    As BEIR and sentence-transformers join them, except that white space around a passage with a text is kept.
    """
    if not text.strip():
        return title.strip() or text
    return f"{title} {text}" if title.strip() else text


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


@dataclass(frozen=True)
class Passages:
    """Some passages: ids, titles and texts, aligned."""

    ids: list[str]
    titles: list[str]
    texts: list[str]

    def full_texts(self) -> list[str]:
        """Title and text of each passage, as models read them."""
        return [passage_text(title, text) for title, text in zip(self.titles, self.texts, strict=True)]

    def bare_texts(self) -> list[str]:
        """The text of each passage, for models that read no titles; the title of a passage without text."""
        return [text if text.strip() else title for title, text in zip(self.titles, self.texts, strict=True)]


class StoredTable:
    """A Parquet file: streamed in order, or read by row. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = pq.ParquetFile(path, memory_map=True)
        self._reading = Lock()  # two threads that read one ParquetFile crash the process
        sizes = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        self._starts = np.cumsum([0, *sizes])
        self._recent: dict[int, pa.Table] = {}
        self._room = RECENT

    def __len__(self) -> int:
        return int(self._starts[-1])

    def batches(self, *names: str) -> Iterator[pa.RecordBatch]:
        """All rows in order, `BATCH` at a time; all columns, or those of some names."""
        yield from pq.ParquetFile(self._path, memory_map=True).iter_batches(BATCH, columns=list(names) or None)

    def rows(self, rows: np.ndarray) -> pa.Table:
        """The rows [b], in that order; reads only the row groups in which they are."""
        rows = np.asarray(rows, dtype=np.int64)
        order = np.argsort(rows, kind="stable")
        groups = np.searchsorted(self._starts, rows[order], side="right") - 1
        parts = [pa.Table.from_batches([], self._file.schema_arrow)]  # `empty_table` imports pandas
        for some in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(groups)) + 1) if len(rows) else []:
            group = int(groups[some[0]])
            parts.append(self._group(group).take(_column(rows[order[some]] - self._starts[group])))
        return pa.concat_tables(parts).take(_column(np.argsort(order)))

    def _group(self, number: int) -> pa.Table:
        """A row group. Those used last stay in memory: decompressing them takes a third of a question's time, the
        encoder apart."""
        with self._reading:
            if (group := self._recent.pop(number, None)) is None:
                group = self._file.read_row_group(number)
                self._room -= group.nbytes
            self._recent[number] = group
            while self._room < 0 and len(self._recent) > 1:
                self._room += self._recent.pop(next(iter(self._recent))).nbytes
            return group

    def column(self, name: str, rows: np.ndarray) -> Iterator[pa.Array]:
        """Yields a column at `rows`, ascending, in batches."""
        start = 0
        for batch in self.batches(name):
            first, last = np.searchsorted(rows, [start, start + len(batch)])
            yield batch.column(0).take(_column(np.asarray(rows[first:last], np.int64) - start))
            start += len(batch)

    def places(self, name: str, values: Iterable[str]) -> dict[str, int]:
        """Returns {value: row} of those values that a column has, each in one row."""
        wanted, rows, start = pa.array(sorted(set(values)), TEXT), dict[str, int](), 0
        for batch in self.batches(name) if len(wanted) else ():
            here = np.flatnonzero(pc.is_in(batch.column(0), value_set=wanted).to_numpy(zero_copy_only=False))
            rows |= zip(batch.column(0).take(_column(here)).to_pylist(), (start + here).tolist(), strict=True)
            start += len(batch)
        return rows


class PassageTable(StoredTable):
    """`corpus.parquet` of a dataset or a bundle."""

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return read_manifest(self._path.parent).files[self._path.name].sha256

    def stream(self) -> Iterator[Passages]:
        """All passages in row order, `BATCH` at a time."""
        yield from map(_passages, self.batches())

    def take(self, rows: np.ndarray) -> Passages:
        """The passages at `rows` [b], in the order of `rows`."""
        return _passages(self.rows(rows))

    def ids(self) -> pa.ChunkedArray:
        """Every passage's text id, as an Arrow column [m]."""
        with self._reading:
            return self._file.read(columns=["passage_id"]).column(0)


def _column(rows: np.ndarray) -> pa.Array:
    """Row numbers int64 for Arrow. `pa.array` would import pandas: half a second of processor time in a search."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])


def _passages(table: pa.Table | pa.RecordBatch) -> Passages:
    return Passages(*(table.column(name).to_pylist() for name in SCHEMAS[CORPUS].names))


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
        places = np.full(len(self.query_table), -1, np.int8)
        for batch in self.query_table.batches("split"):
            places[start : start + len(batch)] = pc.index_in(batch.column(0), values).fill_null(-1).to_numpy()
            start += len(batch)
        return places

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
        more = missing.where(np.isin(missing.query, self.query_rows(split)))
        if not len(more.query):
            return of_corpus
        pairs = zip(vars(of_corpus).values(), vars(more).values(), strict=True)
        return Qrels(*(np.concatenate(pair) for pair in pairs))

    def judged_ids(self) -> pa.ChunkedArray:
        """The text ids of all passages, then the text ids of the missing passages that labels name."""
        return pa.chunked_array([*self.passages.ids().chunks, self._missing[1]], TEXT)


def write_passage_groups(draft: Draft, groups: np.ndarray) -> None:
    """Adds `Dataset.passage_groups` to a dataset that `DatasetWriter` wrote."""
    np.save(draft / PASSAGE_GROUPS, groups, allow_pickle=False)


class DatasetWriter:
    """Streams rows into a dataset draft: all passages and queries first, then the qrels.

    Rows come as batches of columns. A thread compresses and writes one batch while the caller reads the next batch, so
    memory holds two batches. An error in writing is raised by the next call.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._rows: dict[str, int] = {}
        for name in (CORPUS, QUERIES, QRELS):
            self._open(name)
        self._thread = ThreadPoolExecutor(1, "parquet")
        self._writing: Future[None] | None = None

    def passages(self, ids: Column, titles: Column, texts: Column) -> None:
        """Append passages."""
        self._write(CORPUS, ids, titles, texts)

    def queries(
        self, ids: Column, texts: Column, splits: Column, answers: Column, groups: Column | None = None
    ) -> None:
        """Append queries; `groups` as `Dataset.groups`, None: each query is alone in its group."""
        if groups is None:
            groups = np.arange(self._rows[QUERIES], self._rows[QUERIES] + len(ids))
        self._write(QUERIES, ids, texts, splits, answers, groups)

    def qrels(self, query_ids: Column, passage_ids: Column, relevance: Column, query: Column, passage: Column) -> None:
        """Append labels, with the row numbers of query and passage."""
        self._write(QRELS, query_ids, passage_ids, relevance, query, passage)

    def pool(self, query: Column, passage: Column) -> None:
        """Write the pool, as `Dataset.pool`."""
        self._open(POOL)
        self._write(POOL, query, passage)

    def recurring(self, query: Column) -> None:
        """Write the recurring queries, as `Dataset.recurring`."""
        self._open(RECURRING)
        self._write(RECURRING, query)

    def identical(self, query: Column, passage: Column) -> None:
        """Write the pairs of `Dataset.identical`."""
        self._open(IDENTICAL)
        self._write(IDENTICAL, query, passage)

    def missing(self, query: Column, passage_ids: Column, relevance: Column) -> None:
        """Write labels of passages that the corpus lacks, for `Dataset.judged`."""
        self._open(MISSING)
        self._write(MISSING, query, passage_ids, relevance)

    def trained(self, query: Column) -> None:
        """Write the queries that are trained on, as `Dataset.trained`."""
        self._open(TRAINED)
        self._write(TRAINED, query)

    def traffic(self, query: Column, clicks: Column) -> None:
        """Write the clicks of a log's queries, for `Dataset.traffic`."""
        self._open(TRAFFIC)
        self._write(TRAFFIC, query, clicks)

    def query_values(self, query: Column, values: Column) -> None:
        """Write the values of `Dataset.query_values`."""
        self._open(QUERY_VALUES)
        self._write(QUERY_VALUES, query, values)

    def added(self, labels: Iterable[AddedLabel]) -> None:
        """Write the labels of `Dataset.added`."""
        write_labels(self._draft / ADDED_LABELS, labels)

    def structure(self, nodes: list[Column], document_ids: Column, citations: list[Column]) -> None:
        """Write the documents: the columns of nodes and citations as in `artifacts.structure`."""
        for name, columns in {NODES: nodes, DOCUMENTS: [document_ids], CITATIONS: citations}.items():
            self._open(name)
            self._write(name, *columns)

    def _open(self, name: str) -> None:
        self._writers[name] = pq.ParquetWriter(self._draft / name, SCHEMAS[name], compression="zstd")
        self._rows[name] = 0

    def _write(self, name: str, *columns: Column) -> None:
        schema = SCHEMAS[name]
        arrays = [
            column if isinstance(column, pa.ChunkedArray) else pa.array(column, type=field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        table = pa.table(arrays, schema=schema)
        if self._writing:
            self._writing.result()
        self._writing = self._thread.submit(self._writers[name].write_table, table, row_group_size=ROW_GROUP)
        self._rows[name] += len(table)

    def close(self) -> None:
        """Close the files and record the row counts."""
        try:
            if self._writing:
                self._writing.result()
        finally:
            self._thread.shutdown()
            for writer in self._writers.values():
                writer.close()
        self._draft.rows(**{Path(name).stem: count for name, count in self._rows.items()})
