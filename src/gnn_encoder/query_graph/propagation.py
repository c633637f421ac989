"""Computes h'_q and h'_p of the full graph, streamed over memory-mapped arrays with folded attention (eq. 3–10).

After training, the attention needs only H numbers per edge and layer, a_eᵀW_e h_ij. For its passages, a query is H
numbers and one projected vector, W_s h'_q. So one pass over the queries reads every edge feature once. The pass over
the passages reads no edge feature and projects no query again. The first pass stores its results in unlinked temporary
files, not in memory.

A node's result depends only on the node's neighbours, not on the chunk size or the order of rows.
"""

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Graph
from gnn_encoder.artifacts.arrays import JoinedRows, Rows
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.machine.threads import chunk_by_core
from gnn_encoder.models.dual_encoder import on_device
from gnn_encoder.models.gnn import GNN, GATLayer
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.neighborhoods import edges_into
from gnn_encoder.tracking.progress import Progress


class Propagation:
    """The full graph with all queries propagated (eq. 6–7), on the device of the GNN's parameters.

    Stored for n queries with k edges each: `projected` fp32 [H, n, d/H]: W_s h'_q, a table per head; `source_scalars`
    fp32 [n, H]: a_sᵀW_s h'_q; `edge_scalars` fp32 [n · k, H]: a_eᵀW_e h_ij, None without edge features.
    """

    def __init__(
        self,
        gnn: GNN,
        graph: Graph,
        query_vectors: Rows,
        cached_passages: Rows,
        *,
        nodes: np.ndarray | None = None,
        chunk: int = 128,
        progress: Progress | None = None,
    ) -> None:
        """Propagate the queries; reads every edge feature and the k passage vectors of each query once.

        Args:
            query_vectors: h_q [n, d]. cached_passages: h_p of eq. 6 [m, d], memory-mapped.
            nodes: int64, the queries to propagate: all neighbours of the passages that are needed later; None: all.
            chunk: queries per core at a time. progress: counts queries.
        """
        self.gnn, self.graph = gnn, graph
        self._where = where = next((p.device for p in gnn.parameters()), torch.device("cpu"))
        if gnn.config.layers == 0:
            return
        self._features = features = EdgeFeatures(graph)
        layer = gnn.passage_attention
        (n, k), heads = graph.edges.shape, layer.heads
        projected = scratch(heads, n, gnn.config.width // heads)
        source_scalars = scratch(n, heads)
        edge_scalars = None if layer.edge is None else scratch(n, k, heads)
        with torch.inference_mode():
            # a_eᵀW_e of both layers at once, [d_e, layers · H], because reading the features takes most of the time.
            folded = [part.folded_edge() for part in gnn.children() if isinstance(part, GATLayer)]
            folded_edges = torch.cat([part for part in folded if part is not None] or [torch.zeros(0, 0)], dim=1)

        def propagate(start: int) -> int:
            part = slice(start, min(start + chunk, n)) if nodes is None else nodes[start : start + chunk]
            with torch.inference_mode():
                edge_features = tensor(features.of_queries(part), where)
                scalars = torch.zeros(1, device=where)
                if edge_features is not None and edge_scalars is not None:
                    scalars = edge_features @ folded_edges
                    edge_scalars[part] = scalars[..., -heads:].cpu().numpy()
                queries = torch.from_numpy(query_vectors[part]).float().to(where)
                if gnn.config.layers == 2:
                    arrays = neighbour_vectors(graph, part, cached_passages)
                    passages, exists = (torch.from_numpy(array).to(where) for array in arrays)
                    arriving = gnn.query_attention.source_scalars(passages) + scalars[..., :heads]
                    loops = tensor(features.query_loops(part), where)
                    queries = gnn.interactive_queries(queries, passages, exists, arriving, loops)
                projected[:, part] = layer.project(queries).transpose(0, 1).cpu().numpy()
                source_scalars[part] = layer.source_scalars(queries).cpu().numpy()
            return len(queries)

        chunk_by_core(propagate, range(0, n if nodes is None else len(nodes), chunk), where, progress)
        self.projected = torch.from_numpy(projected).to(where)
        self.source_scalars = torch.from_numpy(source_scalars).to(where)
        self.edge_scalars = tensor(None if edge_scalars is None else edge_scalars.reshape(n * k, heads), where)

    def only(self, queries: np.ndarray) -> "Propagation":
        """The same propagation of a graph with the edges of some queries alone, bool [n].

        A query's vector does not depend on other queries, so nothing is propagated again.
        """
        k, flat = self.graph.edges.shape[1], self.graph.reverse
        kept = queries[flat // k]
        indptr = np.concatenate([[0], np.cumsum(kept)])[self.graph.indptr]
        part = copy.copy(self)
        part.graph = replace(self.graph, indptr=indptr, reverse=flat[kept])
        return part

    def write(
        self,
        vectors: np.ndarray,
        rows: np.ndarray,
        passage_vectors: Rows,
        *,
        chunk: int = 2048,
        progress: Progress | None = None,
    ) -> None:
        """Write h'_p of the passages `rows` [t] into the rows `rows` of `vectors` [m, d] (eq. 8–10).

        Args:
            passage_vectors: h_p [m, d], memory-mapped. chunk: passages per core at a time. progress: counts passages.
        """

        def propagate(start: int) -> int:
            part = rows[start : start + chunk]
            vectors[part] = self.passages(part, _gathered(passage_vectors, part).numpy())
            return len(part)

        chunk_by_core(propagate, range(0, len(rows), chunk), self._where, progress)

    def passages(self, rows: np.ndarray, passage_vectors: np.ndarray) -> np.ndarray:
        """h'_p fp32 [t, d] of the passages `rows` [t] from their h_p [t, d] (eq. 8–10)."""
        gnn = self.gnn
        with torch.inference_mode():
            vectors = torch.from_numpy(np.ascontiguousarray(passage_vectors)).float().to(self._where)
            interactive = gnn.scaled(vectors) if gnn.config.layers == 0 else self._interactive(rows, vectors)
            return interactive.cpu().numpy()

    def _interactive(self, rows: np.ndarray, vectors: Tensor) -> Tensor:
        """h'_p [t, d] of passages with stored query scalars (eq. 8–10)."""
        gnn, layer, where = self.gnn, self.gnn.passage_attention, self._where
        into, positions = edges_into(self.graph, rows)
        # Edges are ordered by passage, so a sum per passage needs only the begin of each passage's edges.
        begins = torch.from_numpy(np.searchsorted(into, np.arange(len(rows)))).to(where)
        target, position = torch.from_numpy(into).to(where), torch.from_numpy(positions).to(where)
        source = position // self.graph.edges.shape[1]
        arriving = self.source_scalars[source]
        if self.edge_scalars is not None:
            arriving = arriving + self.edge_scalars[position]
        loops = gnn.loops("passage", tensor(self._features.passage_loops(rows), where))
        incoming, itself = layer.weights(vectors, arriving, target, loops)
        mixed = itself[..., None] * layer.project(vectors)
        for head, table in enumerate(self.projected):
            mixed[:, head] += torch.nn.functional.embedding_bag(
                source, table, begins, mode="sum", per_sample_weights=incoming[:, head].contiguous()
            )
        return gnn.gated(layer.activate(mixed), vectors)


def tensor(array: np.ndarray | None, like: torch.device) -> Tensor | None:
    """The array as a tensor on a device; None for None."""
    return None if array is None else on_device(np.ascontiguousarray(array), like)


def neighbour_vectors(graph: Graph, nodes: np.ndarray | slice, passage_vectors: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Vectors fp32 [u, k, d] of the neighbours of queries `nodes` [u], and whether each edge exists, bool [u, k]."""
    neighbours = graph.edges[nodes]
    exists = neighbours >= 0
    vectors = _gathered(passage_vectors, np.where(exists, neighbours, 0).ravel())
    return vectors.view(*neighbours.shape, passage_vectors.shape[1]).numpy(), exists


def _gathered(vectors: Rows, rows: np.ndarray) -> Tensor:
    """`vectors[rows]` in fp32. torch lets other threads run while it waits for the disk; NumPy, for parts, does not."""
    if isinstance(vectors, JoinedRows):
        return torch.from_numpy(vectors[rows]).float()
    return torch.index_select(torch.from_numpy(vectors), 0, torch.from_numpy(rows)).float()
