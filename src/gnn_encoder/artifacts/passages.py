"""The passages of a dataset or a bundle: `corpus.parquet`, and any Parquet file that is read by row."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnn_encoder.artifacts.folder import read_manifest

CORPUS = "corpus.parquet"
CORPUS_SCHEMA = pa.schema({"passage_id": pa.string(), "title": pa.string(), "text": pa.string()})
BATCH = 10_000
"""Rows that a reader holds in memory at a time."""
RECENT = 2**26
"""Bytes of row groups that a file's reader keeps: a server's hits are often in the same ones."""


def passage_text(title: str, text: str) -> str:
    """A passage as models and BM25 read it: title and text, or the one of them that is not empty.

    As BEIR and sentence-transformers join them, except that white space around a passage with a text is kept.
    """
    if not text.strip():
        return title.strip() or text
    return f"{title} {text}" if title.strip() else text


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
        for positions in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(groups)) + 1) if len(rows) else []:
            group = int(groups[positions[0]])
            parts.append(self._group(group).take(_column(rows[order[positions]] - self._starts[group])))
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
        wanted, rows, start = pa.array(sorted(set(values)), pa.string()), dict[str, int](), 0
        for batch in self.batches(name) if len(wanted) else ():
            matching = np.flatnonzero(pc.is_in(batch.column(0), value_set=wanted).to_numpy(zero_copy_only=False))
            rows |= zip(batch.column(0).take(_column(matching)).to_pylist(), (start + matching).tolist(), strict=True)
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
    return Passages(*(table.column(name).to_pylist() for name in CORPUS_SCHEMA.names))
