"""Tab-separated files: passages, queries and labels of MS MARCO, DPR and BEIR."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gnn_encoder.data.lines import Block, read_blocks
from gnn_encoder.data.rows import LabelRows, PassageRows, QueryRows
from gnn_encoder.data.validation import Kind, Problems

INT32 = range(-(2**31), 2**31)


@dataclass
class Fields:
    """Rows of a block that have the right number of fields."""

    rows: list[list[str]]
    numbers: list[int]
    block: Block


def read_fields(path: Path, columns: range, problems: Problems, name: str = "") -> Iterator[Fields]:
    """Rows with a number of columns in `columns`; others are counted."""
    name = name or path.name
    for block in read_blocks(path, problems, name):
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
        yield Fields(rows, numbers, block)


def read_passages(path: Path, problems: Problems, *, quoted: bool = False, header: str = "") -> Iterator[PassageRows]:
    """Rows of id, text and perhaps title; `quoted`: texts are quoted as in CSV; `header`: first field of a header."""
    for fields in read_fields(path, range(2, 4), problems):
        rows, numbers = fields.rows, fields.numbers
        if header and rows and numbers[0] == 1 and rows[0][0] == header:
            rows, numbers = rows[1:], numbers[1:]
        titles = [row[2] if len(row) > 2 else "" for row in rows]
        texts = [row[1] for row in rows]
        if quoted:
            titles, texts = [unquote(t) for t in titles], [unquote(t) for t in texts]
        yield PassageRows([row[0] for row in rows], titles, texts, path.name, numbers, fields.block.consumed)


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
            try:
                relevance = int(row[-1])
                if relevance not in INT32:
                    raise ValueError
            except ValueError:
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
