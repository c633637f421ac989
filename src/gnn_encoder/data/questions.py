"""Queries and labels: joined to each other and to the corpus, checked, given their splits."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import DatasetWriter
from gnn_encoder.artifacts.dataset import ROW_GROUP, SPLITS
from gnn_encoder.data.rows import QueryRows, Source, blank, duplicates, encodable
from gnn_encoder.data.splits import NONE, TRAIN, complete, drawn, highest, leaked
from gnn_encoder.data.twins import twin_groups
from gnn_encoder.data.validation import FEWEST_TRAINING, Kind, Problems
from gnn_encoder.settings import Ingest

QUERIES = pa.schema(
    [
        ("id", pa.string()), ("text", pa.string()), ("answers", pa.list_(pa.string())),
        ("split", pa.int8()), ("file", pa.string()), ("line", pa.int32()),
    ]
)  # fmt: skip
LABELS = pa.schema(
    [
        ("query_id", pa.string()), ("passage_id", pa.string()), ("relevance", pa.int32()),
        ("split", pa.int8()), ("file", pa.string()), ("line", pa.int32()),
    ]
)  # fmt: skip


class Questions:
    """The queries of all splits and their labels, as they will be written.

    queries   a table of `QUERIES`, `split` being final
    labels    a table of `LABELS`
    query, passage   int64 [labels]: rows in `queries` and in the corpus
    groups    int [queries]: as `Dataset.groups`
    train_before_draw   training queries there were before some were drawn
    """

    def __init__(self, queries: pa.Table, labels: pa.Table, query: np.ndarray, passage: np.ndarray) -> None:
        self.queries, self.labels, self.query, self.passage = queries, labels, query, passage
        self.groups = np.empty(0, np.int64)
        self.remarks: list[str] = []
        self.train_before_draw = 0

    @classmethod
    def read(cls, source: Source, passage_ids: pa.ChunkedArray, settings: Ingest, problems: Problems) -> "Questions":
        """Read, check and join them.

        What cannot be used is counted in `problems` and left out. Left out with no more than a remark:
        queries of no split, repeated labels, training queries in the words of a dev or test query.

        Training queries are drawn at the very end: missing splits are set apart from all of them, so that dev and
        test are the same with every draw and figures of two draws compare, and no query that is left out anyway
        takes a place.
        """
        queries, labels = _tables(source, problems)
        queries = _usable(queries, problems)
        query = pc.index_in(labels["query_id"], value_set=queries["id"].combine_chunks())
        passage = pc.index_in(labels["passage_id"].cast(pa.large_string()), value_set=passage_ids.combine_chunks())
        # Without any query or passage a file is missing or empty, and every label would be reported.
        known = np.ones(len(labels), dtype=bool)
        for rows, kind, name, there in (
            (query, Kind.UNKNOWN_QUERY, "query_id", len(queries)),
            (passage, Kind.UNKNOWN_PASSAGE, "passage_id", len(passage_ids)),
        ):
            unknown = rows.is_null().to_numpy()
            known &= ~unknown
            if there:
                _count(problems, kind, labels, unknown, name)
        found = cls(queries, labels, _numbers(query.fill_null(0)), _numbers(passage.fill_null(0)))
        found._keep_labels(known)
        found._settle_splits(settings.dev_fraction, problems)
        found._draw_training(settings.max_train_queries, settings.seed)
        found._find_twins(settings.twin_similarity)
        train = found.answered & (_numbers(found.queries["split"]) == TRAIN)
        if train.sum() < FEWEST_TRAINING and not problems.count(Kind.MISSING_FILE):
            problems.add(Kind.NO_TRAINING, source.name)
        return found

    @property
    def positive(self) -> np.ndarray:
        """bool [labels]: relevance of at least 1."""
        return _numbers(self.labels["relevance"]) >= 1

    @property
    def answered(self) -> np.ndarray:
        """bool [queries]: those with a label of at least 1."""
        found = np.zeros(len(self.queries), dtype=bool)
        found[self.query[self.positive]] = True
        return found

    def counts(self, passages: int) -> dict[str, Any]:
        """The fields of a `DataReport` that speak of queries and labels, of a corpus of `passages`."""
        split, answered = _numbers(self.queries["split"]), self.answered
        of_label = split[self.query]
        words = pc.list_value_length(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(self.queries["text"])))
        return {
            "queries": {name: int((split == code).sum()) for code, name in enumerate(SPLITS)},
            "labels": {name: int((of_label == code).sum()) for code, name in enumerate(SPLITS)},
            "without_positive": {name: int((~answered & (split == code)).sum()) for code, name in enumerate(SPLITS)},
            "train_before_draw": self.train_before_draw,
            "isolated_passages": passages - len(np.unique(self.passage[self.positive])),
            "query_words": float(pc.mean(words).as_py() or 0.0),
        }

    def write(self, writer: DatasetWriter) -> None:
        """Write both tables."""
        names = np.array(SPLITS)
        for start in range(0, len(self.queries), ROW_GROUP):
            part = self.queries.slice(start, ROW_GROUP)
            splits = names[_numbers(part["split"])].tolist()
            ids, texts, answers = (part[column].to_pylist() for column in ("id", "text", "answers"))
            writer.queries(ids, texts, splits, answers, self.groups[start : start + ROW_GROUP].tolist())
        for start in range(0, len(self.labels), ROW_GROUP):
            part, rows = self.labels.slice(start, ROW_GROUP), slice(start, start + ROW_GROUP)
            queries, passages, relevance = (part[c].to_pylist() for c in ("query_id", "passage_id", "relevance"))
            writer.qrels(queries, passages, relevance, self.query[rows].tolist(), self.passage[rows].tolist())

    def _settle_splits(self, dev_fraction: float, problems: Problems) -> None:
        """Give every query its split, and leave out queries and labels that have no place."""
        own, of_label = _numbers(self.queries["split"]), _numbers(self.labels["split"])
        split = highest(own, self.query, of_label)
        stray = of_label != split[self.query]
        first_stray = np.zeros(len(stray), dtype=bool)
        first_stray[np.flatnonzero(stray)[np.unique(self.query[stray], return_index=True)[1]]] = True
        _count(problems, Kind.SHARED_QUERY, self.labels, first_stray, "query_id")
        self._keep_labels(~stray)
        pairs = self.query << 32 | self.passage
        repeated = np.ones(len(pairs), dtype=bool)
        repeated[np.unique(pairs, return_index=True)[1]] = False
        self._remark(repeated, "labels repeat an earlier one of the same query and passage: the first counts")
        self._keep_labels(~repeated)
        self._remark(split == NONE, "queries stand in no qrels and were left out")
        split = self._keep_queries(split != NONE, split)
        split, remarks = complete(split, self.queries["text"], dev_fraction)
        self.remarks += remarks
        copies = leaked(self.queries["text"], split)
        self._remark(copies, "queries have the words of one in a later split (train, dev, test) and were left out")
        split = self._keep_queries(~copies, split)
        self.queries = self.queries.set_column(QUERIES.get_field_index("split"), "split", pa.array(split))

    def _draw_training(self, most: int, seed: int) -> None:
        """Leave out training queries above `most`, with their labels."""
        split = _numbers(self.queries["split"])
        self.train_before_draw = int((split == TRAIN).sum())
        self._keep_queries(drawn(split, self.queries["text"], self.answered, most, seed), split)

    def _find_twins(self, similarity: float) -> None:
        """Group the training queries that ask the same."""
        rows = np.flatnonzero(_numbers(self.queries["split"]) == TRAIN)
        self.groups = np.arange(len(self.queries))
        self.groups[rows] = rows[twin_groups(self.queries["text"].take(pa.array(rows)).to_pylist(), similarity)]
        twins = np.bincount(self.groups, minlength=1)[self.groups] > 1
        self._remark(twins, "training queries ask the same as another: they share their positives")

    def _keep_labels(self, keep: np.ndarray) -> None:
        if not keep.all():
            self.labels = self.labels.filter(pa.array(keep))
            self.query, self.passage = self.query[keep], self.passage[keep]

    def _keep_queries(self, keep: np.ndarray, split: np.ndarray) -> np.ndarray:
        """Leave out queries, with their labels; the splits of those kept."""
        self._keep_labels(keep[self.query])
        self.queries = self.queries.filter(pa.array(keep))
        self.query = (np.cumsum(keep) - 1)[self.query]
        kept: np.ndarray = split[keep]
        return kept

    def _remark(self, rows: np.ndarray, what: str) -> None:
        if rows.any():
            self.remarks.append(f"{int(rows.sum()):,} {what}")


def _tables(source: Source, problems: Problems) -> tuple[pa.Table, pa.Table]:
    """All queries and labels that can be stored."""
    queries, labels = [QUERIES.empty_table()], [LABELS.empty_table()]
    for rows in source.questions(problems):
        texts = [rows.ids, rows.texts] if isinstance(rows, QueryRows) else [rows.query_ids, rows.passage_ids]
        third: list[Any] = rows.answers if isinstance(rows, QueryRows) else rows.relevance
        schema, parts = (QUERIES, queries) if isinstance(rows, QueryRows) else (LABELS, labels)
        answers = [["".join(given) for given in rows.answers]] if isinstance(rows, QueryRows) else []
        kept = encodable([*texts, *answers], rows.file, rows.lines, problems)
        if kept is not None:
            texts, third = [[column[i] for i in kept] for column in texts], [third[i] for i in kept]
        lines = np.asarray(rows.lines, dtype=np.int32)
        split = SPLITS.index(rows.split) if rows.split else NONE
        count = len(third)
        columns = [
            *texts,
            third,
            np.full(count, split, dtype=np.int8),
            pa.repeat(rows.file, count),
            lines if kept is None else lines[kept],
        ]
        parts.append(pa.table([pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)], schema=schema))
    return pa.concat_tables(queries).combine_chunks(), pa.concat_tables(labels).combine_chunks()


def _usable(queries: pa.Table, problems: Problems) -> pa.Table:
    """Queries that have a text and are the first of their id."""
    empty = blank(queries["text"])
    repeated = duplicates(queries["id"])
    _count(problems, Kind.EMPTY_QUERY, queries, empty, "id")
    _count(problems, Kind.DUPLICATE_QUERY, queries, repeated, "id")
    return queries.filter(pa.array(~(empty | repeated)))


def _count(problems: Problems, kind: Kind, table: pa.Table, rows: np.ndarray, shown: str) -> None:
    """Count the rows as problems, in the order of the table."""
    for row in table.filter(pa.array(rows)).select([shown, "file", "line"]).to_pylist():
        problems.add(kind, row["file"], row["line"], repr(row[shown]))


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """An Arrow column as NumPy: splits stay int8, rows become int64."""
    array: np.ndarray = column.to_numpy()
    return array if array.dtype == np.int8 else array.astype(np.int64)
