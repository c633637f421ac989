"""The passages and their vectors as one Parquet file, in the bundle's order."""

from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.errors import UserError
from gnn_encoder.serving.exports import rows as export_rows
from gnn_encoder.serving.exports.job import Job, export_to_folder

PASSAGES = "passages.parquet"


def export(job: Job) -> str:
    """Writes the file into a new folder and returns what was compared, in words."""
    return export_to_folder(job, _write, _replay)


def _write(job: Job, folder: Path) -> None:
    schema = pa.schema(export_rows.fields(job.width))
    done = job.stage("writing", len(job.bundle.vectors))
    with pq.ParquetWriter(folder / PASSAGES, schema, compression="zstd") as writer:
        for block in export_rows.blocks(job.bundle, done=done):
            writer.write_table(pa.table(block.columns(), schema=schema), row_group_size=export_rows.ROWS)


def _replay(job: Job, folder: Path) -> str:
    """Compares every row, so any search of the file has the bundle's hits."""
    schema, count = pa.schema(export_rows.fields(job.width)), 0
    blocks = export_rows.blocks(job.bundle, done=job.stage("comparing", len(job.bundle.vectors)))
    for batch, block in zip_longest(pq.ParquetFile(folder / PASSAGES).iter_batches(export_rows.ROWS), blocks):
        if batch is None or block is None or not batch.equals(pa.record_batch(block.columns(), schema=schema)):
            raise UserError(f"{PASSAGES} has other rows than the bundle from row {count:,} on; not exported")
        count += len(batch)
    return f"{count:,} rows are the bundle's"
