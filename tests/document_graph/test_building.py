"""The typed edges equal those of a plain loop, and survive storage."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from document_graphs import PASSAGES, random_graph, random_structure

from gnn_encoder.artifacts import DocumentGraph, drafting
from gnn_encoder.artifacts.document_graph import EDGE_TYPES, inverse
from gnn_encoder.document_graph.building import document_graph


def loop(document, parent, reading_order, citing, cited) -> dict[str, set[tuple[int, int]]]:
    """Type → edges (source, target)."""
    edges: dict[str, set[tuple[int, int]]] = {name: set() for name in EDGE_TYPES}
    for number in set(document[:PASSAGES]):
        read = sorted((p for p in range(PASSAGES) if document[p] == number), key=lambda p: reading_order[p])
        edges["order"] |= set(pairwise(read))
    edges["structural"] = {(node, above) for node, above in enumerate(parent) if above >= 0}
    for a, b in zip(citing.tolist(), cited.tolist(), strict=True):
        if a != b:
            edges["internal" if document[a] == document[b] else "external"].add((a, b))
    for name in EDGE_TYPES[::2]:
        edges[f"{name}_inverse"] = {(b, a) for a, b in edges[name]}
    return edges


def stored(graph: DocumentGraph) -> dict[str, list[tuple[int, int]]]:
    return {
        name: [
            (int(source), node)
            for node in range(len(graph))
            for source in graph.sources[graph.indptr[number, node] : graph.indptr[number, node + 1]]
        ]
        for number, name in enumerate(EDGE_TYPES)
    }


@pytest.mark.parametrize("seed", range(5))
def test_edges_equal_a_loop(seed: int) -> None:
    structure = random_structure(seed)
    graph, expected = document_graph(PASSAGES, **structure), loop(**structure)
    built_edges = stored(graph)
    assert {name: set(edges) for name, edges in built_edges.items()} == expected
    assert all(
        len(set(edges)) == len(edges) and edges == sorted(edges, key=lambda e: (e[1], e[0]))
        for edges in built_edges.values()
    )
    assert graph.indptr.dtype == np.int64 and graph.sources.dtype == np.int32
    assert graph.edges == {name: len(edges) for name, edges in expected.items()}
    assert min(sum(len(stored(random_graph(s))[name]) for s in range(5)) for name in EDGE_TYPES) > 0
    structure["reading_order"] = structure["reading_order"][::-1].copy()  # control: the reading order matters
    assert set(stored(document_graph(PASSAGES, **structure))["order"]) != expected["order"]


def test_a_type_and_its_inverse() -> None:
    assert [EDGE_TYPES[inverse(i)] for i in (0, 1, 6)] == ["order_inverse", "order", "external_inverse"]


def test_a_corpus_without_structure_has_no_edges() -> None:
    none = np.zeros(0, np.int32)
    graph = document_graph(3, np.arange(3, dtype=np.int32), np.full(3, -1, np.int32), np.zeros(3, np.int32), none, none)
    assert len(graph) == 3 and not len(graph.sources) and graph.indptr.shape == (8, 4)


def test_round_trip(tmp_path: Path) -> None:
    graph = random_graph()
    with drafting(tmp_path / "graph", "document_graph") as draft:
        graph.write(draft)
    back = DocumentGraph.read(tmp_path / "graph")
    assert isinstance(back.indptr, np.memmap) and back.passages == PASSAGES and len(back) == len(graph)
    np.testing.assert_array_equal(back.indptr, graph.indptr)
    np.testing.assert_array_equal(back.sources, graph.sources)
