"""Queries that were written for passages, by a generator.

written.parquet  passage (int64, row of the dataset), kind, query, prompt, answer, quoted (int64)

The prompt and the answer are those of a language model; empty where no model wrote the query. A prompt whose answer had
no usable query has a row with an empty query, so that all prompts and answers are kept.
A query that was written for several passages has a row for each. One that quotes a passage names its row, and that
passage is none of its hits (`Dataset.identical`); -1: it quotes none.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts.folder import Draft, read_manifest

WRITTEN = "written.parquet"
TEXT = pa.string()
SCHEMA = pa.schema(
    {"passage": pa.int64(), "kind": TEXT, "query": TEXT, "prompt": TEXT, "answer": TEXT, "quoted": pa.int64()}
)


@dataclass(frozen=True)
class WrittenQueries:
    """The queries in the order in which they were written: row of the passage, kind, query, prompt, answer [w].

    quoted   row of the passage that each query quotes [w]; empty: none quotes any
    """

    passage: list[int]
    kind: list[str]
    query: list[str]
    prompt: list[str]
    answer: list[str]
    quoted: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | Path) -> "WrittenQueries":
        """Read a written_queries artifact."""
        read_manifest(path, "written_queries")
        return cls(*(column.to_pylist() for column in pq.read_table(Path(path) / WRITTEN, schema=SCHEMA).columns))

    def write(self, draft: Draft) -> None:
        """Write a written_queries artifact."""
        columns = [*map(vars(self).get, SCHEMA.names[:-1]), self.quoted or [-1] * len(self.query)]
        pq.write_table(pa.table(columns, schema=SCHEMA), draft / WRITTEN, compression="zstd")
        draft.rows(queries=len(self.query), passages=len(set(self.passage)))
