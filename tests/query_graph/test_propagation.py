"""The folded, streamed propagation equals the plain GNN on the same graph, whatever the variant."""

import numpy as np
import pytest
import torch
from tiny_graph import VARIANTS, D, M, N, random_graph

from gnn_encoder.artifacts import Graph
from gnn_encoder.models.gnn import GNN, GnnConfig
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.neighborhoods import neighbourhood
from gnn_encoder.query_graph.propagation import Propagation, neighbour_vectors


def plain(gnn: GNN, graph: Graph, h_q: np.ndarray, h_p: np.ndarray, cached: np.ndarray) -> np.ndarray:
    """Eq. 6–10 by the modules that are trained, the whole graph at once."""

    def optional(array: np.ndarray | None) -> torch.Tensor | None:
        return None if array is None else torch.from_numpy(array)

    features, nodes = EdgeFeatures(graph), np.arange(N)
    neighbours, exists = neighbour_vectors(graph, nodes, cached)
    queries = gnn.query_vectors(
        torch.from_numpy(h_q), torch.from_numpy(neighbours), torch.from_numpy(exists),
        optional(features.of_queries(nodes)), optional(features.query_loops(nodes)),
    )  # fmt: skip
    hood = neighbourhood(graph, np.arange(M))
    passages = gnn.passage_vectors(
        torch.from_numpy(h_p), queries[hood.nodes], torch.from_numpy(hood.edges),
        optional(features.of_edges(hood.positions)), optional(features.passage_loops(np.arange(M))),
    )  # fmt: skip
    return passages.detach().numpy()


@pytest.mark.parametrize("heads", [1, 4])
@VARIANTS
def test_folded_equals_plain(heads: int, layers: int, gate: str, features: bool, labelled: bool, loops: bool) -> None:
    graph = random_graph(features, labelled, loops)
    torch.manual_seed(heads)
    config = GnnConfig(
        width=D, edge_width=EdgeFeatures(graph).width, heads=heads, layers=layers, gate=gate, learned_loops=not loops,  # type: ignore[arg-type]
        activation="elu", normalize_passages=True,
    )  # fmt: skip
    gnn = GNN(config).eval()
    for parameter in gnn.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    generator = np.random.default_rng(3)
    h_q, h_p, cached = (generator.normal(size=(rows, D)).astype(np.float32) for rows in (N, M, M))
    expected = plain(gnn, graph, h_q, h_p, cached)
    folded = Propagation(gnn, graph, h_q, cached, chunk=4)
    propagated = np.concatenate([folded.passages(rows, h_p[rows]) for rows in np.array_split(np.arange(M), 3)])
    assert np.abs(propagated - expected).max() < 1e-5
    written = np.zeros((M, D), np.float16)
    folded.write(written, np.arange(1, M), h_p, chunk=7)
    assert np.allclose(written[1:], expected[1:], atol=2e-3) and not written[0].any()
    shuffled = np.random.default_rng(4).permutation(M)
    assert np.abs(folded.passages(shuffled, h_p[shuffled]) - expected[shuffled]).max() < 1e-5
    apart = np.arange(M - 9, M)  # no query reaches these
    assert np.abs(folded.passages(apart, h_p[apart]) - expected[apart]).max() < 1e-5
    if layers:  # Control: other queries give other passages, where a query reaches them at all.
        other = Propagation(gnn, graph, h_q + 1, cached).passages(np.arange(M), h_p)
        moved, reached = np.abs(other - expected).max(axis=1) > 1e-4, np.diff(graph.indptr) > 0
        assert not moved[~reached].any() and moved[reached].mean() > 0.5
