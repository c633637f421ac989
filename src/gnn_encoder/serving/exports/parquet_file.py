"""The passages and their vectors as one Parquet file, in the bundle's order."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.errors import UserError
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.passage_index import best_of_blocks
from gnn_encoder.serving.exports import rows as export_rows
from gnn_encoder.serving.exports.job import Job, new_folder, write_facts
from gnn_encoder.serving.exports.replay import DEPTH

PASSAGES = "passages.parquet"


def export(job: Job) -> str:
    """Writes the file into a new folder and returns what was compared, in words."""
    with new_folder(Path(job.target)) as folder:
        _write(job, folder)
        said = _replay(job, folder)
        write_facts(folder, job.facts(said))
    return said


def _write(job: Job, folder: Path) -> None:
    schema = pa.schema(export_rows.fields(job.width))
    done = job.stage("writing", len(job.bundle.vectors))
    with pq.ParquetWriter(folder / PASSAGES, schema, compression="zstd") as writer:
        for block in export_rows.blocks(job.bundle, done=done):
            writer.write_table(pa.table(block.columns(), schema=schema), row_group_size=export_rows.ROWS)


def _replay(job: Job, folder: Path) -> str:
    """Compares every id and vector, and the first ten hits of each question."""
    bundle, queries, start = job.bundle, job.queries, 0
    stored, done = bundle.vectors, job.stage("comparing", len(bundle.vectors))

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal start
        file = pq.ParquetFile(folder / PASSAGES)
        for batch in file.iter_batches(export_rows.ROWS, columns=["passage_id", "vector"]):
            rows = np.arange(start, start + len(batch))
            block = batch.column("vector").flatten().to_numpy().reshape(len(batch), -1)
            ids = all_ids.take(pa.array(export_rows.passages_of(bundle, rows)))
            if (
                not np.array_equal(block, stored[start : start + len(block)])
                or batch.column("passage_id") != ids.combine_chunks()
            ):
                raise UserError(f"{PASSAGES} has other vectors than the bundle from row {start:,} on; not exported")
            yield block, rows
            start += len(batch)
            done(len(batch))

    all_ids, k = bundle.passages.ids(), min(DEPTH, len(stored))
    _, found = best_of_blocks(blocks(), queries, k)
    if start != len(stored) or not np.array_equal(found, exact.search(stored, queries, k)[1]):
        raise UserError(f"{PASSAGES} has {start:,} rows, and other first hits than the bundle; not exported")
    return f"{start:,} vectors are the bundle's, and so are the first hits of {len(queries):,} texts"
