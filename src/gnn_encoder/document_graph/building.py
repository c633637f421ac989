"""Builds the typed edges of a document graph from parents, reading order and citations, without a loop over nodes."""

import numpy as np

from gnn_encoder.artifacts.document_graph import EDGE_TYPES, DocumentGraph


def document_graph(
    passages: int,
    document: np.ndarray,
    parent: np.ndarray,
    reading_order: np.ndarray,
    citing: np.ndarray,
    cited: np.ndarray,
) -> DocumentGraph:
    """The graph of n nodes, of which the first `passages` are passages and the rest sections.

    A citation that occurs twice is one edge; a node that cites itself gets no edge, since every node hears itself.

    Args:
        document: int32 [n], number of each node's document. parent: int32 [n], node row; -1: none.
        reading_order: int32 [n], each node's place within the document.
        citing, cited: int32 [c], node rows of the citations.
    """
    nodes = len(document)
    reading = np.lexsort((reading_order[:passages], document[:passages])).astype(np.int32)
    before, after = reading[:-1], reading[1:]
    follows = document[before] == document[after]
    part = np.flatnonzero(parent >= 0).astype(np.int32)
    key = np.unique(citing.astype(np.int64) * nodes + cited)[:, None] // (nodes, 1) % nodes
    citing, cited = key[key[:, 0] != key[:, 1]].T.astype(np.int32)
    inside = document[citing] == document[cited]
    relations = {
        "order": (before[follows], after[follows]),
        "structural": (part, parent[part]),
        "internal": (citing[inside], cited[inside]),
        "external": (citing[~inside], cited[~inside]),
    }
    indptr, parts = np.zeros((len(EDGE_TYPES), nodes + 1), np.int64), []
    total = 0
    for number, name in enumerate(EDGE_TYPES):
        first, second = relations[name.removesuffix("_inverse")]
        source, target = (second, first) if name.endswith("_inverse") else (first, second)
        parts.append(source[np.lexsort((source, target))].astype(np.int32))
        np.cumsum(np.bincount(target, minlength=nodes), out=indptr[number, 1:])
        indptr[number] += total
        total += len(source)
    return DocumentGraph(indptr, np.concatenate(parts), passages)
