"""Computes content digests that identify texts and neighbourhoods across runs, whatever the ids and row numbers.

A text's digest is 128 bits of BLAKE2b, stored as two uint64. Given the models, h'_p depends on the passage's text and
on each query with an edge to the passage:
- on the query's text, and on the texts of its passages in order;
- on which of its edges are labelled, in particular the edge to this passage.
Edge features and M_de's vectors follow from the texts.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from gnn_encoder.artifacts import Graph, PassageTable
from gnn_encoder.artifacts.arrays import Rows
from gnn_encoder.query_graph.neighborhoods import edges_into

CHUNK = 65_536
"""Rows copied or digested at a time."""
WORDS = np.dtype("<u8")
ODD = np.uint64(0x9E3779B97F4A7C15)
"""Factor of a query's digest in a sum. Odd, so that the product modulo 2⁶⁴ keeps every bit of the digest."""


def text_digests(texts: Iterable[str]) -> np.ndarray:
    """Digests uint64 [n, 2] of n texts."""
    return _digests(text.encode() for text in texts)


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
        nodes[part] = _digests(row.tobytes() for row in rows)
    digests = passages.copy()
    for start in range(0, len(digests), CHUNK):
        into, positions = edges_into(graph, np.arange(start, min(start + CHUNK, len(digests))))
        # The digest is a sum because the order of queries does not matter. A labelled edge
        # has another factor. Otherwise two passages of equal text and queries, one of them labelled, would get one
        # digest.
        factor = ODD + 2 * graph.labelled.reshape(-1)[positions].astype(WORDS)
        np.add.at(digests, start + into, nodes[positions // k] * factor[:, None] + ODD)
    return digests


def find(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The row in `known` [m, 2] of each digest of `wanted` [n, 2], int64 [n]; -1: missing."""
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    # Both sides in order: a binary search for unordered digests waits for memory, seven times as long for 10 million.
    order, wanted_order = (np.argsort(digests[:, 0], kind="stable") for digests in (known, wanted))
    position = np.searchsorted(known[order, 0], wanted[wanted_order, 0])
    rows = np.empty(len(wanted), np.int64)
    rows[wanted_order] = order[np.minimum(position, len(known) - 1)]
    # If two known digests share the first word, one counts as missing. That costs time, not correctness.
    return np.where((known[rows] == wanted).all(axis=1), rows, -1)


def carry_over(rows: np.ndarray, former: Rows, out: np.ndarray) -> np.ndarray:
    """Copies `former[rows[i]]` to `out[i]` where `rows[i]` ≥ 0. Returns the other indices i."""
    for start in range(0, len(rows), CHUNK):
        kept = start + np.flatnonzero(rows[start : start + CHUNK] >= 0)
        if len(kept):
            out[kept] = former[rows[kept]]
    return np.flatnonzero(rows < 0)


def _digests(contents: Iterable[bytes]) -> np.ndarray:
    joined = b"".join(blake2b(content, digest_size=16).digest() for content in contents)
    return np.frombuffer(joined, WORDS).reshape(-1, 2)
