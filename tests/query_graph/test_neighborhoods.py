"""Neighbourhoods against a plain loop over the edges."""

import numpy as np
import pytest

from gnn_encoder.artifacts import Graph, reverse_csr
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.neighborhoods import neighbourhood


def random_graph(n=20, m=15, k=4, width=3, seed=0, labelled=False) -> Graph:
    generator = np.random.default_rng(seed)
    edges = np.stack([generator.permutation(m)[:k] for _ in range(n)]).astype(np.int32)
    edges[generator.random(edges.shape) < 0.2] = -1
    marks = (generator.random(edges.shape) < 0.3) & (edges >= 0) & labelled
    features = generator.standard_normal((n, k, width)).astype(np.float16) if width else None
    return Graph(np.arange(n, dtype=np.int32), edges, marks, features, *reverse_csr(edges, m))


def loop_edges(graph, passages, masked, dropped):
    edges = set()
    for t, p in enumerate(passages):
        for i in range(graph.edges.shape[0]):
            for j in range(graph.edges.shape[1]):
                if graph.edges[i, j] == p and not masked[i] and not dropped[i, j]:
                    edges.add((i, t, i * graph.edges.shape[1] + j))
    return edges


@pytest.mark.parametrize("seed", range(5))
def test_equals_a_loop(seed):
    graph, generator = random_graph(seed=seed), np.random.default_rng(seed)
    passages = generator.permutation(15)[:6]
    masked, dropped = generator.random(20) < 0.3, generator.random(graph.edges.shape) < 0.2
    hood = neighbourhood(graph, passages, masked=masked, dropped=dropped)
    edges = {(int(hood.nodes[s]), int(t), int(p)) for (s, t), p in zip(hood.edges.T, hood.positions, strict=True)}
    assert edges == loop_edges(graph, passages, masked, dropped)
    assert edges != loop_edges(graph, passages, np.zeros(20, bool), dropped)


def test_limit_keeps_at_most_that_many_per_passage_and_only_true_edges():
    graph = random_graph()
    passages = np.arange(15)
    hood = neighbourhood(graph, passages, limit=2, generator=np.random.default_rng(0))
    full = neighbourhood(graph, passages)
    kept, degree = np.bincount(hood.edges[1], minlength=15), np.bincount(full.edges[1], minlength=15)
    assert np.array_equal(kept, np.minimum(degree, 2)) and (degree > 2).any()
    assert set(hood.positions) < set(full.positions)


def test_features_follow_their_edges_and_marks_are_a_column():
    graph = random_graph(labelled=True)
    features = EdgeFeatures(graph)
    hood = neighbourhood(graph, np.arange(15))
    rows = features.of_edges(hood.positions)
    assert features.width == 4 and rows.shape == (len(hood.positions), 4)
    for row, position in zip(rows, hood.positions, strict=True):
        i, j = divmod(int(position), 4)
        assert np.array_equal(row[:3], graph.features[i, j].astype(np.float32)) and row[3] == graph.labelled[i, j]
    assert features.of_queries(np.array([3, 1])).shape == (2, 4, 4)


def test_no_features_is_none():
    features = EdgeFeatures(random_graph(width=0))
    assert features.width == 0 and features.of_edges(np.array([0, 1])) is None
