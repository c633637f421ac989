"""Vectors that any model has made elsewhere, with ids: `corpus` and `queries` in one folder, in either form.

corpus.parquet    columns `id` and `vector` (a list of numbers)
corpus.npy        [m, d], with an id per line in corpus.txt
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gnn_encoder.artifacts.digests import WORDS, Finder, text_digests
from gnn_encoder.errors import UserError, one_line, printable

GIVEN = "corpus", "queries"
ROWS = 16_384
"""Vectors in memory at a time."""
SHOWN = 3


@dataclass(frozen=True)
class GivenVectors:
    """The vectors of `corpus` or of `queries`; `width`: d."""

    file: Path
    width: int

    @classmethod
    def of(cls, folder: Path, name: str) -> "GivenVectors":
        """Opens the file of that name; raises UserError if there is none, or it is of another form."""
        table, array = folder / f"{name}.parquet", folder / f"{name}.npy"
        try:
            if table.is_file():
                columns = pq.ParquetFile(table).schema_arrow
                if not {"id", "vector"} <= set(columns.names):
                    raise UserError(f"{table} has the columns {', '.join(columns.names)}: name them id and vector")
                first = next(cls(table, 0)._batches(), None)
                return cls(table, 0 if first is None else first[1].shape[1])
            if array.is_file():
                vectors = np.load(array, mmap_mode="r", allow_pickle=False)
                if vectors.ndim != 2 or vectors.dtype.kind != "f":
                    shape = f"{vectors.dtype} of shape {list(vectors.shape)}"
                    raise UserError(f"{array} is {shape}: give a vector of floats per row")
                if not (ids := array.with_suffix(".txt")).is_file():
                    raise UserError(f"{ids} is missing: write the id of each row of {array.name} into a line")
                return cls(array, vectors.shape[1])
        except (EOFError, OSError, ValueError, pa.ArrowException) as error:
            raise UserError(f"{folder}: the vectors of {name} cannot be read: {one_line(error)}") from None
        raise UserError(f"{folder} has neither {table.name} nor {array.name}: give the vectors of the {name} with ids")

    def fill(self, wanted: pa.ChunkedArray, out: np.ndarray, every: bool = True) -> np.ndarray:
        """Writes the vector of each id of `wanted` [n] to `out` [n, d]; returns the rows without one.

        Raises:
            UserError: an id has two vectors, one that is not finite, or, if `every` must have one, none; or the file
                cannot be read.
        """
        count, wanted = np.zeros(len(wanted), np.int64), wanted.combine_chunks()
        parts = (wanted.slice(start, ROWS).to_pylist() for start in range(0, len(wanted), ROWS))
        row_of = Finder(np.concatenate([np.empty((0, 2), WORDS), *map(text_digests, parts)]))
        try:
            for ids, vectors in self._batches():
                rows = row_of(text_digests(ids.to_pylist()))
                known = rows >= 0
                if not np.isfinite(vectors[known]).all():
                    raise UserError(f"{self.file}: a vector has a number that is not finite")
                out[rows[known]] = vectors[known]
                np.add.at(count, rows[known], 1)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise UserError(f"{self.file} cannot be read: {one_line(error)}") from None
        for kind, rows in (("no vector", every & (count == 0)), ("two vectors", count > 1)):
            if rows.any():
                examples = ", ".join(
                    repr(printable(one)[:40]) for one in wanted.filter(pa.array(rows))[:SHOWN].to_pylist()
                )
                raise UserError(f"{self.file} has {kind} for {rows.sum():,} of {len(rows):,} ids ({examples}, …)")
        return np.flatnonzero(count == 0)

    def _batches(self) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Yields ids [r] and vectors fp32 [r, d]."""
        if self.file.suffix == ".parquet":
            for batch in pq.ParquetFile(self.file).iter_batches(ROWS, columns=["id", "vector"]):
                ids, lists = batch.column("id"), batch.column("vector")
                lengths = set(pc.list_value_length(lists).to_pylist())
                if len(lengths) != 1 or None in lengths or (self.width and lengths != {self.width}):
                    raise UserError(f"{self.file}: its vectors have different lengths")
                numbers = lists.flatten().to_numpy(zero_copy_only=False)
                yield ids.cast(pa.string()), numbers.astype(np.float32).reshape(len(ids), -1)
            return
        vectors = np.load(self.file, mmap_mode="r", allow_pickle=False)
        with self.file.with_suffix(".txt").open(encoding="utf-8") as lines:
            start = 0
            while ids := [line.rstrip("\r\n") for line in islice(lines, ROWS)]:
                vectors_of_block = np.asarray(vectors[start : start + len(ids)], np.float32)
                if len(vectors_of_block) < len(ids):
                    raise UserError(f"{self.file} has {len(vectors):,} rows, and fewer than its ids")
                yield pa.array(ids, pa.string()), vectors_of_block
                start += len(ids)
        if start < len(vectors):
            raise UserError(f"{self.file} has {len(vectors):,} rows, and {start:,} ids")
