"""The passages of a source: streamed to the dataset, checked, and their ids, lines and places held as columns."""

from array import array
from collections.abc import Callable
from itertools import compress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import DatasetWriter, Passages
from gnn_encoder.artifacts.passages import BATCH
from gnn_encoder.artifacts.texts import blank
from gnn_encoder.data.copies import SecondReading, Sums
from gnn_encoder.data.cutting import words_in
from gnn_encoder.data.fields import FieldColumns
from gnn_encoder.data.places import Places
from gnn_encoder.data.rows import PassageRows, Source, duplicates, storable
from gnn_encoder.data.validation import Kind, Problems
from gnn_encoder.errors import printable

WORD_SAMPLE = 20_000
"""The mean number of words is measured over so many first passages."""


class Corpus:
    """Reads all passages of a source, and sends kept passages to the writer, if there is one.

    It holds the ids, lines and places of these passages.

    `skip`, bool [rows that are not empty], marks rows to leave out.
    """

    def __init__(
        self,
        source: Source,
        problems: Problems,
        writer: DatasetWriter | SecondReading | None,
        advance: Callable[[int], None] | None = None,
        skip: np.ndarray | None = None,
    ) -> None:
        self.file = ""
        self._problems, self._writer, self._skip = problems, writer, skip
        self._lines = array("I")
        self._pending: list[pa.Table] = []
        self.places, self.fields = Places(), FieldColumns(source.untyped_fields)
        self._rows = self._words = self._counted = 0
        self._sums_of, self._sums = Sums(), [np.empty(0, np.uint64)]
        self._with_null, self._first_null = 0, ""
        for rows in source.passages(problems):
            self.file = self.file or rows.file
            self._add(rows)
            if advance:
                advance(rows.work)
        self._flush(last=True)
        self.ids = self.places.ids()
        self.sums = np.concatenate(self._sums)
        """uint64 [rows]: of title and text, by `Sums`."""

    @property
    def mean_words(self) -> float:
        """Mean number of words in a passage's text, or in its title if it has no text, by `words_in`."""
        return self._words / max(self._counted, 1)

    @property
    def remarks(self) -> list[str]:
        """What is no problem in a run but may be one elsewhere."""
        if not self._with_null:
            return self.fields.remarks
        return [
            *self.fields.remarks,
            f"{self._with_null:,} passages have the character NUL (U+0000), first {self._first_null}: PostgreSQL "
            "cannot store it, so an export to pgvector leaves it out of texts, and refuses it in an id",
        ]

    def line(self, row: int) -> int:
        """The line of a passage in `file`."""
        return self._lines[row]

    def find_duplicates(self) -> np.ndarray:
        """bool [rows]: passages with the id of an earlier passage; each counts as a problem."""
        repeated = duplicates(self.ids.combine_chunks())
        self._problems.add_rows(
            Kind.DUPLICATE_PASSAGE,
            np.flatnonzero(repeated),
            lambda row: (self.file, self.line(row), repr(self.ids[row].as_py())),
        )
        return repeated

    def _add(self, rows: PassageRows) -> None:
        columns, lines = [rows.ids, rows.titles, rows.texts], np.asarray(rows.lines, dtype=np.uint32)
        places, fields = rows.places, rows.fields
        if isinstance(rows.ids, list):
            located = zip(*columns, rows.lines, strict=True)
            stored = [storable(texts, rows.file, line, self._problems) for *texts, line in located]
            columns, lines = [list(compress(column, stored)) for column in columns], lines[stored]
            stored_rows = pa.array(stored, pa.bool_())
            places = places.filter(stored_rows) if places else None
            fields = {name: column.filter(stored_rows) for name, column in fields.items()}
        table = pa.table([pa.array(column, pa.string()) for column in columns], names=["id", "title", "text"])
        without = {name: blank(table[name]) for name in ("title", "text")}
        for name, rows_without in without.items():  # a text that nobody sees is none, and is not joined to the other
            if (rows_without & pc.not_equal(table[name], "").to_numpy()).any():
                seen = pc.if_else(pa.array(rows_without), "", table[name])
                table = table.set_column(table.column_names.index(name), name, seen)
        keep = ~(without["title"] & without["text"])
        self._problems.add_rows(
            Kind.EMPTY_PASSAGE,
            np.flatnonzero(~keep),
            lambda row: (rows.file, int(lines[row]), repr(table["id"][row].as_py())),
        )
        first, self._rows = self._rows, self._rows + int(keep.sum())
        if self._skip is not None:
            keep[keep] = ~self._skip[first : self._rows]
        if not keep.all():
            table, lines = table.filter(pa.array(keep)), lines[keep]
            places = places.filter(pa.array(keep)) if places else None
            fields = {name: column.filter(pa.array(keep)) for name, column in fields.items()}
        self.fields.add(fields, len(table))
        self._look_for_nulls(table, rows.file, lines)
        self.places.add(table["id"].combine_chunks().cast(pa.large_string()), places)
        self._lines.frombytes(lines.tobytes())
        self._sums.append(self._sums_of.of(table["title"]) + self._sums_of.of(table["text"]))
        if self._counted < WORD_SAMPLE:
            words = Passages(*(column.to_pylist() for column in table.columns)).bare_texts()
            self._words += sum(map(words_in, words))
            self._counted += len(table)
        if self._writer:
            self._pending.append(table)
            self._flush()

    def _look_for_nulls(self, table: pa.Table, file: str, lines: np.ndarray) -> None:
        # Arrow's regular expressions are ten times as fast as its `match_substring`.
        has_null = np.logical_or.reduce([pc.match_substring_regex(c, r"\x00").to_numpy() for c in table.columns])
        self._with_null += int(has_null.sum())
        if not self._first_null and has_null.any():
            row = int(np.argmax(has_null))
            self._first_null = f"{file} line {lines[row]}: {printable(repr(table['id'][row].as_py()))[:80]}"

    def _flush(self, last: bool = False) -> None:
        """Writes whole row groups; `last`: also the remaining rows."""
        count = sum(len(table) for table in self._pending)
        whole = count if last else count - count % BATCH
        if self._writer and whole:
            table = pa.concat_tables(self._pending).combine_chunks()
            self._writer.passages(*table.slice(0, whole).columns)
            self._pending = [table.slice(whole)]
