"""The edges into given nodes, and the neighbourhoods over several layers that training reads.

A neighbourhood of the context-only GAT belongs to one passage p: every edge out of p is left out of it, so the same
node may occur once for each p of a batch. A neighbourhood of the plain GAT is one graph for the whole batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.artifacts.document_graph import KINDS, SELF, DocumentGraph, inverse
from gnn_encoder.models.document_gat import Edges, Hop
from gnn_encoder.query_graph.neighborhoods import draw_per_group

CHUNK = 16_384
"""Nodes whose edges are read together."""


class Neighbourhood(NamedTuple):
    """What the GAT reads for g passages.

    `nodes` int64 [u]: the node of each row of the first layer's input, the g passages first; a node may have several
    rows. `hops`: one for each layer; the last one's targets are the g passages.
    """

    nodes: np.ndarray
    hops: list[Hop]


def edges_into(graph: DocumentGraph, nodes: np.ndarray, kinds: Sequence[str] = KINDS) -> Edges:
    """The edges of some types into `nodes` [t], ordered by type, then target, then source.

    `target` is an index into `nodes`, which may have a node twice; `source` is a node row.
    """
    target, source, kind = [], [], []
    positions = np.arange(len(nodes))
    for number, name in enumerate(KINDS):
        if name not in kinds:
            continue
        if name == SELF:
            target.append(positions)
            source.append(nodes)
        else:
            starts, stops = graph.indptr[number][nodes], graph.indptr[number][nodes + 1]
            target.append(np.repeat(positions, stops - starts))
            source.append(graph.sources[ranges(starts, stops)])
        kind.append(np.full(len(target[-1]), number))
    return Edges(*(np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (target, source, kind)))


def neighbourhood(
    graph: DocumentGraph,
    passages: np.ndarray,
    layers: int,
    *,
    context_only: bool,
    kinds: Sequence[str] = KINDS,
    limit: int = 0,
    generator: np.random.Generator | None = None,
) -> Neighbourhood:
    """The nodes and edges that `layers` layers need for the distinct `passages` [g].

    Args:
        context_only: leave out every edge out of a passage, its self-edge included, in the passage's own graph.
        limit: at most so many edges per type, target and layer, drawn by `generator`; 0: all. Self-edges stay.
    """
    n = len(graph)
    # A row of a layer is a node of a passage's own graph; without own graphs, all rows are of graph 0.
    graph_number = np.arange(len(passages)) if context_only else np.zeros(len(passages), np.int64)
    rows, hops = graph_number * n + passages, []
    for _ in range(layers):
        edges = edges_into(graph, rows % n, kinds)
        if context_only:
            edges = edges.take(edges.source != passages[rows[edges.target] // n])
        if limit:
            assert generator is not None
            group = edges.kind * (int(edges.target.max(initial=0)) + 1) + edges.target
            edges = edges.take(draw_per_group(group, limit, generator))
        heard = rows[edges.target] // n * n + edges.source
        below = np.concatenate([rows, np.setdiff1d(heard, rows)])
        order = np.argsort(below, kind="stable")
        source = order[np.searchsorted(below, heard, sorter=order)]
        hops.append(Hop(len(rows), edges._replace(source=source)))
        rows = below
    return Neighbourhood(rows % n, hops[::-1])


def around(graph: DocumentGraph, rows: np.ndarray, kinds: Sequence[str] = KINDS) -> np.ndarray:
    """The rows, and those one edge away in either direction, int64, ascending; without loss of own graphs.

    A row is a graph's number · n + a node, as in `neighbourhood`.
    """
    n = len(graph)
    stored = {KINDS.index(kind) for kind in kinds if kind != SELF}
    both = [KINDS[number] for number in sorted(stored | {inverse(number) for number in stored})]
    edges = edges_into(graph, rows % n, both)
    return np.union1d(rows, rows[edges.target] // n * n + edges.source)


def within(graph: DocumentGraph, nodes: np.ndarray, hops: int, kinds: Sequence[str] = KINDS) -> np.ndarray:
    """Bool [n]: the nodes that `hops` layers read for `nodes`."""
    reached = np.zeros(len(graph), bool)
    reached[nodes] = True
    front = np.unique(nodes)
    for _ in range(hops):
        parts = (front[start : start + CHUNK] for start in range(0, len(front), CHUNK))
        sources = np.unique(
            np.concatenate([front[:0], *(np.unique(edges_into(graph, p, kinds).source) for p in parts)])
        )
        front = sources[~reached[sources]]
        reached[front] = True
    return reached
