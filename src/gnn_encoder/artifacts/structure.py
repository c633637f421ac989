"""The documents of a dataset, where the data have any: nodes, their parents and order, and citations between them.

nodes.parquet      node_id, title, and int32: document, parent, place
documents.parquet  document_id, one row for each number of a document
citations.parquet  source, target (int32 rows of nodes)

Row i of the nodes is passage i as long as there are passages. The rows after them are sections, which have a title but
no text. A passage may be the parent of others, because some data have headings among their passages.
"""

from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NODES, DOCUMENTS, CITATIONS = "nodes.parquet", "documents.parquet", "citations.parquet"
TEXT, NUMBER = pa.string(), pa.int32()
STRUCTURE_SCHEMAS = {
    NODES: pa.schema({"node_id": TEXT, "title": TEXT, "document": NUMBER, "parent": NUMBER, "place": NUMBER}),
    DOCUMENTS: pa.schema({"document_id": TEXT}),
    CITATIONS: pa.schema({"source": NUMBER, "target": NUMBER}),
}


class Structure:
    """Reads the structure of a dataset with `passages` passages; each column is read when it is first used."""

    def __init__(self, folder: Path, passages: int) -> None:
        self._folder, self.passages = folder, passages

    def __len__(self) -> int:
        """Number of nodes, n."""
        return int(pq.read_metadata(self._folder / NODES).num_rows)

    @cached_property
    def titles(self) -> pa.ChunkedArray:
        """A section's own title; empty for a passage [n]."""
        return self._column(NODES, "title")

    @property
    def sections(self) -> pa.ChunkedArray:
        """The titles of the sections without a passage [n - m]."""
        return self.titles.slice(self.passages)

    @cached_property
    def document(self) -> np.ndarray:
        """The number of each node's document, int32 [n]."""
        return self._numbers(NODES, "document")

    @cached_property
    def parent(self) -> np.ndarray:
        """The row of each node's parent in the same document, int32 [n]; -1 without a parent. There is no cycle."""
        return self._numbers(NODES, "parent")

    @cached_property
    def place(self) -> np.ndarray:
        """Each node's place in the reading order of its document, int32 [n]: 0, 1, …; sections count, too."""
        return self._numbers(NODES, "place")

    @cached_property
    def document_ids(self) -> pa.ChunkedArray:
        """Text ids of the documents."""
        return self._column(DOCUMENTS, "document_id")

    @cached_property
    def citations(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows int32 [c] of citing and of cited nodes, sorted by both; each pair once, and no node cites itself."""
        return self._numbers(CITATIONS, "source"), self._numbers(CITATIONS, "target")

    def _column(self, file: str, name: str) -> pa.ChunkedArray:
        return pq.read_table(self._folder / file, columns=[name]).column(0)

    def _numbers(self, file: str, name: str) -> np.ndarray:
        return np.asarray(self._column(file, name).to_numpy())
