"""Typed edges between the passages of documents, as the passage layer of the GNN reads them.

Their sources are passages' vectors before the GNN, as in eq. 6. So h'_p depends on the texts one edge away, and on no
query that is not in the neighbourhood already: masking needs no second rule.
"""

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Graph
from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.errors import UserError
from gnn_encoder.models.gnn import GNN


def edges_of_types(graph: Graph, passages: np.ndarray) -> list[np.ndarray]:
    """For each type, the edges into `passages` [t]: int64 [2, e], passage row and (ascending) index into `passages`."""
    if graph.typed_indptr is None or graph.typed_sources is None:
        raise UserError("the GNN reads document edges, but the graph has none: set build_graph.structure=edges")
    found = []
    for indptr in graph.typed_indptr:
        starts, stops = indptr[passages], indptr[passages + 1]
        target = np.repeat(np.arange(len(passages)), stops - starts)
        found.append(np.stack([graph.typed_sources[ranges(starts, stops)], target]).astype(np.int64))
    return found


def from_documents(gnn: GNN, graph: Graph, rows: np.ndarray, passages: Tensor, stored: np.ndarray) -> Tensor | None:
    """What the typed edges add to h~_p of the passages `rows` [t], [t, d]; None for a GNN that reads no such edges.

    Args:
        passages: h_p [t, d]. stored: vectors [m, d] of all passages, the sources of the edges; may be memory-mapped.
    """
    if not gnn.config.reads_structure:
        return None
    edges = edges_of_types(graph, rows)
    distinct, place = np.unique(np.concatenate([each[0] for each in edges]), return_inverse=True)
    where, start = passages.device, 0
    of_types = []
    for each in edges:
        stop = start + each.shape[1]
        of_types.append(torch.from_numpy(np.stack([place[start:stop], each[1]])).to(where))
        start = stop
    sources = torch.from_numpy(np.asarray(stored[distinct], np.float32)).to(where)
    heard: Tensor = gnn.structure_attention(passages, sources, of_types)
    return heard
