"""What training reads: queries generated from negatives, and examples."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts.folder import Draft, read_manifest
from gnn_encoder.artifacts.parts import part_folders
from gnn_encoder.artifacts.tables import columns_of

GENERATED, TRIPLES, EXAMPLES = "generated.parquet", "triples.parquet", "examples.parquet"
ORIGINS = ("labelled", "denoised", "selected", "generated")
"""Origins of training examples."""


@dataclass(frozen=True)
class GeneratedQueries:
    """One generated query per distinct negative: `passage` int32 [g], ascending, and `text` [g].

    Triples: `query`, `negative` int32 [t], `similarity` float32 [t], the cosine of query and generated query.
    """

    passage: np.ndarray
    text: list[str]
    query: np.ndarray
    negative: np.ndarray
    similarity: np.ndarray

    @classmethod
    def read(cls, path: str | Path) -> "GeneratedQueries":
        """Read a generated_queries artifact."""
        read_manifest(path, "generated_queries")
        return cls.in_folder(path)

    @classmethod
    def in_folder(cls, path: str | Path) -> "GeneratedQueries":
        """Read the files of an artifact or a draft, without a check."""
        folders = part_folders(path)
        (passage,) = columns_of(folders, GENERATED, "passage")
        tables = (pq.read_table(folder / GENERATED, columns=["text"]) for folder in folders)
        texts = [text for table in tables for text in table.column(0).to_pylist()]
        triples = columns_of(folders, TRIPLES, "query", "negative", "similarity")
        if len(folders) > 1:
            order, (position,) = np.argsort(passage), columns_of(folders, TRIPLES, "place")
            passage, texts = passage[order], [texts[row] for row in order]
            triples = [column[np.argsort(position)] for column in triples]
        return cls(passage, texts, *triples)

    def write(self, draft: Draft, position: np.ndarray | None = None) -> None:
        """Write a generated_queries artifact. `position` int64 [t]: a part's triples among the triples of all parts."""
        pq.write_table(pa.table({"passage": self.passage, "text": self.text}), draft / GENERATED)
        columns = {"query": self.query, "negative": self.negative, "similarity": self.similarity}
        columns |= {} if position is None else {"place": position}
        pq.write_table(pa.table(columns), draft / TRIPLES)
        draft.rows(generated=len(self.text), triples=len(self.query))


@dataclass(frozen=True)
class TrainingSet:
    """Examples: `query_text` [e], `query` int32 [e] (-1: generated, not in the dataset), `positive` int32 [e],
    `negatives` int32 [e, s] (-1: fewer negatives), `origin` int8 [e] (index into `ORIGINS`)."""

    query_text: list[str]
    query: np.ndarray
    positive: np.ndarray
    negatives: np.ndarray
    origin: np.ndarray

    @classmethod
    def read(cls, path: str | Path) -> "TrainingSet":
        """Read a training_set artifact."""
        read_manifest(path, "training_set")
        table = pq.read_table(Path(path) / EXAMPLES)
        query, positive, origin = (table.column(name).to_numpy() for name in ("query", "positive", "origin"))
        negatives = table.column("negatives").combine_chunks().flatten().to_numpy().reshape(len(table), -1)
        return cls(table.column("query_text").to_pylist(), query, positive, negatives, origin)

    def take(self, rows: np.ndarray) -> "TrainingSet":
        """The examples at `rows`, in the order of `rows`."""
        columns = (self.query, self.positive, self.negatives, self.origin)
        return TrainingSet([self.query_text[row] for row in rows], *(column[rows] for column in columns))

    def write(self, draft: Draft) -> None:
        """Write a training_set artifact."""
        width = self.negatives.shape[1]
        negatives = pa.FixedSizeListArray.from_arrays(pa.array(self.negatives.ravel(), pa.int32()), width)
        columns = {
            "query_text": pa.array(self.query_text, pa.string()),
            "query": self.query,
            "positive": self.positive,
            "negatives": negatives,
            "origin": self.origin,
            "origin_name": pa.array([ORIGINS[o] for o in self.origin], pa.string()),
        }
        pq.write_table(pa.table(columns), draft / EXAMPLES)
        draft.rows(examples=len(self.query_text))
