"""Turns a source into the canonical dataset in one reading, and counts every problem.

Passages are streamed to Parquet, one row group at a time. Memory also holds each passage's id as Arrow text and line
number (some 20 bytes per passage) and, for a moment, Arrow's hash table of the ids (some 60 bytes per passage): about
0.7 GB for MS MARCO's 8.8 million passages. The hash table finds duplicates and joins labels to rows exactly. Queries
and labels are held as Arrow columns.
"""

from collections.abc import Callable
from itertools import compress

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import DatasetWriter, Draft
from gnn_encoder.artifacts.dataset import ROW_GROUP
from gnn_encoder.data.pool import Pool
from gnn_encoder.data.questions import Questions
from gnn_encoder.data.rows import PassageRows, Source, blank, duplicates, storable
from gnn_encoder.data.validation import DataReport, Kind, Problems, refusal
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest

WORD_SAMPLE = 20_000
"""The mean number of words is measured over so many first passages."""


def canonicalize(
    source: Source, settings: Ingest, *, draft: Draft | None = None, advance: Callable[[int], None] | None = None
) -> DataReport:
    """Reads a whole source and writes the dataset into a draft; without a draft, only makes the report.

    With a draft, problems raise a UserError, unless `settings.on_bad_rows` is `drop` and leaving rows out is enough.
    `advance` is called with each part of `source.work` that was done.
    """
    drop = settings.on_bad_rows == "drop"
    problems = Problems()
    writer = DatasetWriter(draft) if draft else None
    try:
        corpus = Corpus(source, problems, writer, advance)
        repeated = corpus.find_duplicates()
        if repeated.any() and (drop or not draft):
            # The rows to leave out are known only now, so the source is read again. The first file is overwritten.
            if draft and writer:
                writer.close()
                writer = DatasetWriter(draft)
            corpus = Corpus(source, Problems(), writer, skip=repeated)
        if not len(corpus.ids) and not problems.count(Kind.MISSING_FILE):
            problems.add(Kind.EMPTY_CORPUS, corpus.file or source.name)
        questions = Questions(source, corpus.ids, settings, problems)
        pool = Pool(source, questions, corpus.ids, problems)
        report = DataReport(
            source=source.name,
            format=source.format,
            passages=len(corpus.ids),
            **questions.counts(len(corpus.ids)),
            passage_words=corpus.mean_words,
            problems=problems.all(),
            remarks=[*source.remarks, *questions.remarks],
            facts=source.facts | pool.facts,
        )
        if draft and report.problems and (report.fatal or not drop):
            raise UserError(refusal(source.name, report.problems))
        if writer:
            questions.write(writer)
            pool.write(writer)
    finally:
        if writer:
            writer.close()
    return report


class Corpus:
    """Reads all passages of a source, sends kept passages to the writer, if there is one, and holds their ids.

    `skip`, bool [rows that are not empty], marks rows to leave out.
    """

    def __init__(
        self,
        source: Source,
        problems: Problems,
        writer: DatasetWriter | None,
        advance: Callable[[int], None] | None = None,
        skip: np.ndarray | None = None,
    ) -> None:
        self.file = ""
        self._problems, self._writer, self._skip = problems, writer, skip
        self._ids: list[pa.Array] = []
        self._lines: list[np.ndarray] = []
        self._pending: list[pa.Table] = []
        self._rows = self._words = self._counted = 0
        for rows in source.passages(problems):
            self.file = self.file or rows.file
            self._add(rows)
            if advance:
                advance(rows.work)
        self._flush(last=True)
        self.ids = pa.chunked_array(self._ids, pa.large_string())

    @property
    def mean_words(self) -> float:
        """Mean number of words in a passage's text."""
        return self._words / max(self._counted, 1)

    def find_duplicates(self) -> np.ndarray:
        """bool [rows]: passages with the id of an earlier passage; each counts as a problem."""
        repeated = duplicates(self.ids.combine_chunks())
        lines = np.concatenate(self._lines) if repeated.any() else np.empty(0)
        for row in np.flatnonzero(repeated):
            self._problems.add(Kind.DUPLICATE_PASSAGE, self.file, int(lines[row]), repr(self.ids[int(row)].as_py()))
        return repeated

    def _add(self, rows: PassageRows) -> None:
        columns, lines = [rows.ids, rows.titles, rows.texts], np.asarray(rows.lines, dtype=np.uint32)
        if isinstance(rows.ids, list):
            located = zip(*columns, rows.lines, strict=True)
            stored = [storable(texts, rows.file, line, self._problems) for *texts, line in located]
            columns, lines = [list(compress(column, stored)) for column in columns], lines[stored]
        table = pa.table([pa.array(column, pa.string()) for column in columns], names=["id", "title", "text"])
        keep = ~blank(table["text"])
        for row in np.flatnonzero(~keep):
            self._problems.add(Kind.EMPTY_PASSAGE, rows.file, int(lines[row]), repr(table["id"][int(row)].as_py()))
        first, self._rows = self._rows, self._rows + int(keep.sum())
        if self._skip is not None:
            keep[keep] = ~self._skip[first : self._rows]
        if not keep.all():
            table, lines = table.filter(pa.array(keep)), lines[keep]
        self._ids.append(table["id"].combine_chunks().cast(pa.large_string()))
        self._lines.append(lines)
        if self._counted < WORD_SAMPLE:
            self._words += sum(len(text.split()) for text in table["text"].to_pylist())
            self._counted += len(table)
        if self._writer:
            self._pending.append(table)
            self._flush()

    def _flush(self, last: bool = False) -> None:
        """Writes whole row groups; `last`: also the remaining rows."""
        count = sum(len(table) for table in self._pending)
        whole = count if last else count - count % ROW_GROUP
        if self._writer and whole:
            table = pa.concat_tables(self._pending).combine_chunks()
            self._writer.passages(*table.slice(0, whole).columns)
            self._pending = [table.slice(whole)]
