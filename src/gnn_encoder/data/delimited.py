"""Tab-separated files: passages, labels and candidates of MS MARCO, DPR and BEIR. Logs may have other delimiters.

DPR and BEIR read their files with Python's `csv.reader`: a field that begins with a quote ends at the next single
quote, and may hold tabs and line breaks (`quoted_rows`). In MS MARCO's files a quote is a character like others, and a
tab ends a field wherever it stands (`plain_rows`).

A header line says which column holds what. Without one, columns are in the publisher's order.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from gnn_encoder.artifacts.dataset import relevance_of
from gnn_encoder.data.lines import LONGEST_LINE, Block, read_blocks, read_lines
from gnn_encoder.data.rows import CandidateRows, Label, PassageRows
from gnn_encoder.data.validation import Kind, Problems

PASSAGE_COLUMNS = {
    "id": {"id", "_id", "pid", "docid", "docno", "doc_id", "passage_id", "psg_id"},
    "text": {"text", "passage", "passage_text", "paragraph", "contents", "content", "body", "document"},
    "title": {"title"},
}
LABEL_COLUMNS = {
    "query": {"query_id", "qid", "query"},
    "passage": {"corpus_id", "passage_id", "psg_id", "pid", "doc_id", "docid", "docno", "document_id"},
    "relevance": {"score", "relevance", "rel", "label", "grade"},
}
"""What a column holds → names that header lines give it, with `_` for `-`."""
POOL_COLUMNS = {name: LABEL_COLUMNS[name] for name in ("query", "passage")}
NO_HEADER = "a header line, which MS MARCO's files do not have"


@cache
def _field(delimiter: str) -> re.Pattern[str]:
    """A field of `csv.reader`: the text between quotes and what follows the closing one, or the text without quotes."""
    return re.compile(rf'"((?:[^"]++|"")*+)"([^{delimiter}\n]*+)|([^{delimiter}\n]*+)')


@dataclass
class Rows:
    """Some rows: the line of each, its columns, string [n] each, and the bytes that were read for them."""

    lines: Sequence[int]
    columns: list[pa.Array]
    work: int


@dataclass(frozen=True)
class Header:
    """The first row of a file, which may be a header line. Line 0: the file has no row."""

    line: int
    fields: list[str]

    @classmethod
    def of(cls, path: Path, quoted: bool, delimiter: str = "\t") -> "Header":
        """Reads the first row. Problems of the file are left to its reader."""
        for block in read_blocks(path, Problems()):
            for number, line in block.lines(Problems()):
                row = _row(line, 0, delimiter) if quoted else None
                return cls(number, row.fields if row else line.split(delimiter))
        return cls(0, [])

    @property
    def names(self) -> list[str]:
        """The fields in lower case, with `_` for `-`."""
        return [field.strip().lower().replace("-", "_") for field in self.fields]

    def columns(self, names: Mapping[str, set[str]]) -> dict[str, int]:
        """What a column holds → the number of the one column with such a name."""
        named = {field: [i for i, name in enumerate(self.names) if name in known] for field, known in names.items()}
        return {field: numbers[0] for field, numbers in named.items() if len(numbers) == 1}

    def refuse(self, problems: Problems, name: str, expected: str) -> None:
        """Counts the file as unreadable, because it is not clear what its columns hold."""
        problems.add(Kind.UNREADABLE, name, self.line, f"name the columns {expected}, not {', '.join(self.fields)}")


def read_fields(
    lines: Iterable[tuple[int, str]], columns: range, problems: Problems, name: str, more: str = ""
) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, fields) of the lines with a number of columns in `columns`; other lines are problems."""
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) in columns:
            yield number, fields
        else:
            problems.add(Kind.BAD_ROW, name, number, _wrong_width(len(fields), columns) + more)


def tab_separated(block: Block, columns: range, quoted: bool = False, delimiter: str = "\t") -> list[pa.Array] | None:
    """The block's columns, string [n] each; None unless all lines have the same number of columns, one of `columns`.

    `quoted`: fields may be quoted as in CSV; None also if a row does not end with its line.
    """
    data = block.data.replace(b"\r\n", b"\n").removesuffix(b"\r") if b"\r" in block.data else block.data
    # Arrow also ends a line at a lone \r, and skips blank lines. Together these could leave the line count unchanged.
    if b"\r" in data:
        return None
    first = data.partition(b"\n")[0].decode("utf-8", "replace")
    row = _row(first, 0, delimiter) if quoted else None
    width = len(row.fields) if row else first.count(delimiter) + 1
    if width not in columns:
        return None
    names = [str(i) for i in range(width)]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            pyarrow.csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
            pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char='"' if quoted else False),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowInvalid:
        return None
    return [column.combine_chunks() for column in table.columns] if len(table) == len(block.numbers) else None


def plain_rows(
    path: Path, columns: range, problems: Problems, name: str, header: int = 0, more: str = ""
) -> Iterator[Rows]:
    """Reads rows of fields without quoting, below line `header`; a column that only some rows have is empty in others.

    `more` follows the message about a row with another number of columns.
    """
    for block in _below(read_blocks(path, problems, name), header):
        if arrays := tab_separated(block, columns):
            yield Rows(block.numbers, arrays, block.consumed)
            continue
        rows = list(read_fields(block.lines(problems), columns, problems, name, more))
        yield Rows([number for number, _ in rows], _arrays([fields for _, fields in rows], columns), block.consumed)


def quoted_rows(
    path: Path, columns: range, problems: Problems, name: str, header: int = 0, delimiter: str = "\t"
) -> Iterator[Rows]:
    """Reads rows as `csv.reader` reads them, below line `header`; columns as in `plain_rows`.

    A row over several lines is a problem where quotes of a text, not doubled, may have made it: where text follows the
    closing quote, or, between tabs, each of the lines has all columns. A quoted text may well have commas in each line.
    """
    rest, first = "", 0  # an unfinished row and its first line
    for block in _below(read_blocks(path, problems, name), header):
        is_whole = not rest and _ends_closed(block, delimiter)
        if is_whole and (arrays := tab_separated(block, columns, b'"' in block.data, delimiter)):
            yield Rows(block.numbers, arrays, block.consumed)
            continue
        text = block.data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").removesuffix("\r")
        text, line = (f"{rest}\n{text}", first) if rest else (text, block.first)
        rows: list[tuple[int, list[str]]] = []
        at, rest = 0, ""
        while at <= len(text):
            row = _row(text, at, delimiter)
            if row is None:
                rest, first = text[at:], line
                break
            record = text[at : row.end]
            if record and _is_right(row, record, line, columns, problems, name, delimiter):
                rows.append((line, row.fields))
            line += record.count("\n") + 1
            at = row.end + 1
        yield Rows([number for number, _ in rows], _arrays([fields for _, fields in rows], columns), block.consumed)
        if len(rest) > LONGEST_LINE:
            break
    if rest:
        problems.add(
            Kind.UNREADABLE, name, first, "a field begins with a quote that nothing closes: close or double it"
        )


@dataclass
class _Row:
    """A row of a CSV file, and the place where it ends in a text.

    `followed`: text follows a closing quote. `returned`: a carriage return is outside quotes.
    """

    fields: list[str]
    end: int
    followed: bool
    returned: bool


def _row(text: str, start: int, delimiter: str = "\t") -> _Row | None:
    """The row that begins at a place of a text; None: the text ends before a quote is closed."""
    row, field = _Row([], start, False, False), _field(delimiter)
    while True:
        match = cast(re.Match[str], field.match(text, row.end))  # the pattern matches everywhere
        between, after, bare = match.groups()
        if between is None and bare.startswith('"'):
            return None
        row.fields.append(bare if between is None else between.replace('""', '"') + after)
        row.followed = row.followed or bool(after)
        row.returned = row.returned or "\r" in (bare or after or "")
        row.end = match.end()
        if text[row.end : row.end + 1] != delimiter:
            return row
        row.end += 1


def _is_right(row: _Row, record: str, line: int, columns: range, problems: Problems, name: str, delimiter: str) -> bool:
    """Whether the row of the text `record`, from `line` on, can be used; counts a problem if not."""
    kind, wrong, lines = Kind.BAD_ROW, "", record.split("\n")
    is_rows = delimiter == "\t" or columns.start > 2  # a text with a comma may well be cut between two of them
    last = line + len(lines) - 1
    try:
        record.encode()
    except UnicodeEncodeError as error:
        line += record.count("\n", 0, error.start)
        before = record[record.rfind("\n", 0, error.start) + 1 : error.start].encode("utf-8", "surrogateescape")
        kind, wrong = Kind.ENCODING, f"byte 0x{ord(record[error.start]) & 0xFF:02x} at {len(before) + 1}"
    if (
        not wrong
        and last > line
        and (row.followed or (is_rows and all(text_line.count(delimiter) + 1 in columns for text_line in lines)))
    ):
        wrong = f"a field begins with a quote that is closed in line {last}: double it if it is text"
    if not wrong and row.returned:
        wrong = "a carriage return within the line"
    if not wrong and len(row.fields) not in columns:
        wrong = _wrong_width(len(row.fields), columns)
    if wrong:
        problems.add(kind, name, line, wrong)
    return not wrong


def _ends_closed(block: Block, delimiter: str) -> bool:
    """Whether the block's last line, as a row of its own, has no quote that is left open."""
    last = block.data[block.data.rfind(b"\n") + 1 :]
    return b'"' not in last or _row(last.decode("utf-8", "replace"), 0, delimiter) is not None


def _below(blocks: Iterable[Block], header: int) -> Iterator[Block]:
    """The blocks without the lines up to `header`."""
    for block in blocks:
        above = header - block.first + 1
        if above > 0:
            *_, data = block.data.split(b"\n", above)
            data = data if block.numbers.stop > header + 1 else b""
            block = Block(data, min(header + 1, block.numbers.stop), block.consumed, block.name)
        yield block


def _arrays(rows: list[list[str]], columns: range) -> list[pa.Array]:
    padded = [(*fields, *[""] * (columns.stop - 1 - len(fields))) for fields in rows]
    return [pa.array([fields[i] for fields in padded], pa.string()) for i in range(columns.stop - 1)]


def _wrong_width(width: int, columns: range) -> str:
    wanted = f"{columns.start}" if len(columns) == 1 else f"{columns.start} to {columns.stop - 1}"
    return f"{width} columns instead of {wanted}"


def read_passages(path: Path, problems: Problems, *, dpr: bool = False) -> Iterator[PassageRows]:
    """Reads a file of passages.

    Without a header line: id and text, as in MS MARCO's own files; `dpr`: id, text and title, quoted as in CSV. With
    one, the columns that it names, in any order; others are further fields. In MS MARCO's layout a header line must
    name a title, because MS MARCO's own files have none; and titles need a header line, because some write them before
    the text and some after it, and a third column may also come from a tab in a text.
    """
    header, name, more = Header.of(path, dpr), path.name, dict[int, str]()
    column_of = header.columns(PASSAGE_COLUMNS)
    is_named, width = {"id", "text"} <= column_of.keys(), len(header.fields)
    if is_named:  # DPR's reader takes a third column as the title, whatever its name
        is_unclear = dpr and width > 2 and "title" not in column_of
    else:
        is_unclear = header.names[:1] != [] and _names_columns(header.names, column_of)
    if is_unclear:
        header.refuse(problems, name, "id, text and title, in their order")
        return
    if is_named and not dpr and "title" not in column_of:
        problems.add(Kind.BAD_ROW, name, header.line, NO_HEADER)
    column_of, width = (column_of, width) if is_named else ({"id": 0, "text": 1, "title": 2}, 3 if dpr else 2)
    if is_named:
        more = {i: field.strip() for i, field in enumerate(header.fields) if i not in column_of.values()}
    columns, below = range(width, width + 1), header.line if is_named else 0
    hint = "" if is_named else ": a tab in a text, or a title without a header line"
    blocks = quoted_rows(path, columns, problems, name, below)
    for rows in blocks if dpr else plain_rows(path, columns, problems, name, below, hint):
        ids, texts = rows.columns[column_of["id"]], rows.columns[column_of["text"]]
        titles = rows.columns[column_of["title"]] if column_of.get("title", width) < width else pa.repeat("", len(ids))
        lines, out, fields = rows.lines, pc.equal(ids, ""), {field: rows.columns[i] for i, field in more.items()}
        for row in np.flatnonzero(out.to_numpy(zero_copy_only=False)).tolist():
            problems.add(Kind.BAD_ROW, name, lines[row], "an empty id")
        if is_named:  # files may be joined with their headers
            is_repeated = pc.and_(
                pc.equal(ids, header.fields[column_of["id"]]), pc.equal(texts, header.fields[column_of["text"]])
            )
            out = pc.or_(out, is_repeated)
        if pc.any(out).as_py():
            keep = pc.invert(out)
            ids, titles, texts = ids.filter(keep), titles.filter(keep), texts.filter(keep)
            lines = np.asarray(lines)[keep.to_numpy(zero_copy_only=False)].tolist()
            fields = {field: column.filter(keep) for field, column in fields.items()}
        yield PassageRows(ids, titles, texts, name, lines, rows.work, fields=fields)


def _names_columns(names: list[str], column_of: Mapping[str, int]) -> bool:
    """Whether a first row is a header line with only some columns of passages; `column_of`: the columns that it names.

    A row `7, text, Title` may be a passage, so an id with a digit makes the row a passage.
    """
    is_id = names[0] in PASSAGE_COLUMNS["id"]
    return is_id or (len(column_of) >= min(2, max(1, len(names) - 1)) and not re.search(r"\d", names[0]))


def read_candidates(path: Path, problems: Problems, name: str) -> Iterator[CandidateRows]:
    """Reads rows of query, passage and at most two more columns (a rank, a score), or at most as many as a header line
    names."""
    header = Header.of(path, True)
    column_of = header.columns(POOL_COLUMNS)
    is_named = len(column_of) == len(POOL_COLUMNS)
    if not is_named and "query" in column_of:
        header.refuse(problems, name, "query-id and corpus-id, in their order")
        return
    if not is_named:
        column_of = {"query": 0, "passage": 1}
    names = {field: header.fields[column] for field, column in column_of.items()} if is_named else {}
    columns = range(max(column_of.values()) + 1, max(4, len(header.fields) if is_named else 0) + 1)
    for rows in quoted_rows(path, columns, problems, name, header.line if is_named else 0):
        (query, passage), lines = (rows.columns[column_of[field]] for field in POOL_COLUMNS), rows.lines
        if names:  # files may be joined with their headers
            is_repeated = pc.and_(pc.equal(query, names["query"]), pc.equal(passage, names["passage"]))
            keep = pc.invert(is_repeated)
            query, passage = query.filter(keep), passage.filter(keep)
            lines = np.asarray(lines)[keep.to_numpy(zero_copy_only=False)].tolist()
        yield CandidateRows(query, passage, name, lines)


def read_trec_labels(path: Path, split: str, problems: Problems) -> Iterator[Label]:
    """Reads MS MARCO's labels: `query, 0, passage, relevance`, between tabs, or between blanks as TREC's, no header."""
    lines = ((number, line if "\t" in line else "\t".join(line.split())) for number, line in read_lines(path, problems))
    first = True
    for number, fields in read_fields(lines, range(4, 5), problems, path.name):
        if (relevance := relevance_of(fields[3].strip())) is not None:
            yield Label(fields[0], fields[2], relevance, split, path.name, number)
        elif first and _is_word(fields[3]):
            problems.add(Kind.BAD_ROW, path.name, number, NO_HEADER)
        else:
            problems.add(Kind.BAD_RELEVANCE, path.name, number, repr(fields[3]))
        first = False


def read_labels(path: Path, split: str, problems: Problems, name: str, remarks: list[str]) -> Iterator[Label]:
    """Reads BEIR's labels: `query, passage, relevance`, quoted as in CSV, below a header line.

    BEIR's own reader leaves the first line out, whatever it says. Here a header may name the columns in another order;
    a first line with a number as its relevance is a label, and a remark says so.
    """
    header = Header.of(path, True)
    column_of = header.columns(LABEL_COLUMNS)
    usual = dict(zip(LABEL_COLUMNS, range(3), strict=True))
    is_named = len(column_of) == len(usual)
    is_usual = len(header.fields) == len(usual)
    is_header = is_named or (is_usual and _is_word(header.fields[2]))
    in_place = is_usual and all(usual[kind] == column for kind, column in column_of.items())
    if not (is_named or in_place) and (is_header or len(column_of) > 1):
        header.refuse(problems, name, "query-id, corpus-id and score, in their order")
        return
    column_of, width = (column_of, len(header.fields)) if is_named else (usual, len(usual))
    if not is_header and is_usual:
        remark = f"{name} has no header line: its first line is a label here, and none to BEIR's own reader"
        if remark not in remarks:
            remarks.append(remark)
    header_fields = [header.fields[column_of[kind]] for kind in usual] if is_header else []
    for rows in quoted_rows(path, range(width, width + 1), problems, name, header.line if is_header else 0):
        columns = (rows.columns[column_of[kind]].to_pylist() for kind in usual)
        for line, query, passage, field in zip(rows.lines, *columns, strict=True):
            if (relevance := relevance_of(field.strip())) is not None:
                yield Label(query, passage, relevance, split, name, line)
            elif [query, passage, field] != header_fields:  # files may be joined with their headers
                problems.add(Kind.BAD_RELEVANCE, name, line, repr(field))


def _is_word(field: str) -> bool:
    """Whether a field is neither a number nor blank, so that it may be the name of a column of numbers."""
    try:
        float(field)
        return False
    except ValueError:
        return bool(field.strip())
