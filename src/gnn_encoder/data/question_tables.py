"""Queries and labels as tables: read from a source, and a problem for each row that cannot be used."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.passages import BATCH
from gnn_encoder.artifacts.texts import blank
from gnn_encoder.data.rows import Label, Query, duplicates, storable
from gnn_encoder.data.splits import NONE
from gnn_encoder.data.validation import Kind, Problems

TEXT, NUMBER, SPLIT = pa.string(), pa.int32(), pa.int8()
ORIGIN = {"split": SPLIT, "file": TEXT, "line": NUMBER}
QUERIES = pa.schema({"id": TEXT, "text": TEXT, "answers": pa.list_(TEXT), **ORIGIN, "value": TEXT})
ADDED = "added labels"
"""File of the rows that `ingest.labels` added."""
LABELS = pa.schema({"query_id": TEXT, "passage_id": TEXT, "relevance": NUMBER, **ORIGIN})


def added_rows(table: pa.Table) -> np.ndarray:
    """bool [n]: the rows that `ingest.labels` added."""
    return np.asarray(pc.equal(table["file"], ADDED).to_numpy(), dtype=bool)


def with_rows(table: pa.Table, rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """The table with more rows, which are in the order of the schema."""
    new_rows = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    return pa.concat_tables([table, new_rows]).combine_chunks()


def read_tables(questions: Iterator[Query | Label], problems: Problems) -> list[pa.Table]:
    """All queries and all labels that can be stored."""
    schemas: dict[Any, pa.Schema] = {Query: QUERIES, Label: LABELS}
    parts = {kind: [schema.empty_table()] for kind, schema in schemas.items()}
    stream = (row for row in questions if _storable(row, problems))
    while batch := list(islice(stream, BATCH)):
        for kind, schema in schemas.items():
            rows = [row for row in batch if isinstance(row, kind)]
            if rows:
                columns = dict(zip(kind._fields, zip(*rows, strict=True), strict=True))
                columns["split"] = [SPLITS.index(split) if split else NONE for split in columns["split"]]
                parts[kind].append(pa.table(columns, schema=schema))
    return [pa.concat_tables(tables).combine_chunks() for tables in parts.values()]


def _storable(row: Query | Label, problems: Problems) -> bool:
    texts = (row.id, row.text, row.value, *row.answers) if isinstance(row, Query) else (row.query_id, row.passage_id)
    return storable(texts, row.file, row.line, problems)


def usable_queries(queries: pa.Table, problems: Problems) -> pa.Table:
    """The queries that have a text, of each id the first of them."""
    empty = blank(queries["text"])
    add_problems(problems, Kind.EMPTY_QUERY, queries.filter(pa.array(empty)), "id")
    queries = queries.filter(pa.array(~empty))
    repeated = duplicates(queries["id"].combine_chunks())
    add_problems(problems, Kind.DUPLICATE_QUERY, queries.filter(pa.array(repeated)), "id")
    return queries.filter(pa.array(~repeated))


def add_problems(problems: Problems, kind: Kind, rows: pa.Table, shown: str) -> None:
    """Each of the rows is a problem; its column `shown` says which."""
    for row in rows.select([shown, "file", "line"]).to_pylist():
        problems.add(kind, row["file"], row["line"], repr(row[shown]))
