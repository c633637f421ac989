"""Neighbourhoods: which edges they have, which edges they leave out, and drawing."""

import numpy as np
import pytest
from document_graphs import PASSAGES, random_graph

from gnn_encoder.artifacts.document_graph import EDGE_TYPES, KINDS
from gnn_encoder.document_graph.neighbourhoods import around, edges_into, neighbourhood, within


def sources(graph, kind: str, node: int) -> list[int]:
    number = EDGE_TYPES.index(kind)
    return graph.sources[graph.indptr[number, node] : graph.indptr[number, node + 1]].tolist()


def as_nodes(hood, layer: int) -> set[tuple[int, int, int]]:
    """(source node, target node, type) of a layer's edges."""
    edges = hood.hops[layer].edges
    return set(zip(hood.nodes[edges.source], hood.nodes[edges.target], edges.kind, strict=True))


def test_edges_into_nodes_equal_a_loop() -> None:
    graph, nodes = random_graph(), np.array([4, 20, 4, PASSAGES - 1])
    edges = list(zip(*edges_into(graph, nodes)[:3], strict=True))
    expected = [
        (target, source, kind)
        for kind, name in enumerate(KINDS)
        for target, node in enumerate(nodes)
        for source in ([node] if name == "self" else sources(graph, name, node))
    ]
    assert edges == expected and len(edges) > 8
    assert set(edges_into(graph, nodes, ("order", "self")).kind) <= {0, 8}


@pytest.mark.parametrize("context_only", [False, True])
def test_a_neighbourhood_has_every_edge_but_those_out_of_the_passage(context_only: bool) -> None:
    graph = random_graph()
    for passage in range(PASSAGES):
        hood = neighbourhood(graph, np.array([passage]), 3, context_only=context_only)
        assert hood.nodes[0] == passage and len(set(hood.nodes)) == len(hood.nodes)
        wanted = {passage}
        for layer in (2, 1, 0):
            edges = edges_into(graph, np.array(sorted(wanted)))
            target = np.array(sorted(wanted))[edges.target]
            kept = edges.source != passage if context_only else np.ones(len(target), bool)
            expected = set(zip(edges.source[kept], target[kept], edges.kind[kept], strict=True))
            assert as_nodes(hood, layer) == expected
            assert len(hood.hops[layer].edges.kind) == len(expected)
            wanted |= {int(source) for source, _, _ in expected}
        assert set(hood.nodes) == wanted


def test_own_graphs_do_not_mix() -> None:
    """Each passage's edges are left out of its own graph alone."""
    graph, passages = random_graph(), np.arange(PASSAGES)
    together = neighbourhood(graph, passages, 3, context_only=True)
    rows = neighbourhood(graph, passages, 3, context_only=False)
    assert len(set(rows.nodes)) == len(rows.nodes)
    single = [neighbourhood(graph, passages[i : i + 1], 3, context_only=True) for i in passages]
    assert len(together.nodes) == sum(len(alone.nodes) for alone in single)
    for layer in range(3):
        assert len(together.hops[layer].edges.kind) == sum(len(alone.hops[layer].edges.kind) for alone in single)
    assert len(rows.hops[0].edges.kind) < len(together.hops[0].edges.kind)


def test_drawn_neighbours_are_a_subset_and_change() -> None:
    graph, passages, limit = random_graph(), np.arange(PASSAGES), 1

    def draw(seed: int) -> list[set[tuple[int, int, int]]]:
        generator = np.random.default_rng(seed)
        hood = neighbourhood(graph, passages, 2, context_only=False, limit=limit, generator=generator)
        assert [hop.targets for hop in hood.hops][-1] == PASSAGES
        return [as_nodes(hood, layer) for layer in range(2)]

    every = neighbourhood(graph, passages, 2, context_only=False)
    full = [as_nodes(every, layer) for layer in range(2)]
    first, again, other = draw(0), draw(0), draw(1)
    assert first == again and first != other
    for layer in range(2):
        assert first[layer] < full[layer]
        groups = [(target, kind) for _, target, kind in first[layer]]
        assert len(set(groups)) == len(groups)
        # Every node still hears itself, and somebody of each type that it has.
        reached = {target for target, _ in groups}
        assert set(groups) == {(t, k) for _, t, k in full[layer] if t in reached}


def test_nodes_within_some_edges() -> None:
    graph = random_graph()
    start, expected = np.array([2, 9]), {2, 9}
    for hops in range(4):
        assert set(np.flatnonzero(within(graph, start, hops))) == expected
        expected |= set(edges_into(graph, np.array(sorted(expected))).source.tolist())
    one = around(graph, np.array([2, len(graph) + 9]))
    expected_rows = [
        number * len(graph) + node
        for number, p in enumerate(start)
        for node in {p, *edges_into(graph, np.array([p])).source}
    ]
    assert sorted(expected_rows) == one.tolist()
    # With some types alone, an edge counts in both directions.
    assert set(around(graph, np.array([2]), ("order", "order_inverse"))) == set(
        around(graph, np.array([2]), ("order",))
    )
