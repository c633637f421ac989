"""A graph cut from a larger one is the graph that would have been built."""

from dataclasses import replace

import numpy as np
import pytest

from gnn_encoder.artifacts import Graph, reverse_csr
from gnn_encoder.errors import UserError
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.narrowing import narrowed
from gnn_encoder.settings.graph import GraphShape

N, M, WIDTH = 40, 30, 5


def built(k: int, positives: np.ndarray, shape: GraphShape) -> Graph:
    """As `build_graph` makes it: the first k of each query's ranking, then labelled positives that are missing."""
    generator = np.random.default_rng(0)
    ranking = np.stack([generator.permutation(M) for _ in range(N)]).astype(np.int32)
    feature = generator.standard_normal((N, M, WIDTH)).astype(np.float16)
    edges = ranking[:, : k if "retrieved" in shape.edges else 0]
    labelled = np.zeros_like(edges, dtype=bool)
    if "labelled" in shape.edges:
        missing = ~(edges == positives[:, None]).any(axis=1)
        edges = np.concatenate([edges, np.where(missing, positives, -1)[:, None].astype(np.int32)], axis=1)
        labelled = edges == positives[:, None]
    return Graph(
        np.arange(N, dtype=np.int32), edges, labelled, feature[np.arange(N)[:, None], edges],
        *reverse_csr(edges, M), np.ones((N, WIDTH)), np.ones((M, WIDTH)), ranking[:, : shape.retrieved],
    )  # fmt: skip


def neighbours(graph: Graph) -> list[dict[int, tuple[bool, bytes]]]:
    """Each query's edges: passage → whether it is labelled, and the features."""
    assert graph.features is not None
    return [
        {int(p): (bool(graph.labelled[q, i]), graph.features[q, i].tobytes()) for i, p in enumerate(row) if p >= 0}
        for q, row in enumerate(graph.edges)
    ]


@pytest.mark.parametrize("k", [2, 6, 9])
@pytest.mark.parametrize("edges", ["retrieved", "retrieved+labelled", "labelled", "none"])
def test_equals_a_graph_built_so(k: int, edges: str) -> None:
    positives = np.random.default_rng(1).integers(0, M, N).astype(np.int32)
    large = GraphShape(neighbors=9, edges="retrieved+labelled", retrieved=12, self_loop_features="cross_encoder")
    wanted = GraphShape.model_validate({"neighbors": k, "edges": edges, "retrieved": 7})
    cut, expected = narrowed(built(9, positives, large), large, wanted), built(k, positives, wanted)
    assert neighbours(cut) == neighbours(expected)
    assert np.array_equal(cut.indptr, expected.indptr) and cut.retrieved.shape == (N, 7)
    for passage in range(M):
        into = cut.reverse[cut.indptr[passage] : cut.indptr[passage + 1]]
        assert (cut.edges.ravel()[into] == passage).all() and (np.diff(into) > 0).all()
    assert cut.query_loops is None and cut.passage_loops is None
    assert EdgeFeatures(cut).marked == (edges == "retrieved+labelled")


def test_eight_bit_features_keep_their_scales() -> None:
    positives = np.zeros(N, np.int32)
    large, small = GraphShape(neighbors=9, retrieved=9), GraphShape(neighbors=4, retrieved=9)
    graph = built(9, positives, large)
    scales = np.random.default_rng(2).random((N, 9)).astype(np.float32)
    cut = narrowed(replace(graph, features=graph.edges[..., None].astype(np.int8), scales=scales), large, small)
    assert np.array_equal(cut.scales, scales[:, :4]) and np.array_equal(cut.features[..., 0], graph.edges[:, :4])


def test_without_edge_features_there_are_none_of_self_loops() -> None:
    both = GraphShape(neighbors=5, retrieved=8, edges="retrieved+labelled", self_loop_features="cross_encoder")
    graph = built(5, np.zeros(N, np.int32), both)
    cut = narrowed(graph, both, both.model_copy(update={"edge_features": "none"}))
    assert cut.features is None and cut.query_loops is None and cut.passage_loops is None
    assert narrowed(graph, both, both).query_loops is graph.query_loops


def test_refuses_what_was_not_built() -> None:
    shape = GraphShape(neighbors=5, retrieved=8)
    graph = built(5, np.zeros(N, np.int32), shape)
    for more in ({"neighbors": 6}, {"retrieved": 9}, {"edges": "retrieved+labelled"},
                 {"edges": "labelled"}, {"self_loop_features": "cross_encoder"}):  # fmt: skip
        with pytest.raises(UserError, match=next(iter(more))):
            narrowed(graph, shape, GraphShape.model_validate({"neighbors": 5, "retrieved": 8, **more}))
    with pytest.raises(UserError, match="edges"):
        narrowed(graph, shape.model_copy(update={"edges": "none"}), shape)
    without = shape.model_copy(update={"edge_features": "none"})
    assert narrowed(graph, shape, without).features is None
    with pytest.raises(UserError, match="edge_features"):
        narrowed(graph, without, shape)
