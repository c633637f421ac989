"""Computes content digests that identify texts and neighbourhoods across runs, whatever the ids and row numbers.

A text's digest is 128 bits of BLAKE2b, stored as two uint64. Given the models, h'_p depends on the passage's text and
on each query with an edge to the passage:
- on the query's text, and on the texts of its passages in order;
- on which of its edges are labelled, in particular the edge to this passage.
Edge features and M_de's vectors follow from the texts.
"""

import numpy as np

from gnn_encoder.artifacts import Graph, PassageTable
from gnn_encoder.artifacts.arrays import Rows
from gnn_encoder.artifacts.digests import WORDS, digests_of, text_digests
from gnn_encoder.query_graph.neighborhoods import edges_into

CHUNK = 65_536
"""Rows copied or digested at a time."""
ODD = np.uint64(0x9E3779B97F4A7C15)
"""Factor of a query's digest in a sum. Odd, so that the product modulo 2⁶⁴ keeps every bit of the digest."""


def passage_digests(passages: PassageTable) -> np.ndarray:
    """Digests uint64 [m, 2] of all passages (title and text), with a batch in memory at a time."""
    digests = np.empty((len(passages), 2), WORDS)
    start = 0
    for batch in passages.stream():
        digests[start : start + len(batch.ids)] = text_digests(batch.full_texts())
        start += len(batch.ids)
    return digests


def neighbourhood_digests(graph: Graph, queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """Digests [m, 2] of all passages' neighbourhoods. `queries` [n, 2] and `passages` [m, 2] are text digests."""
    nodes, k = np.empty_like(queries), graph.edges.shape[1]
    for start in range(0, len(nodes), CHUNK):
        part = slice(start, start + CHUNK)
        edges = graph.edges[part]
        around = np.where(edges[..., None] >= 0, passages[edges], np.uint64(0)).reshape(len(edges), 2 * k)
        rows = np.concatenate([queries[part], around, graph.labelled[part].astype(WORDS)], axis=1)
        nodes[part] = digests_of(row.tobytes() for row in rows)
    digests = passages.copy()
    for start in range(0, len(digests), CHUNK):
        into, positions = edges_into(graph, np.arange(start, min(start + CHUNK, len(digests))))
        # The digest is a sum because the order of queries does not matter. A labelled edge
        # has another factor. Otherwise two passages of equal text and queries, one of them labelled, would get one
        # digest.
        factor = ODD + 2 * graph.labelled.reshape(-1)[positions].astype(WORDS)
        np.add.at(digests, start + into, nodes[positions // k] * factor[:, None] + ODD)
    return digests


def carry_over(rows: np.ndarray, former: Rows, out: np.ndarray) -> np.ndarray:
    """Copies `former[rows[i]]` to `out[i]` where `rows[i]` ≥ 0. Returns the other indices i."""
    for start in range(0, len(rows), CHUNK):
        kept = start + np.flatnonzero(rows[start : start + CHUNK] >= 0)
        if len(kept):
            out[kept] = former[rows[kept]]
    return np.flatnonzero(rows < 0)
