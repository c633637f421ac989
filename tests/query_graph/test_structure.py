"""Document edges in the GNN against a float64 loop over passages, types, heads and neighbours."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from document_graphs import random_structure
from tiny_graph import D, M, N, random_graph

from gnn_encoder.artifacts import Dataset, Graph, reverse_csr
from gnn_encoder.artifacts.document_graph import EDGE_TYPES, DocumentGraph
from gnn_encoder.document_graph.building import document_graph, passage_graph
from gnn_encoder.errors import UserError
from gnn_encoder.explanation.weights import Explainer
from gnn_encoder.models.gnn import GNN, GnnConfig
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.propagation import Propagation
from gnn_encoder.query_graph.structure import edges_of_types, from_documents


def typed_edges(seed: int = 0) -> DocumentGraph:
    """Edges of every type between the M passages; the last passage has none."""
    generator = np.random.default_rng(seed)
    document = np.arange(M) // 9
    document[-1] = 99
    parent = np.where(np.arange(M) % 9 < 3, -1, np.arange(M) // 9 * 9 + generator.integers(0, 3, M))
    parent[-1] = -1
    citing, cited = generator.integers(0, M - 1, (2, 60)).astype(np.int32)
    order = generator.permutation(M)
    graph = document_graph(M, *(a.astype(np.int32) for a in (document, parent, order)), citing, cited)
    assert min(graph.edges.values()) > 5
    return graph


def with_edges(typed: DocumentGraph, graph: Graph | None = None) -> Graph:
    graph = graph or random_graph(True, False, False)
    return replace(graph, typed_indptr=typed.indptr, typed_sources=typed.sources)


def random_gnn(graph: Graph, layers: int = 2, **changes: object) -> GNN:
    torch.manual_seed(5)
    gnn = GNN(GnnConfig(width=D, edge_width=EdgeFeatures(graph).width, layers=layers, structure=True, **changes)).eval()  # type: ignore[arg-type]
    for parameter in gnn.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return gnn


def random_vectors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """h_q [n, d], h_p [m, d], and stored vectors [m, d]."""
    generator = np.random.default_rng(3)
    h_q, h_p, stored = (generator.normal(size=(rows, D)).astype(np.float32) for rows in (N, M, M))
    return h_q, h_p, stored


def loop(gnn: GNN, typed: DocumentGraph, h_p: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """What document edges add to h~_p, [m, d], one neighbour after the other, in float64."""
    part = gnn.structure_attention
    value, target, source, weight = (
        p.detach().double().numpy() for p in (part.value, part.target, part.source, part.weight)
    )
    heads, size = gnn.config.heads, D // gnn.config.heads
    out = np.zeros((M, D))
    for passage in range(M):
        for kind in range(len(EDGE_TYPES)):
            around = typed.sources[typed.indptr[kind, passage] : typed.indptr[kind, passage + 1]]
            for head in range(heads if len(around) else 0):
                rows = slice(head * size, (head + 1) * size)
                answers = [value[kind, rows] @ stored[j].astype(float) for j in around]
                logits = [target[kind, head] @ h_p[passage] + source[kind, head] @ answer for answer in answers]
                powers = [math.exp(x if x > 0 else 0.2 * x) for x in logits]
                mixed = sum(p / sum(powers) * answer for p, answer in zip(powers, answers, strict=True))
                out[passage, rows] += weight[kind] * mixed
    return out


def test_the_attention_equals_a_loop() -> None:
    typed = typed_edges()
    graph, (_, h_p, stored) = with_edges(typed), random_vectors()
    gnn = random_gnn(graph)
    expected = loop(gnn, typed, h_p, stored)
    found = from_documents(gnn, graph, np.arange(M), torch.from_numpy(h_p), stored)
    assert found is not None and np.abs(found.detach().numpy() - expected).max() < 1e-5
    assert not expected[-1].any() and (np.abs(expected[:-1]).max(axis=1) > 0.1).all()
    # Controls: the types are told apart, and an edge counts in one direction.
    for kinds in (np.roll(np.arange(8), 2), np.arange(8) ^ 1):
        other = DocumentGraph(typed.indptr[kinds], typed.sources, M)
        assert np.abs(loop(gnn, other, h_p, stored) - expected).max() > 0.1


@pytest.mark.parametrize(("layers", "gate"), [(2, "filter"), (1, "fixed")])
def test_streamed_equals_unstreamed_in_any_order(layers: int, gate: str) -> None:
    """The whole GNN: eq. 8's result and the loop's, added, go through the gate; chunks and order change nothing."""
    typed = typed_edges()
    graph, (h_q, h_p, stored) = with_edges(typed), random_vectors()
    gnn = random_gnn(graph, layers, gate=gate, activation="elu", normalize_passages=True)
    without = GNN(gnn.config.model_copy(update={"structure": False})).eval()
    without.load_state_dict({k: v for k, v in gnn.state_dict().items() if not k.startswith("structure")})
    plain = Propagation(without, graph, h_q, stored)
    context: list[torch.Tensor] = []
    without.gated = lambda aggregated, passages, heard: context.append(aggregated) or passages  # type: ignore[method-assign]
    plain.passages(np.arange(M), h_p)
    aggregated, vectors = context[0].double() + torch.from_numpy(loop(gnn, typed, h_p, stored)), torch.from_numpy(h_p)
    opening = gnn.opening(aggregated.float(), vectors) if gate == "filter" else 0.5
    expected = torch.nn.functional.normalize(vectors + opening * aggregated, dim=1).detach().numpy()

    streamed = Propagation(gnn, graph, h_q, stored, chunk=4)
    written = np.zeros((M, D), np.float32)
    streamed.write(written, np.arange(M), h_p, chunk=7)
    assert np.abs(written - expected).max() < 1e-5
    some = np.random.default_rng(4).permutation(M)[:25]
    assert np.abs(streamed.passages(some, h_p[some]) - expected[some]).max() < 1e-5
    # Control: without the edges, or with other neighbours' vectors, it is something else.
    assert np.abs(Propagation(gnn, graph, h_q, stored + 1).passages(some, h_p[some]) - expected[some]).max() > 1e-2
    # What explains a passage computes the same vector.
    explainer = Explainer(gnn, graph, h_q, stored, h_p, some)
    assert max(np.abs(explainer.explain(int(p)).vector - expected[p]).max() for p in some) < 1e-5


def test_the_order_of_rows_does_not_matter() -> None:
    """Passages with other row numbers, in the graph of queries and in the documents, get the same vectors."""
    structure = random_structure(1)
    m = len(structure["document"])  # every node is a passage here
    (h_q, h_p, stored), new = random_vectors(), np.random.default_rng(6).permutation(m)
    base = random_graph(False, False, False)
    edges = np.where(base.edges < m, base.edges, -1).astype(np.int32)

    def vectors(place: np.ndarray, structure: dict[str, np.ndarray], h_p: np.ndarray, stored: np.ndarray) -> np.ndarray:
        moved = np.where(edges >= 0, place[edges], -1).astype(np.int32)
        indptr, reverse = reverse_csr(moved, m)
        graph = replace(base, edges=moved, indptr=indptr, reverse=reverse, labelled=moved < -1)
        graph = with_edges(document_graph(m, **structure), graph)
        return Propagation(random_gnn(graph), graph, h_q, stored).passages(np.arange(m), h_p)

    before = vectors(np.arange(m), structure, h_p[:m], stored[:m])
    old = np.argsort(new)  # node old[i] becomes node i
    moved = {name: structure[name][old] for name in ("document", "place")}
    moved["parent"] = np.where(structure["parent"][old] >= 0, new[structure["parent"][old]], -1).astype(np.int32)
    moved |= {name: new[structure[name]].astype(np.int32) for name in ("citing", "cited")}
    after = vectors(new, moved, h_p[old], stored[old])
    assert np.abs(after[new] - before).max() < 1e-5
    # Control: documents that keep the old numbers are others' documents.
    assert np.abs(vectors(new, structure, h_p[old], stored[old])[new] - before).max() > 1e-2


def test_a_weight_of_zero_is_the_gnn_without_documents() -> None:
    graph, (h_q, h_p, stored) = with_edges(typed_edges()), random_vectors()
    torch.manual_seed(0)
    gnn = GNN(GnnConfig(width=D, edge_width=EdgeFeatures(graph).width, structure=True))
    torch.manual_seed(0)
    plain = GNN(GnnConfig(width=D, edge_width=EdgeFeatures(graph).width))
    for each in (gnn, plain):
        each.start_from_mean(-1.0)
    rows = np.arange(M)
    expected = Propagation(plain, graph, h_q, stored).passages(rows, h_p)
    assert np.array_equal(Propagation(gnn, graph, h_q, stored).passages(rows, h_p), expected)
    torch.nn.init.constant_(gnn.structure_attention.weight, 0.2)
    moved = np.abs(Propagation(gnn, graph, h_q, stored).passages(rows, h_p) - expected).max(axis=1)
    assert (moved[:-1] > 1e-3).all() and moved[-1] == 0
    assert "structure" not in GNN(gnn.config.model_copy(update={"layers": 0})).state_dict()


def test_a_graph_without_document_edges_is_refused() -> None:
    graph, (h_q, h_p, stored) = with_edges(typed_edges()), random_vectors()
    gnn = random_gnn(graph)
    with pytest.raises(UserError, match=r"set build_graph\.structure=edges"):
        Propagation(gnn, random_graph(True, False, False), h_q, stored).passages(np.arange(3), h_p[:3])


def test_edges_are_from_passage_to_passage(tiny_documents: Dataset, tiny_dataset: Dataset) -> None:
    """Of the tiny documents' sections no edge is left: their passages are linked by order and citations alone."""
    graph = passage_graph(tiny_documents)
    assert len(graph) == 100 and graph.edges == {
        "order": 75, "order_inverse": 75, "structural": 0, "structural_inverse": 0,
        "internal": 0, "internal_inverse": 0, "external": 24, "external_inverse": 24,
    }  # fmt: skip
    edges = edges_of_types(with_edges(graph), np.array([5, 4]))
    assert [each.tolist() for each in edges[:2]] == [[[4], [0]], [[6, 5], [0, 1]]]
    assert [each.tolist() for each in edges[6:]] == [[[0], [1]], [[8], [1]]]
    with pytest.raises(UserError, match=r"build_graph\.structure=edges needs data with them"):
        passage_graph(tiny_dataset)
