"""Finding texts and neighbourhoods of an earlier run again by content, whatever their ids and row numbers are now.

A text's digest is 128 bits of BLAKE2b, stored as two uint64. Apart from the models, h'_p depends on its neighbourhood:
the passage's text, and of each query with an edge to it the text, all passages in their order, which of those edges are
labelled, and whether the edge to this passage is. (Edge features and M_de's vectors follow from the texts.)
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
"""Prevents a query's digest from cancelling a text's."""


def text_digests(texts: Iterable[str]) -> np.ndarray:
    """Digests uint64 [n, 2] of n texts."""
    return _digests(text.encode() for text in texts)


def passage_digests(passages: PassageTable) -> np.ndarray:
    """Digests uint64 [m, 2] of all passages, title and text, a row group in memory at a time."""
    digests = np.empty((len(passages), 2), WORDS)
    start = 0
    for batch in passages.stream():
        digests[start : start + len(batch.ids)] = text_digests(batch.full_texts())
        start += len(batch.ids)
    return digests


def neighbourhood_digests(graph: Graph, queries: np.ndarray, passages: np.ndarray) -> np.ndarray:
    """Digests uint64 [m, 2] of all passages' neighbourhoods from text digests of queries [n, 2], passages [m, 2]."""
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
        # A sum, because the order of a passage's queries means nothing; the words of a digest are as good as random.
        # A labelled edge has another odd factor, so that copies of a text differ if one of them is labelled.
        factor = ODD + 2 * graph.labelled.reshape(-1)[positions].astype(WORDS)
        np.add.at(digests, start + into, nodes[positions // k] * factor[:, None] + ODD)
    return digests


def find(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The row in `known` [m, 2] of each digest of `wanted` [n, 2], int64 [n], -1 if missing."""
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(known[:, 0], kind="stable")
    place = np.minimum(np.searchsorted(known[:, 0], wanted[:, 0], sorter=order), len(known) - 1)
    rows = order[place]
    # Of two known digests with the same first word only one is found; the other counts as new, which only costs work.
    return np.where((known[rows] == wanted).all(axis=1), rows, -1)


def carry_over(rows: np.ndarray, former: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Copy `former[rows[i]]` to `out[i]` for each rows[i] that is not -1; returns the remaining i."""
    for start in range(0, len(rows), CHUNK):
        kept = start + np.flatnonzero(rows[start : start + CHUNK] >= 0)
        if len(kept):
            out[kept] = former[rows[kept]]
    return np.flatnonzero(rows < 0)


def _digests(contents: Iterable[bytes]) -> np.ndarray:
    joined = b"".join(blake2b(content, digest_size=16).digest() for content in contents)
    return np.frombuffer(joined, WORDS).reshape(-1, 2)
