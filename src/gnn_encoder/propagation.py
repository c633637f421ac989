"""h'_q and h'_p of the full graph, in chunks over memory-mapped arrays (method as in encoding: eq. 6–10).

A node's result depends on its own neighbours alone, so neither the chunk size nor the order of rows
changes it.
"""

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Graph
from gnn_encoder.graph import EdgeFeatures, neighbourhood
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.models.gnn import GNN


def tensor(array: np.ndarray | None, like: torch.device) -> Tensor | None:
    """The array as a tensor on a device; None stays None."""
    return None if array is None else torch.from_numpy(np.ascontiguousarray(array)).to(like)


def neighbour_vectors(graph: Graph, nodes: np.ndarray, passage_vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vectors fp32 [u, k, d] of the passages that queries `nodes` [u] retrieved, and which edges exist, bool [u, k]."""
    neighbours = graph.edges[nodes]
    exists = neighbours >= 0
    return passage_vectors[np.where(exists, neighbours, 0)].astype(np.float32), exists


def propagate_queries(
    gnn: GNN, graph: Graph, query_vectors: np.ndarray, passage_vectors: np.ndarray, *, chunk: int = 2048
) -> np.ndarray:
    """h'_q fp32 [n, d] of every graph query (eq. 6–7).

    Args:
        query_vectors: h_q [n, d]. passage_vectors: M_de's vectors [m, d], memory-mapped.
    """
    features = EdgeFeatures(graph)
    where = device()
    out = np.empty_like(query_vectors, dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, len(out), chunk):
            nodes = np.arange(start, min(start + chunk, len(out)))
            neighbours, exists = neighbour_vectors(graph, nodes, passage_vectors)
            arrays = (query_vectors[nodes], neighbours, exists, features.of_queries(nodes), features.query_loops(nodes))
            out[nodes] = gnn.query_vectors(*(tensor(a, where) for a in arrays)).cpu().numpy()  # type: ignore[arg-type]
    return out


def propagate_passages(
    gnn: GNN, graph: Graph, passages: np.ndarray, passage_vectors: np.ndarray, query_vectors: np.ndarray
) -> np.ndarray:
    """h'_p fp32 [t, d] of some passages (eq. 8–10).

    Args:
        passages: rows [t]. passage_vectors: their h_p [t, d]. query_vectors: h'_q [n, d] of all graph queries.
    """
    features = EdgeFeatures(graph)
    where = device()
    hood = neighbourhood(graph, passages)
    arrays = (
        passage_vectors.astype(np.float32),
        query_vectors[hood.nodes],
        hood.edges,
        features.of_edges(hood.positions),
        features.passage_loops(passages),
    )
    with torch.inference_mode():
        vectors: np.ndarray = gnn.passage_vectors(*(tensor(a, where) for a in arrays)).cpu().numpy()  # type: ignore[arg-type]
    return vectors
