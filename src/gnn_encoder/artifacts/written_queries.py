"""Queries that were written for passages, by a generator.

written.parquet  passage (int64, row of the dataset), kind, query, prompt, answer

The prompt and the answer are those of a language model; empty where no model wrote the query. A prompt whose answer had
no usable query has a row with an empty query, so that all prompts and answers are kept.
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts.folder import Draft, read_manifest

WRITTEN = "written.parquet"
TEXT = pa.string()
SCHEMA = pa.schema({"passage": pa.int64(), "kind": TEXT, "query": TEXT, "prompt": TEXT, "answer": TEXT})


@dataclass(frozen=True)
class WrittenQueries:
    """The queries in the order in which they were written: row of the passage, kind, query, prompt, answer [w]."""

    passage: list[int]
    kind: list[str]
    query: list[str]
    prompt: list[str]
    answer: list[str]

    @classmethod
    def read(cls, path: str | Path) -> "WrittenQueries":
        """Read a written_queries artifact."""
        read_manifest(path, "written_queries")
        return cls(*(column.to_pylist() for column in pq.read_table(Path(path) / WRITTEN, schema=SCHEMA).columns))

    def write(self, draft: Draft) -> None:
        """Write a written_queries artifact."""
        columns = [getattr(self, name) for name in SCHEMA.names]
        pq.write_table(pa.table(columns, schema=SCHEMA), draft / WRITTEN, compression="zstd")
        draft.rows(queries=len(self.query), passages=len(set(self.passage)))
