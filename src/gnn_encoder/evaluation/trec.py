"""Reads and writes TREC run and qrels files, plain or gzip.

    run    query Q0 passage rank score tag
    qrels  query 0 passage relevance

White space separates the fields, so ids with white space are written in another form (`without_space`). Files are read
line by line: memory holds 16 bytes per hit, and each text id once. Ranks in a run are ignored, as in trec_eval; only
the scores count. No library reads with so little memory: `ir_measures` and pytrec_eval keep a Python object for each
hit, and their errors do not name the wrong line.
"""

import gzip
import io
import re
import zlib
from array import array
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Dataset, Qrels, Run, pair_keys
from gnn_encoder.artifacts.dataset import HIGHEST_RELEVANCE, relevance_of
from gnn_encoder.errors import UserError, printable

RUN_FORM, QRELS_FORM = "query Q0 passage rank score tag", "query 0 passage relevance"
LONGEST_LINE = 1 << 20
"""Longest line in bytes. A longer line is not a TREC line, and could fill the memory."""
LINES = 100_000
"""Number of lines written at a time."""
SHOWN = 3
"""Number of unknown ids in an error."""
SPACE = r"[\x00\t-\r\x1c-\x20\x85\pZ\x{FEFF}]"
"""What no id in a file can have, in Arrow's regular expressions (their `\\s` is ASCII's): white space; NUL, where
programs in C end a text; the byte order mark, which readers leave out at the start of a line."""
QUOTED = re.compile(r"[\s\x00\x1c-\x1f\ufeff]|%(?=[0-9A-Fa-f]{2})")
"""The same in Python's, and the `%` of what looks like a code already."""


class Ids(dict[bytes, int]):
    """Text ids → numbers, in the order in which they are first looked up by `ids[name]`.

    A new id that is not UTF-8 raises UnicodeDecodeError.
    """

    def __missing__(self, name: bytes) -> int:
        name.decode("utf-8")
        self[name] = number = len(self)
        return number

    def column(self) -> pa.ChunkedArray:
        """Returns all ids, ordered by number, as an Arrow column."""
        return pa.chunked_array([pa.array([name.decode("utf-8") for name in self], pa.string())])


def read_qrels(path: Path, queries: Ids, passages: Ids) -> Qrels:
    """Returns the labels of a qrels file, with ids as numbers. A repeated label counts once.

    Raises:
        UserError: malformed line, or two labels of one pair; the error names file and line.
    """
    query, passage, relevance, lines = _columns(path, QRELS_FORM, _relevance, queries, passages)
    if not len(lines):
        raise UserError(f"{path} holds no label: write each line as {QRELS_FORM}")
    first, repeats = _repeated(query, passage)
    for one, other in zip(first, repeats, strict=True):
        if relevance[one] != relevance[other]:
            earlier = f"in line {lines[one]} for the same passage"
            raise UserError(f"{path} line {lines[other]}: another relevance than {earlier}")
    return Qrels(*(np.delete(column, repeats) for column in (query, passage, relevance.astype(np.int32))))


def read_run(path: Path, queries: Ids, passages: Ids, *, every: bool = False) -> Run:
    """Returns the hits of a run file for the queries in `queries`; hits of other queries are left out.

    Hits are ranked by score, equal scores in the order of the file (`measures` orders equal scores as trec_eval does).

    Args:
        every: read the hits of all queries, and add the queries to `queries`.

    Raises:
        UserError: malformed line, or a passage twice for one query; the error names file and line.
    """
    query, passage, score, lines = _columns(path, RUN_FORM, _score, queries, passages, only=None if every else queries)
    for one, other in zip(*_repeated(query, passage), strict=True):
        raise UserError(f"{path} line {lines[other]}: the same query and passage as in line {lines[one]}")
    return Run.by_score(query, passage, score)


def lines_of(path: Path) -> Iterator[int]:
    """Yields the numbers, from 1, of a run file's lines that are not blank."""
    return (number for number, _ in _lines(path, RUN_FORM))


def read_run_of(path: Path, data: Dataset) -> Run:
    """Returns all hits of a run file as rows of a dataset.

    Raises:
        UserError: as `read_run`, no hit at all, or an id that the dataset lacks.
    """
    ids = Ids(), Ids()
    run = read_run(path, *ids, every=True)
    if not len(run.query):
        raise UserError(f"{path} holds no hit: write each line as {RUN_FORM}")
    rows, unknown = [], []
    queries, passages = data.queries.column("query_id"), data.passages.ids()
    known = {
        "queries": (without_space(queries), queries.combine_chunks()),
        "passages": (written_ids(data).slice(0, len(passages)).combine_chunks(), passages.combine_chunks()),
    }
    for (kind, (written, as_they_are)), ids_of_kind in zip(known.items(), ids, strict=True):
        names = ids_of_kind.column()
        row = pc.index_in(names, value_set=written)
        if row.null_count:  # other programs may write ids as they are
            row = pc.coalesce(row, pc.index_in(names, value_set=as_they_are))
        if len(missing := names.filter(row.is_null())):
            unknown.append(f"{len(missing):,} of {kind} ({few(missing)})")
        rows.append(row.to_numpy())
    if unknown:
        lacks = f"has ids that are not in the dataset, {' and '.join(unknown)}"
        raise UserError(f"{path} {lacks}: leave their lines out, or rank the queries that ingest kept")
    return Run.by_score(rows[0][run.query], rows[1][run.passage], run.score)


def write_run(path: Path, run: Run, query_ids: pa.ChunkedArray, passage_ids: pa.ChunkedArray, tag: str) -> None:
    """Writes a run as gzip, with exact scores. The same run gives the same bytes.

    White space in an id or in the tag would end the field, so it is written as `%20` and similar codes.
    """
    queries, passages = without_space(query_ids), without_space(passage_ids)

    def columns(part: slice) -> list[pa.Array | pa.Scalar]:
        # Nine digits identify every fp32 number.
        scores = pa.array([f"{score:.9g}" for score in run.score[part].tolist()], pa.string())
        ranks = pa.array(run.rank[part]).cast(pa.string())
        ids = queries.take(pa.array(run.query[part])), passages.take(pa.array(run.passage[part]))
        return [ids[0], pa.scalar("Q0"), ids[1], ranks, scores, pa.scalar(f"{_quoted(tag)}\n")]

    _write(path, len(run.query), columns)


def write_qrels(path: Path, qrels: Qrels, query_ids: pa.ChunkedArray, passage_ids: pa.ChunkedArray) -> None:
    """Writes labels as gzip, with ids as in `write_run`."""
    queries, passages = without_space(query_ids), without_space(passage_ids)

    def columns(part: slice) -> list[pa.Array | pa.Scalar]:
        relevance = pc.binary_join_element_wise(pa.array(qrels.relevance[part]).cast(pa.string()), "\n", "")
        ids = queries.take(pa.array(qrels.query[part])), passages.take(pa.array(qrels.passage[part]))
        return [ids[0], pa.scalar("0"), ids[1], relevance]

    _write(path, len(qrels.query), columns)


def few(names: pa.Array | pa.ChunkedArray) -> str:
    """Returns the first names of a column, for an error."""
    shown = ", ".join(repr(printable(name)[:40]) for name in names[:SHOWN].to_pylist())
    return f"{shown}{', …' * (len(names) > SHOWN)}"


def _columns(
    path: Path,
    form: str,
    value_of: Callable[[bytes], float],
    queries: Ids,
    passages: Ids,
    only: Collection[bytes] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns query and passage numbers int32, values fp32 and line numbers int64, of the queries in `only`."""
    value_at = 3 if form == QRELS_FORM else 4
    query_rows, passage_rows, values, lines = array("i"), array("i"), array("f"), array("q")
    for line, fields in _lines(path, form):
        try:
            value = value_of(fields[value_at])
            if only is None or fields[0] in only:
                query_rows.append(queries[fields[0]])
                passage_rows.append(passages[fields[2]])
                values.append(value)
                lines.append(line)
        except UnicodeDecodeError:
            raise UserError(f"{path} line {line}: not UTF-8") from None
        except ValueError as error:
            raise UserError(f"{path} line {line}: {error}") from None
    return (
        np.array(query_rows, np.int32),
        np.array(passage_rows, np.int32),
        np.array(values, np.float32),
        np.array(lines, np.int64),
    )


def _lines(path: Path, form: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the number of each line, from 1, and its fields; skips blank lines."""
    count = len(form.split())
    try:
        with path.open("rb") as raw:
            zipped = raw.peek(2)[:2] == b"\x1f\x8b"
            file = io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw))) if zipped else raw
            for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), start=1):
                # A file joined from several parts may have a byte order mark at the start of each part.
                fields = line.removeprefix(b"\xef\xbb\xbf").split()
                if len(line) == LONGEST_LINE:
                    raise UserError(f"{path} line {number} is longer than {LONGEST_LINE:,} bytes: a line is {form}")
                if len(fields) == count:
                    yield number, fields
                elif fields:
                    raise UserError(f"{path} line {number}: {len(fields)} fields where there must be {count}: {form}")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}; copy it again") from None


def _relevance(field: bytes) -> int:
    label = relevance_of(field.decode("ascii", "replace"))
    if label is None:
        bound = f"an integer from -{HIGHEST_RELEVANCE:,} to {HIGHEST_RELEVANCE:,}"
        raise ValueError(f"relevance {_shown(field)} is not {bound}")
    return label


def _score(field: bytes) -> float:
    try:
        score = float(field)
    except ValueError:
        score = float("nan")
    if score != score or b"_" in field:
        raise ValueError(f"score {_shown(field)} is not a number")
    return score


def _shown(field: bytes) -> str:
    return repr(field[:40].decode("utf-8", errors="replace"))


def _repeated(query: np.ndarray, passage: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first row and the repeated row of each repeated pair, ascending."""
    _, first, inverse = np.unique(pair_keys(query, passage), return_index=True, return_inverse=True)
    first = first[inverse]
    repeats = np.flatnonzero(first != np.arange(len(first)))
    return first[repeats], repeats


def _write(path: Path, count: int, columns: Callable[[slice], list[pa.Array | pa.Scalar]]) -> None:
    """Writes the fields of lines as gzip; the last field ends with the end of the line."""
    # The header has no name and no time, so the same content gives the same bytes.
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as file:
        for start in range(0, count, LINES):
            lines = pc.binary_join_element_wise(*columns(slice(start, min(start + LINES, count))), " ")
            _, offsets, text = lines.buffers()  # the lines one after another
            first, last = np.frombuffer(offsets, np.int32)[[lines.offset, lines.offset + len(lines)]]
            file.write(memoryview(text)[first:last])


def without_space(ids: pa.ChunkedArray) -> pa.Array:
    """Returns all ids of a dataset's queries or passages as they stand in a file; different ids stay different.

    If any id has white space, ids are written as in a URL: white space as `%20` and similar codes, and `%20` in an id
    as `%2520` (`urllib.parse.unquote` gives the ids back). If none has, all ids stay as they are.
    """
    whole = ids.combine_chunks()
    if not pc.any(pc.match_substring_regex(whole, SPACE)).as_py():
        return whole
    written = pc.match_substring_regex(whole, f"{SPACE}|%[0-9A-Fa-f]{{2}}")
    return pc.replace_with_mask(whole, written, pa.array(map(_quoted, whole.filter(written).to_pylist()), whole.type))


def written_ids(data: Dataset) -> pa.ChunkedArray:
    """Returns `Dataset.judged_ids` as they stand in the files of an evaluation. They order equal scores, so the figures
    of a run are those of its file."""
    return pa.chunked_array([without_space(data.judged_ids())])


def _quoted(name: str) -> str:
    return QUOTED.sub(lambda char: "".join(f"%{byte:02X}" for byte in char[0].encode()), name)
