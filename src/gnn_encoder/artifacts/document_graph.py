"""The document graph as an artifact: typed edges between passages and sections, memory-mapped."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from gnn_encoder.artifacts.folder import Draft, read_manifest
from gnn_encoder.settings.documents import EDGE_KINDS

KINDS = EDGE_KINDS
"""All edge types. The edges from each node to itself are not stored."""
EDGE_TYPES, SELF = KINDS[:-1], KINDS[-1]
"""The stored edge types. A type's inverse has the number of the type with its lowest bit changed (`inverse`)."""
INDPTR, SOURCES = "indptr.npy", "sources.npy"


def inverse(kind: int) -> int:
    """The number of the inverse of a stored type, which has the same edges in the other direction."""
    return kind ^ 1


@dataclass(frozen=True)
class DocumentGraph:
    """The graph of structured documents (Albarede et al. 2022, section 2.1); both arrays are memory-mapped.

    The nodes 0 … m − 1 are the corpus's passages, later nodes are sections. An edge j → i carries the content of node j
    to node i. The types are named for the relation of j to i:

    order       i is the next passage in j's document: a passage hears the one before it
    structural  j is a part of i: a section hears its passages and subsections
    internal    j cites i, in one document: a node hears those that cite it
    external    the same between two documents

    indptr   int64 [8, n + 1]  the nodes that i hears by type t are sources[indptr[t, i]:indptr[t, i + 1]]
    sources  int32 [e]         node rows, ascending for each type and i
    passages                   m
    """

    indptr: np.ndarray
    sources: np.ndarray
    passages: int

    def __len__(self) -> int:
        return int(self.indptr.shape[1]) - 1

    @property
    def edges(self) -> dict[str, int]:
        """Number of edges of each type."""
        return {name: int(row[-1] - row[0]) for name, row in zip(EDGE_TYPES, self.indptr, strict=True)}

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a document graph."""
        return cls.load(Path(path), read_manifest(path, "document_graph").rows["passages"])

    @classmethod
    def load(cls, folder: Path, passages: int) -> Self:
        """Read the arrays in any folder."""
        indptr, sources = (np.load(folder / name, mmap_mode="r") for name in (INDPTR, SOURCES))
        return cls(indptr, sources, passages)

    def write(self, draft: Draft) -> None:
        """Write the arrays and the numbers of nodes, passages and edges."""
        self.save(draft.path)
        draft.rows(nodes=len(self), passages=self.passages, edges=len(self.sources))

    def save(self, folder: Path) -> None:
        """Write the arrays into any folder."""
        for name, array in ((INDPTR, self.indptr), (SOURCES, self.sources)):
            np.save(folder / name, array, allow_pickle=False)
