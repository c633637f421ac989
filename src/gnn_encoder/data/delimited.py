"""Tab-separated files: passages and labels of MS MARCO, DPR and BEIR."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from gnn_encoder.artifacts.dataset import relevance_of
from gnn_encoder.data.lines import Block, read_blocks, read_lines
from gnn_encoder.data.rows import CandidateRows, Label, PassageRows
from gnn_encoder.data.validation import Kind, Problems

HEADERS = {"id", "_id", "pid", "docid", "doc_id", "passage_id"}
"""Names of the first column in header lines; no passage has such an id."""
QUERY_HEADERS = {"query-id", "query_id", "qid"}
"""As `HEADERS`, where the first column has the query's id."""


def read_fields(
    lines: Iterable[tuple[int, str]], columns: range, problems: Problems, name: str
) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, fields) of the lines with a number of columns in `columns`; other lines are problems."""
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) in columns:
            yield number, fields
        else:
            wanted = f"{columns.start}" if len(columns) == 1 else f"{columns.start} to {columns.stop - 1}"
            problems.add(Kind.BAD_ROW, name, number, f"{len(fields)} columns instead of {wanted}")


def tab_separated(block: Block, columns: range) -> list[pa.Array] | None:
    """The block's columns, string [n] each; None unless all lines have the same number of columns, one of `columns`."""
    data = block.data
    # Arrow also ends a line at a lone \r, and skips blank lines. Together these could leave the line count unchanged.
    if b"\r" in data:
        return None
    width = data.partition(b"\n")[0].count(b"\t") + 1
    if width not in columns:
        return None
    names = [str(i) for i in range(width)]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            pyarrow.csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
            pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
    except pa.ArrowInvalid:
        return None
    return [column.combine_chunks() for column in table.columns] if len(table) == len(block.numbers) else None


def _columns(block: Block, columns: range, problems: Problems, name: str) -> tuple[Sequence[int], list[pa.Array]]:
    """The block's line numbers and columns, string [n] each; a column that only some lines have is empty in others."""
    if arrays := tab_separated(block, columns):
        return block.numbers, arrays
    rows = list(read_fields(block.lines(problems), columns, problems, name))
    padded = [(*fields, *[""] * (columns.stop - 1 - len(fields))) for _, fields in rows]
    arrays = [pa.array([fields[i] for fields in padded], pa.string()) for i in range(columns.stop - 1)]
    return [number for number, _ in rows], arrays


def _unquoted(fields: pa.Array) -> pa.Array:
    """CSV fields [n] without their quotes."""
    quoted = pc.match_substring_regex(fields, '^".*"$')
    inner = pc.replace_substring(pc.utf8_slice_codeunits(fields, 1, -1), '""', '"')
    return pc.if_else(quoted, inner, fields)


def read_passages(path: Path, problems: Problems, *, dpr: bool = False) -> Iterator[PassageRows]:
    """Reads rows of id, text and an optional title; `dpr`: with a header line, and texts quoted as in CSV."""
    for block in read_blocks(path, problems):
        numbers, arrays = _columns(block, range(2, 4), problems, path.name)
        ids, texts = arrays[:2]
        titles = arrays[2] if len(arrays) > 2 else pa.repeat("", len(ids))
        if dpr:
            titles, texts = _unquoted(titles), _unquoted(texts)
        if len(ids) and numbers[0] == 1 and ids[0].as_py().lower() in HEADERS:
            if not dpr:
                problems.add(Kind.BAD_ROW, path.name, 1, "a header line, which MS MARCO's files do not have")
            ids, titles, texts, numbers = ids[1:], titles[1:], texts[1:], numbers[1:]
        yield PassageRows(ids, titles, texts, path.name, numbers, block.consumed)


def read_candidates(path: Path, problems: Problems, name: str) -> Iterator[CandidateRows]:
    """Reads rows of query, passage and up to two more columns (a rank, a score), with or without a header line."""
    for block in read_blocks(path, problems, name):
        numbers, (queries, passages, *_) = _columns(block, range(2, 5), problems, name)
        begin = int(len(queries) > 0 and numbers[0] == 1 and queries[0].as_py() in QUERY_HEADERS)
        yield CandidateRows(queries[begin:], passages[begin:], name, numbers[begin:])


def read_labels(path: Path, split: str, problems: Problems, *, trec: bool, name: str = "") -> Iterator[Label]:
    """Reads labels: `query, passage, relevance` with a header; `trec`: `query, 0, passage, relevance`, no header."""
    name = name or path.name
    columns, passage = (4, 2) if trec else (3, 1)
    for number, fields in read_fields(read_lines(path, problems, name), range(columns, columns + 1), problems, name):
        relevance = relevance_of(fields[-1].strip())
        if relevance is not None:
            yield Label(fields[0], fields[passage], relevance, split, name, number)
        elif trec or number > 1 or fields[0] != "query-id":
            problems.add(Kind.BAD_RELEVANCE, name, number, repr(fields[-1]))
