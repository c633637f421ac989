"""The rows of a log of searches.

The log is CSV with a header line (commas, semicolons or tabs) or JSON lines, plain or .gz. A row has the text of a
query and the id of a passage; and a count, or clicks and views (how often the passage was shown for the query), or
neither, and is then one click. Optional: the position at which it was shown (1: first), and a date or time in ISO 8601.
Rows of one query (texts that are equal when `folded`) and passage add up.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gnn_encoder.artifacts.texts import folded, is_blank
from gnn_encoder.data.delimited import LABEL_COLUMNS, Header, quoted_rows
from gnn_encoder.data.lines import json_objects, read_lines
from gnn_encoder.data.validation import Kind, Problems
from gnn_encoder.errors import UserError

FIELDS = {
    "query": {"query", "question", "search", "search_term", "query_text", "q"},
    "passage": LABEL_COLUMNS["passage"] | {"passage"},
    "count": {"count", "uses", "n"},
    "clicks": {"clicks", "click", "clicked"},
    "views": {"views", "impressions", "shown"},
    "position": {"position", "rank"},
    "time": {"time", "date", "timestamp", "day"},
}
"""What a field holds → its names, with `_` for `-` and in lower case."""
DELIMITERS = "\t;,"
MOST = 1e12


@dataclass(frozen=True)
class Clicks:
    """The rows of a log.

    texts     the distinct queries, and `passage_ids` the distinct ids of passages
    query, passage   int64 [r], numbers of the row's query and passage
    clicks    float64 [r]
    views     float64 [r]; None: the log has none
    position  int64 [r], from 1; None: the log has none
    time      float64 [r], seconds; None: the log has none
    line      int64 [r]
    """

    texts: list[str]
    passage_ids: list[str]
    query: np.ndarray
    passage: np.ndarray
    clicks: np.ndarray
    views: np.ndarray | None
    position: np.ndarray | None
    time: np.ndarray | None
    line: np.ndarray

    @classmethod
    def read(cls, path: Path, problems: Problems) -> "Clicks":
        """Reads a log; a bad row is a problem and left out.

        Raises:
            UserError: no column with queries or with passages, or two columns of one meaning.
        """
        suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
        json_lines = bool(suffixes) and suffixes[-1] in (".json", ".jsonl", ".ndjson")
        records = _json_records(path, problems) if json_lines else _csv_records(path, problems)
        forms, queries, passages = dict[str, int](), dict[str, int](), dict[str, int]()
        texts: list[str] = []
        columns = {name: array("d") for name in ("query", "passage", "clicks", "views", "position", "time", "line")}
        present: list[bool] | None = None
        for line, record in records:
            row, wrong = _row(record)
            if row:
                filled = [value is not None for value in (row.views, row.position, row.time)]
                present = present or filled
                wrong = wrong or ("" if filled == present else "not the fields of the first row")
            if wrong or row is None:
                problems.add(Kind.BAD_ROW, path.name, line, wrong)
                continue
            if row.query not in forms:
                key = folded(row.query)
                if key not in queries:
                    texts.append(row.query)
                forms[row.query] = queries.setdefault(key, len(queries))
            numbers = (forms[row.query], passages.setdefault(row.passage, len(passages)), row.clicks)
            for name, value in zip(columns, (*numbers, row.views, row.position, row.time, line), strict=True):
                columns[name].append(0.0 if value is None else value)
        query, passage, clicks, views, position, time, lines = map(np.array, columns.values())
        has_views, has_position, has_time = present or (False, False, False)
        return cls(
            texts,
            list(passages),
            query.astype(np.int64),
            passage.astype(np.int64),
            clicks,
            views if has_views else None,
            position.astype(np.int64) if has_position else None,
            time if has_time else None,
            lines.astype(np.int64),
        )

    def where(self, keep: np.ndarray) -> "Clicks":
        """The rows where a mask [r] is true."""
        columns = {name: column for name, column in vars(self).items() if isinstance(column, np.ndarray)}
        return replace(self, **{name: column[keep] for name, column in columns.items()})


@dataclass(frozen=True)
class _Row:
    query: str
    passage: str
    clicks: float
    views: float | None
    position: float | None
    time: float | None


def _csv_records(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line of each row, and its fields by what they hold."""
    for delimiter in DELIMITERS:
        header = Header.of(path, True, delimiter)
        columns, twice = _columns(header.fields)
        if twice:
            raise UserError(f"{path}: {twice}: leave one of them out, or rename it")
        if {"query", "passage"} <= set(columns):
            break
    else:
        line = delimiter.join(header.fields)[:80]
        raise UserError(
            f"{path}: its first line must name the columns, query and passage among them, and not be {line!r}"
        )
    width = len(header.fields)
    for rows in quoted_rows(path, range(width, width + 1), problems, path.name, header.line, delimiter):
        fields = (rows.columns[header.fields.index(column)].to_pylist() for column in columns.values())
        for line_number, *values in zip(rows.lines, *fields, strict=True):
            yield line_number, dict(zip(columns, values, strict=True))


def _json_records(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the number and the object of each line, by what its fields hold."""
    for number, record in json_objects(read_lines(path, problems), path.name, problems):
        fields, twice = _columns(name for name, value in record.items() if value is not None)
        if twice:
            problems.add(Kind.BAD_ROW, path.name, number, twice)
        else:
            yield number, {field: record[name] for field, name in fields.items()}


def _columns(names: Iterable[str]) -> tuple[dict[str, str], str]:
    """Returns what a field holds → its name, of those that are read; and what is wrong if two hold the same."""
    columns = dict[str, str]()
    for name in names:
        if field := _field(name):
            if field in columns:
                return {}, f"both {columns[field]!r} and {name!r} hold the {field}"
            columns[field] = name
    return columns, ""


@lru_cache
def _field(name: str) -> str:
    """What a field of some name holds; empty: nothing that is read."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    return next((field for field, known in FIELDS.items() if plain in known), "")


def _row(record: dict[str, Any]) -> tuple[_Row | None, str]:
    query, passage = record.get("query"), record.get("passage")
    passage = str(passage) if type(passage) is int else passage
    if not isinstance(query, str) or is_blank(query):
        return None, '"query" is missing or not a text'
    if not isinstance(passage, str) or not passage:
        return None, '"passage" is missing or not an id'
    if any("\ud800" <= character <= "\udfff" for character in query + passage):
        return None, "half a surrogate pair"
    numbers: dict[str, float | None] = dict.fromkeys(("count", "clicks", "views", "position"))
    for name in numbers:
        if record.get(name) not in (None, ""):
            number = _number(record[name])
            if number is None or (name == "position" and (number < 1 or number % 1)):
                whole = "whole number from 1" if name == "position" else "number from 0"
                return None, f"{name} {record[name]!r} is not a {whole}"
            numbers[name] = number
    count, clicks, views, position = numbers.values()
    if count is not None and clicks is not None:
        return None, "both a count and clicks"
    if views is not None and clicks is None:
        return None, "views without clicks"
    clicked = next((number for number in (clicks, count) if number is not None), 1.0)
    if views is not None and clicked > views:
        return None, f"{clicked:g} clicks of {views:g} views"
    time = None
    if record.get("time") not in (None, ""):
        try:
            moment = datetime.fromisoformat(str(record["time"]).strip())
            time = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None, f"time {record['time']!r} is not a date or time in ISO 8601"
    return _Row(query, passage, clicked, views, position, time), ""


def _number(value: Any) -> float | None:
    """Returns a number from 0 to `MOST`; None for what is none."""
    try:
        number = float(value) if isinstance(value, str | int | float) else -1.0
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number <= MOST else None
