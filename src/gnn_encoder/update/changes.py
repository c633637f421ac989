"""What changed since an earlier encoding, by content: neither ids nor row numbers need to have stayed.

A text's digest is 128 bits of BLAKE2b, kept as two uint64. Everything that h'_p depends on, models aside, is
its neighbourhood: its own text, and for each query that reaches it the query's text, all that query's passages
in their order, which of those edges are labelled, and whether its own is. (Edge features and M_de's vectors
follow from the texts.)
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

from gnn_encoder.artifacts import Graph, PassageTable
from gnn_encoder.query_graph.neighborhoods import edges_into

CHUNK = 65_536
"""Rows copied or digested at a time."""
WORDS = np.dtype("<u8")
ODD = np.uint64(0x9E3779B97F4A7C15)
"""Keeps a query's digest from cancelling a text's."""


def text_digests(texts: Iterable[str]) -> np.ndarray:
    """Digests uint64 [n, 2] of n texts."""
    return _words(text.encode() for text in texts)


def passage_digests(passages: PassageTable) -> np.ndarray:
    """Digests uint64 [m, 2] of all passages as models read them, a row group in memory at a time."""
    digests = np.empty((len(passages), 2), WORDS)
    start = 0
    for batch in passages.stream():
        digests[start : start + len(batch.ids)] = text_digests(batch.full_texts())
        start += len(batch.ids)
    return digests


def neighbourhood_digests(graph: Graph, queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """Digests uint64 [m, 2] of what each passage's h'_p depends on.

    Args:
        queries: digests of the texts of the graph's queries [n, 2]. passages: of all passages [m, 2].
    """
    nodes, k = np.empty_like(queries), graph.edges.shape[1]
    for start in range(0, len(nodes), CHUNK):
        part = slice(start, start + CHUNK)
        edges = graph.edges[part]
        around = np.where(edges[..., None] >= 0, passages[edges], np.uint64(0)).reshape(len(edges), 2 * k)
        rows = np.concatenate([queries[part], around, graph.labelled[part].astype(WORDS)], axis=1)
        nodes[part] = _words(row.tobytes() for row in rows)
    found = passages.copy()
    for start in range(0, len(found), CHUNK):
        into, positions = edges_into(graph, np.arange(start, min(start + CHUNK, len(found))))
        # A sum, for the order of a passage's queries means nothing; digests' words are as good as random.
        # Copies of a text are told apart by which of them is labelled: an odd factor of its own.
        factor = ODD + 2 * graph.labelled.reshape(-1)[positions].astype(WORDS)
        np.add.at(found, start + into, nodes[positions // k] * factor[:, None] + ODD)
    return found


def find(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Row in `known` [m, 2] of each digest of `wanted` [n, 2], int64 [n], -1 where it is not there."""
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(known[:, 0], kind="stable")
    place = np.minimum(np.searchsorted(known[:, 0], wanted[:, 0], sorter=order), len(known) - 1)
    rows = order[place]
    # Two digests that share a word alone: the second counts as new, which costs work and no error.
    return np.where((known[rows] == wanted).all(axis=1), rows, -1)


def carry_over(rows: np.ndarray, former: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Copy `former[rows[i]]` to `out[i]` wherever rows[i] is not -1; returns the i that remain to be made."""
    for start in range(0, len(rows), CHUNK):
        kept = start + np.flatnonzero(rows[start : start + CHUNK] >= 0)
        if len(kept):
            out[kept] = former[rows[kept]]
    return np.flatnonzero(rows < 0)


def _words(contents: Iterable[bytes]) -> np.ndarray:
    joined = b"".join(blake2b(content, digest_size=16).digest() for content in contents)
    return np.frombuffer(joined, WORDS).reshape(-1, 2)
