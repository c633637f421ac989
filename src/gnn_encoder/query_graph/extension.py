"""The part of a graph around some passages, with queries whose edges changed after the graph was built.

h'_p depends only on the queries with an edge to the passage, and on the passages of these queries (eq. 3–10). So a
graph of these queries gives the same vectors as the whole graph with the changed queries.
"""

from dataclasses import replace

import numpy as np

from gnn_encoder.artifacts import Graph, reverse_csr
from gnn_encoder.artifacts.added_labels import AddedNodes
from gnn_encoder.artifacts.arrays import Rows
from gnn_encoder.query_graph.neighborhoods import queries_reaching


def graph_around(
    graph: Graph, query_vectors: Rows, nodes: AddedNodes, passages: np.ndarray
) -> tuple[Graph, np.ndarray]:
    """The graph of the u queries with an edge to `passages` [t], after `nodes` have taken their places, and their h_q.

    All rows of passages are those of the whole graph. `Graph.queries` of the part has the dataset's query rows, and
    −1 − i for the new query i. The vectors are fp32 [u, d].

    Args:
        query_vectors: h_q [n, d] of the whole graph, memory-mapped.
    """
    k = graph.edges.shape[1]
    known = np.setdiff1d(queries_reaching(graph, passages), nodes.replaced)
    changed = np.flatnonzero(np.isin(nodes.edges, passages).any(axis=1))
    node = nodes.replaced[changed]
    width = max(k, nodes.edges.shape[1])

    def joined(stored: np.ndarray | None, added: np.ndarray | None, empty: int) -> np.ndarray | None:
        if stored is None or added is None:
            return None
        return np.concatenate([_widened(stored[known], width, empty), _widened(added[changed], width, empty)])

    edges = joined(graph.edges, nodes.edges, -1)
    labelled = joined(graph.labelled, nodes.labelled, 0)
    assert edges is not None and labelled is not None
    loops = None
    if graph.query_loops is not None and nodes.loops is not None:
        loops = np.concatenate([graph.query_loops[known], nodes.loops[changed]])
    part = replace(
        graph,
        queries=np.concatenate([graph.queries[known], np.where(node >= 0, graph.queries[node], -1 - changed)]),
        edges=edges,
        labelled=labelled,
        features=joined(graph.features, nodes.features, 0),
        scales=joined(graph.scales, nodes.scales, 0),
        query_loops=loops,
        retrieved=None,
        marked=graph.marks_labelled,
        **dict(zip(("indptr", "reverse"), reverse_csr(edges, len(graph.indptr) - 1), strict=True)),
    )
    vectors = np.concatenate([query_vectors[known], nodes.vectors[changed]]).astype(np.float32, copy=False)
    return part, vectors


def _widened(values: np.ndarray, width: int, empty: int) -> np.ndarray:
    """`values` [u, k, …] with `empty` in the columns from k to `width`."""
    missing = np.full((len(values), width - values.shape[1], *values.shape[2:]), empty, values.dtype)
    return np.concatenate([values, missing], axis=1)
