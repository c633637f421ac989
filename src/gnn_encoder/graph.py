"""Neighbourhoods in the query–passage graph, gathered from its arrays: no Python loop per node or edge.

A masked round's graph is never built: it is the whole graph and a boolean over queries.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import torch

from gnn_encoder.artifacts import Graph

CHUNK = 65_536
"""Passages whose edges are looked at together."""


@dataclass(frozen=True)
class Neighbourhood:
    """The edges that reach t target passages.

    `nodes` int64 [u]: the distinct graph queries they come from, ascending; `edges` int64 [2, e]: index
    into `nodes` and index into the targets; `positions` int64 [e]: each edge's flat place in [n, k].
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
        masked: bool [n], queries that are out of the graph in this round.
        dropped: bool [n, k], edges that are out of the graph (the ablation without masking).
        limit: at most this many edges per passage, drawn by `generator`; 0: all.
    """
    target, positions = edges_into(graph, passages)
    node = positions // graph.edges.shape[1]
    keep = np.ones(len(positions), dtype=bool)
    if masked is not None:
        keep &= ~masked[node]
    if dropped is not None:
        keep &= ~dropped.reshape(-1)[positions]
    target, positions, node = target[keep], positions[keep], node[keep]
    if limit:
        assert generator is not None
        chosen = _draw_per_group(target, limit, generator)
        target, positions, node = target[chosen], positions[chosen], node[chosen]
    nodes, source = np.unique(node, return_inverse=True)
    return Neighbourhood(nodes, np.stack([source, target]).astype(np.int64), positions)


def edges_into(graph: Graph, passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges that reach `passages` [t], int64 [e]: index into them, ascending, and flat place in [n, k]."""
    starts, stops = graph.indptr[passages], graph.indptr[passages + 1]
    return np.repeat(np.arange(len(passages)), stops - starts), graph.reverse[_ranges(starts, stops)]


def queries_reaching(graph: Graph, passages: np.ndarray) -> np.ndarray:
    """The queries with an edge to any of `passages` [t], int64, ascending."""
    reached = np.zeros(len(graph.queries), dtype=bool)
    for start in range(0, len(passages), CHUNK):
        _, positions = edges_into(graph, passages[start : start + CHUNK])
        reached[positions // graph.edges.shape[1]] = True
    return np.flatnonzero(reached)


def _ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The concatenation of arange(start, stop) for each pair."""
    counts = stops - starts
    before = np.cumsum(counts) - counts
    ranges: np.ndarray = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return ranges


def _draw_per_group(group: np.ndarray, limit: int, generator: np.random.Generator) -> np.ndarray:
    """Rows, ascending, of up to `limit` random members of each group; `group` is ascending."""
    order = np.lexsort((generator.random(len(group)), group))
    first = np.searchsorted(group, group, side="left")
    drawn: np.ndarray = np.sort(order[np.arange(len(group)) - first < limit])
    return drawn


def mapped(array: np.ndarray) -> torch.Tensor:
    """The array as a tensor that shares its memory, to be read only; torch warns of one that cannot be written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


class EdgeFeatures:
    """Edge features fp32 as the GNN reads them: [CLS] vectors, and one more column where labelled edges are marked.

    `width` is 0 where there are none (the ablation "without edge features"); every method then gives None.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.marked = bool(graph.labelled.any())
        self.width = graph.feature_width + int(self.marked)

    def of_edges(self, positions: np.ndarray) -> np.ndarray | None:
        """[e, width] of the edges at flat positions [e]."""
        features = self.graph.features
        flat = None if features is None else features.reshape(-1, features.shape[-1])[positions]
        return self._join(flat, self.graph.labelled.reshape(-1)[positions])

    def of_queries(self, nodes: np.ndarray | slice) -> np.ndarray | None:
        """[u, k, width] of all edges of the queries `nodes` [u]."""
        features = self.graph.features
        return self._join(None if features is None else features[nodes], self.graph.labelled[nodes])

    def query_loops(self, nodes: np.ndarray | slice) -> np.ndarray | None:
        """[u, width] of queries' self-loops, where they are not learned."""
        return self._loops(self.graph.query_loops, nodes)

    def passage_loops(self, passages: np.ndarray) -> np.ndarray | None:
        """[t, width] of passages' self-loops, where they are not learned."""
        return self._loops(self.graph.passage_loops, passages)

    def _loops(self, loops: np.ndarray | None, rows: np.ndarray | slice) -> np.ndarray | None:
        if loops is None:
            return None
        vectors = loops[rows]
        return self._join(vectors, np.zeros(len(vectors), dtype=bool))

    def _join(self, vectors: np.ndarray | None, labelled: np.ndarray) -> np.ndarray | None:
        # torch widens halves with SIMD on all cores, NumPy one by one.
        parts = [] if vectors is None else [mapped(vectors).float().numpy()]
        if self.marked:
            parts.append(labelled[..., None].astype(np.float32))
        return np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0] if parts else None
