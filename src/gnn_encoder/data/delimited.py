"""Tab-separated files: passages, queries and labels of MS MARCO, DPR and BEIR."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from gnn_encoder.artifacts.dataset import relevance_of
from gnn_encoder.data.columnar import tab_separated, unquoted
from gnn_encoder.data.lines import Block, read_blocks, read_raw
from gnn_encoder.data.rows import LabelRows, PassageRows, QueryRows
from gnn_encoder.data.validation import Kind, Problems

HEADERS = {"id", "_id", "pid", "docid", "doc_id", "passage_id"}
"""What a header line calls its first column; no passage has such an id."""


@dataclass
class Fields:
    """Rows of a block that have the right number of fields."""

    rows: list[list[str]]
    numbers: list[int]


def read_fields(path: Path, columns: range, problems: Problems, name: str = "") -> Iterator[Fields]:
    """Rows with a number of columns in `columns`; others are counted."""
    name = name or path.name
    for block in read_blocks(path, problems, name):
        yield split_fields(block, columns, problems, name)


def split_fields(block: Block, columns: range, problems: Problems, name: str) -> Fields:
    """The rows of one block."""
    rows = [line.split("\t") for line in block.lines]
    numbers = list(block.numbers)
    bad = [i for i, row in enumerate(rows) if len(row) not in columns]
    for i in bad:
        wanted = f"{columns.start}" if len(columns) == 1 else f"{columns.start} to {columns.stop - 1}"
        problems.add(Kind.BAD_ROW, name, numbers[i], f"{len(rows[i])} columns instead of {wanted}")
    if bad:
        dropped = set(bad)
        rows = [row for i, row in enumerate(rows) if i not in dropped]
        numbers = [number for i, number in enumerate(numbers) if i not in dropped]
    return Fields(rows, numbers)


def read_passages(path: Path, problems: Problems, *, dpr: bool = False) -> Iterator[PassageRows]:
    """Rows of id, text and perhaps title; `dpr`: with a header line, and texts quoted as in CSV."""
    columns = range(2, 4)
    for raw in read_raw(path, problems):
        numbers: Sequence[int] = raw.numbers
        found = tab_separated(raw, columns)
        if found is None:
            fields = split_fields(raw.decode(problems), columns, problems, path.name)
            rows, numbers = [(*row, "")[:3] for row in fields.rows], fields.numbers
            found = [pa.array(column, pa.string()) for column in ([row[i] for row in rows] for i in range(3))]
        ids, texts = found[:2]
        titles = found[2] if len(found) > 2 else pa.repeat("", len(ids))
        if dpr:
            titles, texts = unquoted(titles), unquoted(texts)
        if len(ids) and numbers[0] == 1 and ids[0].as_py().lower() in HEADERS:
            if not dpr:
                problems.add(Kind.BAD_ROW, path.name, 1, "a header line, which MS MARCO's files do not have")
            ids, titles, texts, numbers = ids[1:], titles[1:], texts[1:], numbers[1:]
        yield PassageRows(ids, titles, texts, path.name, numbers, raw.consumed)


def read_queries(path: Path, problems: Problems) -> Iterator[QueryRows]:
    """Rows of id and text."""
    for fields in read_fields(path, range(2, 3), problems):
        rows = fields.rows
        yield QueryRows([r[0] for r in rows], [r[1] for r in rows], [[] for _ in rows], None, path.name, fields.numbers)


def read_labels(path: Path, split: str, problems: Problems, *, trec: bool, name: str = "") -> Iterator[LabelRows]:
    """Labels: `query, passage, relevance` with a header line or, `trec`, `query, 0, passage, relevance` without."""
    name = name or path.name
    columns, passage = (4, 2) if trec else (3, 1)
    for fields in read_fields(path, range(columns, columns + 1), problems, name):
        out = LabelRows([], [], [], split, name, [])
        lines: list[int] = []
        for row, number in zip(fields.rows, fields.numbers, strict=True):
            relevance = relevance_of(row[-1].strip())
            if relevance is None:
                if not (number == 1 and not trec and row[0] == "query-id"):
                    problems.add(Kind.BAD_RELEVANCE, name, number, repr(row[-1]))
                continue
            out.query_ids.append(row[0])
            out.passage_ids.append(row[passage])
            out.relevance.append(relevance)
            lines.append(number)
        out.lines = lines
        yield out


def unquote(field: str) -> str:
    """A CSV field without its quotes."""
    if len(field) >= 2 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"')
    return field
