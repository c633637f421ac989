"""Further fields of the passages, by which a search filters: `fields.arrow` of a dataset or a bundle.

One record batch of m rows in Arrow's file format, not compressed, so that a search reads columns where they lie, by a
memory map. A field is a column of one type, or of lists of it:

    text    dictionary of large_string: a condition looks at each different value once
    number  int64 or double
    truth   bool
    date    timestamp[us] in UTC

Null, or an empty list: the passage has no value.
"""

from pathlib import Path

import pyarrow as pa

from gnn_encoder.errors import Damaged, one_line

FIELDS = "fields.arrow"


def write_fields(folder: Path, fields: pa.Table) -> None:
    """Writes the columns [m] into a folder."""
    with pa.OSFile(str(folder / FIELDS), "wb") as file, pa.ipc.new_file(file, fields.schema) as writer:
        for batch in fields.combine_chunks().to_batches():
            writer.write_batch(batch)


def read_fields(folder: Path, rows: int) -> pa.RecordBatch | None:
    """Opens the columns in a folder, memory-mapped; None if it has none.

    Raises:
        Damaged: the file is none of `write_fields`, or not of so many rows.
    """
    if not (file := folder / FIELDS).is_file():
        return None
    try:
        fields = pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"{file} cannot be read ({one_line(error)[:160]}): make it again") from None
    if len(fields) != rows:
        raise Damaged(f"{file} has {len(fields):,} rows for {rows:,} passages: make it again")
    return fields


def kind_of(column: pa.DataType) -> str:
    """Returns the type of a column in words."""
    if pa.types.is_list(column):
        return f"lists of {kind_of(column.value_type)}"
    if pa.types.is_dictionary(column):
        return "text"
    return "date" if pa.types.is_timestamp(column) else "truth" if pa.types.is_boolean(column) else "number"
