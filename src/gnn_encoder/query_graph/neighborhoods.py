"""The edges into given passages, without edges from masked queries.

No Python loop runs per node or edge. The graph of a masked round is never built: a mask over queries suffices.
"""

from dataclasses import dataclass

import numpy as np

from gnn_encoder.artifacts import Graph
from gnn_encoder.artifacts.arrays import ranges

CHUNK = 65_536
"""Passages whose edges are read together."""


@dataclass(frozen=True)
class Neighbourhood:
    """The edges into t target passages.

    `nodes` int64 [u]: the distinct graph queries of the edges, ascending; `edges` int64 [2, e]: index into `nodes` and
    index into the targets (ascending); `positions` int64 [e]: each edge's flat position in [n, k].
    """

    nodes: np.ndarray
    edges: np.ndarray
    positions: np.ndarray


def neighbourhood(
    graph: Graph,
    passages: np.ndarray,
    *,
    masked: np.ndarray | None = None,
    dropped: np.ndarray | None = None,
    limit: int = 0,
    generator: np.random.Generator | None = None,
) -> Neighbourhood:
    """The edges from queries to `passages` [t].

    Args:
        masked: bool [n], queries masked in this round.
        dropped: bool [n, k], edges left out (`train_gnn.mask=drop_positives`).
        limit: at most this many edges per passage, drawn by `generator`; 0: all.
    """
    target, positions = edges_into(graph, passages)
    node = positions // graph.edges.shape[1]
    keep = np.ones(len(positions), dtype=bool)
    if masked is not None:
        keep &= ~masked[node]
    if dropped is not None:
        keep &= ~dropped.reshape(-1)[positions]
    target, positions = target[keep], positions[keep]
    if limit:
        assert generator is not None
        drawn = draw_per_group(target, limit, generator)
        target, positions = target[drawn], positions[drawn]
    nodes, source = np.unique(positions // graph.edges.shape[1], return_inverse=True)
    return Neighbourhood(nodes, np.stack([source, target]).astype(np.int64), positions)


def edges_into(graph: Graph, passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges into `passages` [t]: index into `passages` (ascending) and flat position in [n, k], both int64 [e]."""
    starts, stops = graph.indptr[passages], graph.indptr[passages + 1]
    return np.repeat(np.arange(len(passages)), stops - starts), graph.reverse[ranges(starts, stops)]


def queries_reaching(graph: Graph, passages: np.ndarray) -> np.ndarray:
    """The graph queries with an edge to at least one of `passages` [t], int64, ascending."""
    reached = np.zeros(len(graph.queries), dtype=bool)
    for start in range(0, len(passages), CHUNK):
        _, positions = edges_into(graph, passages[start : start + CHUNK])
        reached[positions // graph.edges.shape[1]] = True
    return np.flatnonzero(reached)


def draw_per_group(group: np.ndarray, limit: int, generator: np.random.Generator) -> np.ndarray:
    """Draws up to `limit` random members of each group; returns row numbers, ascending. `group` is ascending."""
    order = np.lexsort((generator.random(len(group)), group))
    first = np.searchsorted(group, group, side="left")
    return np.sort(order[np.arange(len(group)) - first < limit])
