"""Cuts a smaller graph from a larger graph, for ablations: fewer neighbours, fewer edges or no features.

An ablation builds the largest graph once. Each variant's graph is cut from the largest graph.
"""

from dataclasses import replace

import numpy as np

from gnn_encoder.artifacts import Graph, reverse_csr
from gnn_encoder.errors import UserError
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.settings.graph import GraphShape

CHUNK = 4096
"""Queries whose edge features are copied at a time."""


def narrowed(graph: Graph, built: GraphShape, wanted: GraphShape) -> Graph:
    """Returns the graph that `build_graph` would make with the settings `wanted`; `graph` was made with `built`.

    Only the order of a query's labelled edges may differ, and nothing depends on this order. New edge features are
    stored in a temporary file without a name. Raises `UserError` if `wanted` has more than `built`.
    """
    _refuse_more(built, wanted)
    loops = wanted.edge_features == wanted.self_loop_features == "cross_encoder"
    graph = replace(
        graph,
        features=graph.features if wanted.edge_features == "cross_encoder" else None,
        query_loops=graph.query_loops if loops else None,
        passage_loops=graph.passage_loops if loops else None,
        retrieved=None if graph.retrieved is None else graph.retrieved[:, : wanted.retrieved],
    )
    if (wanted.neighbors, wanted.edges) == (built.neighbors, built.edges):
        return graph
    kept = np.zeros_like(graph.labelled)
    if "retrieved" in wanted.edge_kinds:
        kept[:, : wanted.neighbors] = True
    if "labelled" in wanted.edge_kinds:
        kept |= graph.labelled
    kept &= graph.edges >= 0
    order = np.argsort(~kept, axis=1, kind="stable")[:, : max(int(kept.sum(axis=1).max(initial=1)), 1)]
    exists = np.take_along_axis(kept, order, axis=1)
    edges = np.where(exists, np.take_along_axis(graph.edges, order, axis=1), -1)
    labelled = exists & np.take_along_axis(graph.labelled, order, axis=1) & ("labelled" in wanted.edge_kinds)
    indptr, reverse = reverse_csr(edges, len(graph.indptr) - 1)
    return replace(
        graph, edges=edges, labelled=labelled, indptr=indptr, reverse=reverse,
        features=None if graph.features is None else _gathered(graph.features, order),
        scales=None if graph.scales is None else _gathered(graph.scales, order),
    )  # fmt: skip


def _refuse_more(built: GraphShape, wanted: GraphShape) -> None:
    exceeding = {
        "neighbors": wanted.neighbors > built.neighbors and "retrieved" in wanted.edge_kinds,
        "retrieved": wanted.retrieved > built.retrieved,
        "edges": not wanted.edge_kinds <= built.edge_kinds,
        "edge_features": (wanted.edge_features, built.edge_features) == ("cross_encoder", "none"),
        "self_loop_features": (wanted.self_loop_features, built.self_loop_features) == ("cross_encoder", "learned"),
    }
    for name, is_more in exceeding.items():
        if is_more:
            raise UserError(f"{name} = {getattr(wanted, name)}: the graph was built with {getattr(built, name)}")


def _gathered(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """values[i, columns[i, j]] for all i, j."""
    out = scratch(*columns.shape, *values.shape[2:], dtype=values.dtype)
    for start in range(0, len(columns), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(columns)))
        out[rows] = values[rows[:, None], columns[rows]]
    return out
