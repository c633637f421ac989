"""Computes the parts of a passage's h'_p: training queries, their attention weights, and the gate (eq. 3–10).

The weights of eq. 4 are computed for the neighbourhood of the given passages only, so the cost of an explanation does
not depend on the size of the corpus.

A weight is a query's share of the aggregated vector, not the query's effect on a score. For the effect, `without_edge`
leaves out one edge and computes the score again.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Graph
from gnn_encoder.artifacts.arrays import Rows
from gnn_encoder.models.gnn import GNN
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.neighborhoods import neighbourhood
from gnn_encoder.query_graph.propagation import neighbour_vectors, tensor

CHUNK = 512
"""Number of queries whose edge features are in memory at a time."""


@dataclass(frozen=True)
class QuerySide:
    """The weights of eq. 6 for u queries with k edges each; k is 0 without the query layer.

    `passages` int32 [u, k]: rows, -1 for an empty slot. `weights` fp32 [u, k, H]: 0 for an empty slot.
    `self_loops` fp32 [u, H]. The weights of a query sum to 1 for each head.
    """

    passages: np.ndarray
    weights: np.ndarray
    self_loops: np.ndarray


@dataclass(frozen=True)
class Explanation:
    """Eq. 8–10 for the passage of row `passage` with e incoming edges, largest mean weight first.

    queries    int64 [e]     graph queries (rows of `Graph.queries`) that the edges come from
    labelled   bool  [e]     whether the passage is a labelled positive of the query
    weights    fp32 [e, H]   attention weights; with `self_loop` they sum to 1 for each head
    self_loop  fp32 [H]      weight of the self-loop
    opening    fp32 [d]      value of the gate; 0 without layers
    vector     fp32 [d]      h'_p
    plain      fp32 [d]      h_p, at unit length if h'_p is
    query_side               weights in the vectors h'_q of the e queries
    """

    passage: int
    queries: np.ndarray
    labelled: np.ndarray
    weights: np.ndarray
    self_loop: np.ndarray
    opening: np.ndarray
    vector: np.ndarray
    plain: np.ndarray
    query_side: QuerySide


class Explainer:
    """Explains passages of one neighbourhood; propagates its queries once, on the device of the GNN's parameters."""

    def __init__(
        self,
        gnn: GNN,
        graph: Graph,
        query_vectors: Rows,
        cached_passages: Rows,
        passage_vectors: Rows,
        rows: np.ndarray,
    ) -> None:
        """Reads the neighbourhood of the distinct passages `rows` [t].

        Args:
            query_vectors: h_q [n, d]. cached_passages: passage vectors of eq. 6, [m, d]. passage_vectors: h_p [m, d].
                All may be memory-mapped.
        """
        self.gnn, self.graph, self._index = gnn, graph, {int(row): index for index, row in enumerate(rows)}
        self._where = next((p.device for p in gnn.parameters()), torch.device("cpu"))
        self._features = EdgeFeatures(graph)
        reached = rows if gnn.config.layers else rows[:0]  # without layers no edge is used
        self._hood = neighbourhood(graph, reached)
        self._passages = torch.from_numpy(np.asarray(passage_vectors[rows], np.float32)).to(self._where)
        with torch.inference_mode():
            self._queries, self._query_side = self._propagate_queries(query_vectors, cached_passages)

    def _propagate_queries(self, query_vectors: Rows, cached: Rows) -> tuple[Tensor, QuerySide]:
        """Returns h'_q [u, d] of the neighbourhood's queries (eq. 6–7), and the weights of eq. 6."""
        gnn, nodes, where = self.gnn, self._hood.nodes, self._where
        queries = torch.from_numpy(np.asarray(query_vectors[nodes], np.float32)).to(where)
        interactive = gnn.config.layers == 2
        neighbours = np.asarray(self.graph.edges[nodes]) if interactive else np.empty((len(nodes), 0), np.int32)
        weights = np.ones((len(nodes), gnn.config.heads, neighbours.shape[1] + 1), np.float32)
        for start in range(0, len(nodes), CHUNK) if interactive else ():
            part, rows = nodes[start : start + CHUNK], slice(start, start + CHUNK)
            vectors, exists = (torch.from_numpy(a).to(where) for a in neighbour_vectors(self.graph, part, cached))
            layer, features = gnn.query_attention, tensor(self._features.of_queries(part), where)
            arriving = layer.source_scalars(vectors) + layer.edge_scalars(features)
            loops = tensor(self._features.query_loops(part), where)
            attention = layer.dense_weights(queries[rows], exists, arriving, gnn.loops("query", loops))
            weights[rows] = attention.cpu().numpy()
            queries[rows] = gnn.interactive_queries(queries[rows], vectors, exists, arriving, loops)
        by_edge = weights.transpose(0, 2, 1)
        return queries, QuerySide(neighbours, by_edge[:, :-1], by_edge[:, -1])

    def explain(self, passage: int) -> Explanation:
        """Returns the parts of h'_p of the passage with row `passage`."""
        gnn, index = self.gnn, self._index[passage]
        edges, vectors = self._edges_into(index), self._passages[index : index + 1]
        with torch.inference_mode():
            if gnn.config.layers:
                aggregated, weights, self_loop = gnn.passage_attention.ragged(vectors, *self._around(passage, edges))
                opening, interactive = gnn.opening(aggregated, vectors), gnn.gated(aggregated, vectors)
            else:
                weights, self_loop = vectors.new_empty(0, gnn.config.heads), vectors.new_ones(1, gnn.config.heads)
                opening, interactive = torch.zeros_like(vectors), gnn.scaled(vectors)
            order = torch.argsort(weights.mean(dim=1), descending=True, stable=True).cpu().numpy()
            edges = edges[order]
            sources, side = self._hood.edges[0, edges], self._query_side
            return Explanation(
                passage=passage,
                queries=self._hood.nodes[sources],
                labelled=self.graph.labelled.reshape(-1)[self._hood.positions[edges]],
                weights=weights.cpu().numpy()[order],
                self_loop=self_loop[0].cpu().numpy(),
                opening=opening[0].cpu().numpy(),
                vector=interactive[0].cpu().numpy(),
                plain=gnn.scaled(vectors)[0].cpu().numpy(),
                query_side=QuerySide(side.passages[sources], side.weights[sources], side.self_loops[sources]),
            )

    def without_edge(self, passage: int, query: int, question: np.ndarray) -> tuple[np.ndarray, float]:
        """Returns h'_p [d] and its score for the query vector `question` [d], without one edge of the graph.

        The GNN uses an edge in both layers: passage → query in layer 1, and query → passage in layer 2. Without it h'_q
        changes, and so do the query's other passages. But this passage reads h'_q over the same edge only. So only the
        attention over the passage's other edges is computed again.

        Raises:
            ValueError: the edge does not exist.
        """
        index = self._index[passage]
        edges = self._edges_into(index)
        kept = edges[self._hood.nodes[self._hood.edges[0, edges]] != query]
        if len(kept) == len(edges):
            raise ValueError(f"no edge between graph query {query} and passage {passage}")
        with torch.inference_mode():
            vectors = self._passages[index : index + 1]
            aggregated, _, _ = self.gnn.passage_attention.ragged(vectors, *self._around(passage, kept))
            vector: np.ndarray = self.gnn.gated(aggregated, vectors)[0].cpu().numpy()
        return vector, float(question @ vector)

    def _edges_into(self, index: int) -> np.ndarray:
        """Returns the neighbourhood's edges into the passage at `index`; edges are ordered by passage."""
        first, last = np.searchsorted(self._hood.edges[1], [index, index + 1])
        return np.arange(first, last)

    def _around(self, passage: int, edges: np.ndarray) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Returns the arguments of a passage's GAT layer: sources, edges, edge features and self-loop features."""
        where, features = self._where, self._features
        source = torch.from_numpy(self._hood.edges[0, edges]).to(where)
        return (
            self._queries[source],
            torch.stack([torch.arange(len(edges), device=where), torch.zeros_like(source)]),
            tensor(features.of_edges(self._hood.positions[edges]), where),
            self.gnn.loops("passage", tensor(features.passage_loops(np.array([passage])), where)),
        )
