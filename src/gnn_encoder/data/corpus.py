"""Passages on their way from a reader to the canonical dataset."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import DatasetWriter
from gnn_encoder.artifacts.dataset import ROW_GROUP
from gnn_encoder.data.columns import blank, duplicates, encodable
from gnn_encoder.data.rows import PassageRows, Source
from gnn_encoder.data.validation import SHOWN, Kind, Problems

WORD_SAMPLE = 20_000
"""Passages whose words are counted for the mean: the first ones."""


class Corpus:
    """Passages on their way to the writer, and the ids of those that went.

    Args:
        problems: where bad rows are counted.
        skip: bool, rows to leave out, counted among those that are not empty.
    """

    def __init__(self, problems: Problems, skip: np.ndarray | None = None) -> None:
        self.problems, self._skip = problems, skip
        self.ids = pa.chunked_array([], pa.large_string())
        self.file = ""
        self._id_parts: list[pa.Array] = []
        self._lines: list[np.ndarray] = []
        self._pending: list[pa.Table] = []
        self._rows = self._words = self._counted = 0

    @property
    def mean_words(self) -> float:
        """Words of a passage's text."""
        return self._words / max(self._counted, 1)

    def read(self, source: Source, writer: DatasetWriter | None, advance: Callable[[int], None] | None) -> None:
        """Read all passages."""
        for rows in source.passages(self.problems):
            self.file = self.file or rows.file
            self._add(rows, writer)
            if advance:
                advance(rows.work)
        if writer and self._pending:
            self._flush(writer, last=True)
        self.ids = pa.chunked_array(self._id_parts, pa.large_string())

    def find_duplicates(self) -> np.ndarray:
        """bool [rows]: passages whose id an earlier one has; each is a problem."""
        found = duplicates(self.ids)
        for row in np.flatnonzero(found):
            seen = self.problems.count(Kind.DUPLICATE_PASSAGE)
            line = int(np.concatenate(self._lines)[row]) if seen < SHOWN else None
            self.problems.add(Kind.DUPLICATE_PASSAGE, self.file, line, repr(self.ids[int(row)].as_py()))
        return found

    def _add(self, rows: PassageRows, writer: DatasetWriter | None) -> None:
        columns, lines = [rows.ids, rows.titles, rows.texts], np.asarray(rows.lines, dtype=np.uint32)
        if isinstance(rows.ids, list):
            stored = encodable(columns, rows.file, rows.lines, self.problems)
            if stored is not None:
                columns, lines = [[column[i] for i in stored] for column in columns], lines[stored]
        table = pa.table([pa.array(column, pa.string()) for column in columns], names=["id", "title", "text"])
        keep = ~blank(table["text"])
        for row in np.flatnonzero(~keep):
            self.problems.add(Kind.EMPTY_PASSAGE, rows.file, int(lines[row]), repr(table["id"][int(row)].as_py()))
        first, self._rows = self._rows, self._rows + int(keep.sum())
        if self._skip is not None:
            keep[keep] = ~self._skip[first : self._rows]
        if not keep.all():
            table, lines = table.filter(pa.array(keep)), lines[keep]
        self._id_parts.append(table["id"].combine_chunks().cast(pa.large_string()))
        self._lines.append(lines)
        if self._counted < WORD_SAMPLE:
            texts = table["text"].to_pylist()
            self._words += sum(len(text.split()) for text in texts)
            self._counted += len(texts)
        if writer:
            self._pending.append(table)
            self._flush(writer)

    def _flush(self, writer: DatasetWriter, last: bool = False) -> None:
        """Write whole row groups, and at the end the rest."""
        count = sum(len(table) for table in self._pending)
        whole = count if last else count - count % ROW_GROUP
        if whole:
            table = pa.concat_tables(self._pending).combine_chunks()
            ready = table.slice(0, whole)
            writer.passages(ready["id"], ready["title"], ready["text"])
            self._pending = [table.slice(whole)]
