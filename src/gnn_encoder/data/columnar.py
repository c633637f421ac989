"""Parses blocks of lines into columns by Arrow, some ten times as fast as line by line in Python.

Arrow cannot name the line of an error. If a block has an error, the functions return None, and the reader parses the
lines of the block one by one.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from gnn_encoder.data.lines import Block


def tab_separated(block: Block, columns: range) -> list[pa.Array] | None:
    """The block's columns, string [n] each. Every line must have the same number of columns, a number in `columns`."""
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
    return _columns(table, block)


def json_lines(block: Block, required: list[str], optional: list[str]) -> list[pa.Array] | None:
    """Text fields of the block's objects, string [n] each. A required field must be in all objects; an optional field
    may be missing or null, and is then empty."""
    # Arrow 25 crashes the process if the first value is null; it reads later null values as objects.
    if not block.data.startswith(b"{"):
        return None
    schema = pa.schema([(name, pa.string()) for name in (*required, *optional)])
    try:
        block.data.decode("utf-8")  # Arrow does not check the encoding.
        table = pyarrow.json.read_json(
            pa.BufferReader(block.data),
            pyarrow.json.ReadOptions(block_size=len(block.data) + 1, use_threads=False),
            pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if any(table[name].null_count for name in required):
        return None
    columns = _columns(table, block)
    return columns and [pc.fill_null(column, "") for column in columns]


def _columns(table: pa.Table, block: Block) -> list[pa.Array] | None:
    """The columns of a table; None unless the table has one row for each line of the block."""
    return [column.combine_chunks() for column in table.columns] if len(table) == len(block.numbers) else None


def unquoted(fields: pa.Array) -> pa.Array:
    """CSV fields [n] without their quotes."""
    quoted = pc.match_substring_regex(fields, '^".*"$')
    inner = pc.replace_substring(pc.utf8_slice_codeunits(fields, 1, -1), '""', '"')
    return pc.if_else(quoted, inner, fields)
