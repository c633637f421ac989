"""TREC's run and qrels files, plain or gzip, in and out.

    run    query Q0 passage rank score tag
    qrels  query 0 passage relevance

Fields stand apart by white space. Lines are read one by one: what stays in memory is 16 bytes a hit, and each
text id once. Of a run only the scores count, as in trec_eval, which reads no rank either.
"""

import gzip
import io
import re
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Qrels, Run, pair_keys
from gnn_encoder.artifacts.dataset import HIGHEST_RELEVANCE, relevance_of
from gnn_encoder.errors import UserError

RUN_FORM, QRELS_FORM = "query Q0 passage rank score tag", "query 0 passage relevance"
LONGEST_LINE = 1 << 20
"""Bytes; a longer one is no line of such a file, and may take all memory."""
LINES = 100_000
"""Lines written at a time."""


class Ids:
    """Text ids, numbered in the order in which they are first seen."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, name: bytes) -> int | None:
        """The number of an id, None of one never seen."""
        return self._rows.get(name)

    def row(self, name: bytes) -> int:
        """The number of an id, a new one if it is new.

        Raises:
            UnicodeDecodeError: a new id that is not UTF-8.
        """
        row = self._rows.get(name)
        if row is None:
            name.decode("utf-8")
            row = self._rows[name] = len(self._rows)
        return row

    def column(self) -> pa.ChunkedArray:
        """All of them by number, as an Arrow column."""
        return pa.chunked_array([pa.array([name.decode("utf-8") for name in self._rows], pa.string())])


def read_qrels(path: Path, queries: Ids, passages: Ids) -> Qrels:
    """Labels of a qrels file by the ids' numbers; a label that stands there twice counts once.

    Raises:
        UserError: a line that is not so, or a passage with two labels for one query; names file and line.
    """
    columns, lines = (array("i"), array("i"), array("i")), array("q")
    for number, fields in _rows(path, 4, QRELS_FORM):
        query, _, passage, relevance = fields
        label = relevance_of(relevance.decode("ascii", "replace"))
        if label is None:
            bound = f"an integer from -{HIGHEST_RELEVANCE:,} to {HIGHEST_RELEVANCE:,}"
            raise UserError(f"{path} line {number}: relevance {_shown(relevance)} is not {bound}")
        rows = _numbered(path, number, queries, query, passages, passage)
        for column, value in zip(columns, (*rows, label), strict=True):
            column.append(value)
        lines.append(number)
    if not lines:
        raise UserError(f"{path} holds no label: a line of it is {QRELS_FORM}")
    qrels = Qrels(*(np.array(column, dtype=np.int32) for column in columns))
    first, again = _repeated(qrels.query, qrels.passage)
    for one, other in zip(first, again, strict=True):
        if qrels.relevance[one] != qrels.relevance[other]:
            earlier = f"in line {lines[one]} for the same passage"
            raise UserError(f"{path} line {lines[other]}: another relevance than {earlier}")
    keep = np.ones(len(lines), dtype=bool)
    keep[again] = False
    return Qrels(qrels.query[keep], qrels.passage[keep], qrels.relevance[keep])


def read_run(path: Path, queries: Ids, passages: Ids) -> Run:
    """The hits of a run file for the queries that have a number already; those of others are left out.

    Hits are ranked by score, equal scores in the order of the file (`measures` orders those as trec_eval does).

    Raises:
        UserError: a line that is not so, or a passage twice for one query; names file and line.
    """
    query_rows, passage_rows, scores, lines = array("i"), array("i"), array("f"), array("q")
    for number, fields in _rows(path, 6, RUN_FORM):
        try:
            score = float(fields[4])
        except ValueError:
            score = float("nan")
        if score != score or b"_" in fields[4]:
            raise UserError(f"{path} line {number}: score {_shown(fields[4])} is not a number")
        if queries.find(fields[0]) is not None:
            rows = _numbered(path, number, queries, fields[0], passages, fields[2])
            for column, value in zip((query_rows, passage_rows), rows, strict=True):
                column.append(value)
            scores.append(score)
            lines.append(number)
    query, passage = np.array(query_rows, dtype=np.int32), np.array(passage_rows, dtype=np.int32)
    for one, other in zip(*_repeated(query, passage), strict=True):
        raise UserError(f"{path} line {lines[other]}: the same query and passage as in line {lines[one]}")
    fp32 = np.array(scores, dtype=np.float32)
    order = np.lexsort((-fp32, query))
    query = query[order]
    starts = np.flatnonzero(np.diff(query, prepend=-1))
    sizes = np.diff(np.append(starts, len(query)))
    rank = (np.arange(1, len(query) + 1) - np.repeat(starts, sizes)).astype(np.int32)
    return Run(query, passage[order], rank, fp32[order])


def write_run(path: Path, run: Run, query_ids: pa.ChunkedArray, passage_ids: pa.ChunkedArray, tag: str) -> None:
    """Write a run, gzip; scores to the last bit. The same run gives the same bytes.

    White space in an id or the tag, which would end the field, is written as `%20` and the like.
    """
    with _writing(path) as file:
        for start in range(0, len(run.query), LINES):
            part = slice(start, start + LINES)
            columns = [
                _ids(query_ids, run.query[part]),
                pa.scalar("Q0"),
                _ids(passage_ids, run.passage[part]),
                pa.array(run.rank[part]).cast(pa.string()),
                # Nine digits tell every fp32 apart.
                pa.array([f"{score:.9g}" for score in run.score[part].tolist()], pa.string()),
                pa.scalar(_quoted(tag)),
            ]
            _write(file, columns)


def write_qrels(path: Path, qrels: Qrels, query_ids: pa.ChunkedArray, passage_ids: pa.ChunkedArray) -> None:
    """Write labels, gzip, with ids as in `write_run`."""
    with _writing(path) as file:
        for start in range(0, len(qrels.query), LINES):
            part = slice(start, start + LINES)
            relevance = pa.array(qrels.relevance[part]).cast(pa.string())
            queries, passages = _ids(query_ids, qrels.query[part]), _ids(passage_ids, qrels.passage[part])
            _write(file, [queries, pa.scalar("0"), passages, relevance])


def _rows(path: Path, count: int, form: str) -> Iterator[tuple[int, list[bytes]]]:
    """Each line's number, from 1, and its fields; blank lines are left out."""
    try:
        with path.open("rb") as raw:
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            file = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw))) if zipped else raw
            for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), start=1):
                # A file put together from several parts has a byte order mark at each.
                fields = line.removeprefix(b"\xef\xbb\xbf").split()
                if len(line) == LONGEST_LINE:
                    raise UserError(f"{path} line {number} is longer than {LONGEST_LINE:,} bytes: a line is {form}")
                if len(fields) == count:
                    yield number, fields
                elif fields:
                    raise UserError(f"{path} line {number}: {len(fields)} fields where there must be {count}: {form}")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}; copy it again") from None


def _numbered(path: Path, line: int, queries: Ids, query: bytes, passages: Ids, passage: bytes) -> tuple[int, int]:
    try:
        return queries.row(query), passages.row(passage)
    except UnicodeDecodeError:
        raise UserError(f"{path} line {line}: not UTF-8") from None


def _repeated(query: np.ndarray, passage: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the pairs that stood before, ascending, each after the row where it stood first."""
    _, first, inverse = np.unique(pair_keys(query, passage), return_index=True, return_inverse=True)
    first = first[inverse]
    again = np.flatnonzero(first != np.arange(len(first)))
    return first[again], again


def _shown(field: bytes) -> str:
    return repr(field[:40].decode("utf-8", errors="replace"))


@contextmanager
def _writing(path: Path) -> Iterator[gzip.GzipFile]:
    # Neither name nor time in the header: the same content gives the same bytes.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as file:
        yield file


def _write(file: gzip.GzipFile, columns: list[pa.Array | pa.Scalar]) -> None:
    lines = pc.binary_join_element_wise(*columns, " ")
    file.write("".join(f"{line}\n" for line in lines.to_pylist()).encode())


def _ids(ids: pa.ChunkedArray, rows: np.ndarray) -> pa.Array:
    """Text ids of some rows without white space."""
    distinct, inverse = np.unique(rows, return_inverse=True)
    names = [_quoted(name) for name in ids.take(pa.array(distinct)).to_pylist()]
    return pa.array(names, pa.string()).take(pa.array(inverse))


def _quoted(name: str) -> str:
    return re.sub(r"[\s\x1c-\x1f]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)
