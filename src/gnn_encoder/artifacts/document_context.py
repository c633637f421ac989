"""What a re-ranker of passages in documents has besides its weights: its corpus's context vectors and graph.

They are in the re-ranker's folder, so that a search with it needs no dataset:

context/values.npy            fp16 or int8 [t, d], the vectors of all passages in their context, one after the other
context/offsets.npy           int64 [m + 1]: passage i has the vectors offsets[i] to offsets[i + 1]
context/scales.npy            fp32 [t], only for int8
context/indptr.npy, sources.npy   the document graph
context/titles.parquet        titles of the sections, the graph's nodes after the m passages
context/corpus.json           digests of the passages and of the structure
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts.arrays import read_rows
from gnn_encoder.artifacts.document_graph import DocumentGraph

CONTEXT, TITLES, CORPUS_DIGEST = "context", "titles.parquet", "corpus.json"


@dataclass(frozen=True)
class DocumentContext:
    """Reads the context in a re-ranker's folder; all arrays are memory-mapped."""

    folder: Path

    @classmethod
    def of(cls, reranker: Path) -> Self | None:
        """The context in a re-ranker's folder; None before `encode_context` has added it."""
        return cls(folder) if (folder := reranker / CONTEXT).is_dir() else None

    @cached_property
    def vectors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Values [t, d], offsets [m + 1], and scales [t] or None."""
        values, offsets = (read_rows(self.folder, name) for name in ("values", "offsets"))
        has_scales = (self.folder / "scales.npy").is_file()
        return values, offsets, read_rows(self.folder, "scales") if has_scales else None

    @cached_property
    def graph(self) -> DocumentGraph:
        """The document graph."""
        return DocumentGraph.load(self.folder, len(read_rows(self.folder, "offsets")) - 1)

    @cached_property
    def titles(self) -> pa.ChunkedArray:
        """The sections' titles, in the order of their nodes."""
        return pq.read_table(self.folder / TITLES).column(0)

    @cached_property
    def corpus(self) -> dict[str, str]:
        """`Dataset.corpus_digests`: other passages have another context, and so have the same in other documents."""
        digests: dict[str, str] = json.loads((self.folder / CORPUS_DIGEST).read_text(encoding="utf-8"))
        return digests

    @staticmethod
    def write(
        reranker: Path,
        values: np.ndarray,
        offsets: np.ndarray,
        scales: np.ndarray | None,
        graph: DocumentGraph,
        titles: pa.ChunkedArray,
        corpus: dict[str, str],
    ) -> None:
        """Write the context of all m passages into a re-ranker's folder; memory-mapped arrays are streamed.

        Args:
            values: fp16 or int8 [t, d]. offsets: int64 [m + 1]. scales: fp32 [t], for int8.
            titles: of the graph's n - m sections. corpus: `Dataset.corpus_digests`.
        """
        folder = reranker / CONTEXT
        folder.mkdir()
        for name, array in {"values": values, "offsets": offsets, "scales": scales}.items():
            if array is not None:
                np.save(folder / f"{name}.npy", array, allow_pickle=False)
        graph.save(folder)
        pq.write_table(pa.table({"title": titles}), folder / TITLES)
        (folder / CORPUS_DIGEST).write_text(json.dumps(corpus), encoding="utf-8")
