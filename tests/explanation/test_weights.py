"""What an explanation says is what the network does: its weights, its h'_p, and what an edge is worth."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from tiny_graph import DE, VARIANTS, D, K, M, N, random_graph

from gnn_encoder.artifacts import Graph, reverse_csr
from gnn_encoder.explanation.weights import Explainer, Explanation
from gnn_encoder.models.gnn import GNN, GATLayer, GnnConfig
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.query_graph.propagation import Propagation

CROWDED, APART = M - 10, M - 1  # a passage that half of the queries reach, and one that none does


class Case:
    """A random graph, GNN and vectors of one variant, and the explainer of all passages."""

    def __init__(self, layers: int, gate: str, features: bool, labelled: bool, loops: bool, heads: int = 4) -> None:
        self.graph = random_graph(features, labelled, loops)
        torch.manual_seed(layers)
        config = GnnConfig(
            width=D, edge_width=EdgeFeatures(self.graph).width, heads=heads, layers=layers, gate=gate, gate_alpha=0.3,  # type: ignore[arg-type]
            learned_loops=not loops, activation="elu", normalize_passages=True,
        )  # fmt: skip
        self.gnn = GNN(config).eval()
        for parameter in self.gnn.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        generator = np.random.default_rng(3)
        self.h_q, self.h_p, self.cached = (generator.normal(size=(n, D)).astype(np.float32) for n in (N, M, M))
        self.question = generator.normal(size=D).astype(np.float32)

    def explainer(self, rows: np.ndarray | None = None) -> Explainer:
        rows = np.arange(M) if rows is None else rows
        return Explainer(self.gnn, self.graph, self.h_q, self.cached, self.h_p, rows)

    def propagated(self, graph: Graph | None = None) -> np.ndarray:
        """h'_p of all passages by what `encode_corpus` runs."""
        full = Propagation(self.gnn, graph or self.graph, self.h_q, self.cached)
        return full.passages(np.arange(M), self.h_p)


def without(graph: Graph, query: int, passage: int) -> Graph:
    """The graph without one edge, everywhere that it is written."""
    edges = np.where((np.arange(N)[:, None] == query) & (graph.edges == passage), -1, graph.edges).astype(np.int32)
    assert (edges != graph.edges).sum() == 1
    indptr, reverse = reverse_csr(edges, M)
    return replace(graph, edges=edges, labelled=graph.labelled & (edges >= 0), indptr=indptr, reverse=reverse)


@VARIANTS
def test_vectors_are_those_of_the_propagation_and_weights_sum_to_one(
    layers: int, gate: str, features: bool, labelled: bool, loops: bool
) -> None:
    case = Case(layers, gate, features, labelled, loops)
    explainer, expected = case.explainer(), case.propagated()
    reached = np.diff(case.graph.indptr)
    for passage in range(M):
        explanation = explainer.explain(passage)
        np.testing.assert_allclose(explanation.vector, expected[passage], atol=1e-5)
        assert len(explanation.queries) == (reached[passage] if layers else 0)
        np.testing.assert_allclose(explanation.weights.sum(axis=0) + explanation.self_loop, 1, atol=1e-6)
        assert explanation.self_loop.shape == (4,) and all(
            a >= b - 1e-7 for a, b in pairwise(explanation.weights.mean(axis=1))
        )
        side = explanation.query_side
        np.testing.assert_allclose(side.weights.sum(axis=1) + side.self_loops, 1, atol=1e-6)
        assert side.passages.shape == (len(explanation.queries), K if layers == 2 else 0)
        assert not side.weights[side.passages < 0].any()
        np.testing.assert_allclose(explanation.plain, case.h_p[passage] / np.linalg.norm(case.h_p[passage]), atol=1e-6)
        edges = case.graph.edges[explanation.queries] == passage
        assert (
            edges.any(axis=1).all() and (explanation.labelled == case.graph.labelled[explanation.queries][edges]).all()
        )
        assert labelled or not explanation.labelled.any()
        if gate == "fixed":
            np.testing.assert_allclose(explanation.opening, 0.3)
        elif layers:
            assert 0 <= explanation.opening.min() < explanation.opening.max() <= 1
    # Control: another question's passages are no explanation of these.
    if layers:
        assert np.abs(expected[0] - explainer.explain(1).vector).max() > 1e-2


@VARIANTS
def test_without_an_edge_is_what_the_smaller_graph_gives(
    layers: int, gate: str, features: bool, labelled: bool, loops: bool
) -> None:
    case = Case(layers, gate, features, labelled, loops)
    passages = [CROWDED, *case.graph.edges[0][case.graph.edges[0] >= 0][:2]]
    explainer, before = case.explainer(np.array(passages)), case.propagated()
    for passage in passages:
        explanation = explainer.explain(passage)
        assert len(explanation.queries) or not layers
        for query in explanation.queries:
            vector, score = explainer.without_edge(passage, query, case.question)
            after = case.propagated(without(case.graph, query, passage))
            np.testing.assert_allclose(vector, after[passage], atol=1e-5)
            change = score - float(case.question @ explanation.vector)
            assert change == pytest.approx(float(case.question @ (after[passage] - before[passage])), abs=1e-5)
            assert abs(change) > 1e-5  # Control: the edge did something.
        absent = np.setdiff1d(np.arange(N), explanation.queries)[0]
        with pytest.raises(ValueError, match="no edge between"):
            explainer.without_edge(passage, absent, case.question)


def test_the_second_half_of_an_edge_changes_other_passages_alone() -> None:
    """The docstring's claim: passage → query in layer 1 alters h'_q, which reaches this passage no more."""
    case = Case(2, "filter", True, False, False)
    query, passage = 0, int(case.graph.edges[0][case.graph.edges[0] >= 0][-1])
    changed = np.abs(case.propagated(without(case.graph, query, passage)) - case.propagated()).max(axis=1) > 1e-6
    assert set(np.flatnonzero(changed)) == set(case.graph.edges[query][case.graph.edges[query] >= 0])


def test_only_the_neighbourhood_is_read() -> None:
    """Vectors of everything else may be anything: of far queries, of other passages, of passages two steps away."""
    case = Case(2, "filter", True, True, True)
    rows = np.array([3, CROWDED])
    expected = [case.explainer(rows).explain(row) for row in rows]
    queries = np.unique(np.concatenate([explanation.queries for explanation in expected]))
    passages = np.unique(case.graph.edges[queries])
    case.h_q[np.setdiff1d(np.arange(N), queries)] = 1e6
    case.h_p[np.setdiff1d(np.arange(M), rows)] = 1e6
    case.cached[np.setdiff1d(np.arange(M), passages)] = 1e6
    assert (case.h_q > 1e5).any() and (case.cached > 1e5).any()
    for explanation, row in zip(expected, rows, strict=True):
        assert_same(case.explainer(rows).explain(row), explanation)
    case.h_q[queries[0]] += 1  # Control: of what is near it may not.
    assert any(
        np.abs(case.explainer(rows).explain(explanation.passage).vector - explanation.vector).max() > 1e-3
        for explanation in expected
    )


def assert_same(computed: Explanation, expected: Explanation) -> None:
    np.testing.assert_allclose(computed.vector, expected.vector, atol=1e-6)
    np.testing.assert_allclose(computed.weights, expected.weights, atol=1e-6)
    np.testing.assert_allclose(computed.query_side.weights, expected.query_side.weights, atol=1e-6)


def attention(layer: GATLayer, target: np.ndarray, sources: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Eq. 3–4 for one target, its sources (itself last) and their edge features: [s, H], a loop in float64."""
    w_t, w_s, w_e = (m.weight.detach().double().numpy() for m in (layer.target, layer.source, layer.edge))
    size, heads = D // layer.heads, []
    for h in range(layer.heads):
        rows = slice(h * size, (h + 1) * size)
        a = np.concatenate([layer.attention[i, h].detach().double().numpy() for i in range(3)])
        pairs = zip(sources, features, strict=True)
        logits = np.array([a @ np.concatenate([w_t[rows] @ target, w_s[rows] @ x, w_e[rows] @ f]) for x, f in pairs])
        weights = np.exp(np.where(logits > 0, logits, layer.slope * logits))
        heads.append(weights / weights.sum())
    return np.stack(heads, axis=1)


@pytest.mark.parametrize("loops", [False, True])
def test_weights_are_the_equations_in_float64(loops: bool) -> None:
    case = Case(2, "filter", True, True, loops)
    gnn, graph, features = case.gnn, case.graph, EdgeFeatures(case.graph)
    assert features.marked and gnn.config.edge_width == DE + 1

    def by_equations(learned: str, vectors_of: np.ndarray | None) -> np.ndarray:
        return getattr(gnn, learned).detach().numpy() if vectors_of is None else vectors_of[0]

    explanation = case.explainer(np.array([CROWDED])).explain(CROWDED)
    h_q = case.h_q.copy()
    for position, query in enumerate(explanation.queries):
        chosen = np.flatnonzero(graph.edges[query] >= 0)
        sources = [*case.cached[graph.edges[query, chosen]], case.h_q[query]]
        edges = [
            *features.of_edges(query * K + chosen),
            by_equations("query_loop", features.query_loops(np.array([query]))),
        ]
        expected = attention(gnn.query_attention, case.h_q[query], sources, edges)
        np.testing.assert_allclose(explanation.query_side.weights[position, chosen], expected[:-1], atol=1e-5)
        np.testing.assert_allclose(explanation.query_side.self_loops[position], expected[-1], atol=1e-5)
        assert (explanation.query_side.passages[position] == graph.edges[query]).all()
    with torch.inference_mode():  # eq. 6–7, which test_gnn compares with a loop
        exists = torch.from_numpy(graph.edges >= 0)
        near = torch.from_numpy(case.cached[np.maximum(graph.edges, 0)])
        edges, mine = (
            None if a is None else torch.from_numpy(a)
            for a in (features.of_queries(slice(None)), features.query_loops(slice(None)))
        )
        h_q = gnn.query_vectors(torch.from_numpy(case.h_q), near, exists, edges, mine).numpy()
    slots = [int(np.flatnonzero(graph.edges[query] == CROWDED)[0]) for query in explanation.queries]
    sources = [*h_q[explanation.queries], case.h_p[CROWDED]]
    edges = [
        *features.of_edges(explanation.queries * K + slots),
        by_equations("passage_loop", features.passage_loops(np.array([CROWDED]))),
    ]
    expected = attention(gnn.passage_attention, case.h_p[CROWDED], sources, edges)
    np.testing.assert_allclose(explanation.weights, expected[:-1], atol=1e-5)
    np.testing.assert_allclose(explanation.self_loop, expected[-1], atol=1e-5)
    mixed = np.concatenate(  # eq. 5 and 9
        [
            layer_weights @ (np.array(sources) @ w_s.T)
            for layer_weights, w_s in zip(
                expected.T,
                gnn.passage_attention.source.weight.detach().double().numpy().reshape(4, D // 4, D),
                strict=True,
            )
        ]
    )
    aggregated = np.where(mixed > 0, mixed, np.expm1(mixed))
    gate, bias = (p.detach().double().numpy() for p in (gnn.gate.weight, gnn.gate.bias))
    opening = 1 / (1 + np.exp(-(gate @ np.concatenate([aggregated, case.h_p[CROWDED]]) + bias)))
    np.testing.assert_allclose(explanation.opening, opening, atol=1e-5)
    # Control: unlabelled, the same edges weigh otherwise.
    edges = [edge * np.append(np.ones(DE), 0) for edge in edges]
    assert (
        np.abs(attention(gnn.passage_attention, case.h_p[CROWDED], sources, edges)[:-1] - explanation.weights).max()
        > 1e-3
    )


@pytest.mark.parametrize("heads", [1, 4])
def test_weights_are_pygs(heads: int) -> None:
    from torch_geometric.nn import GATConv

    case = Case(1, "filter", True, False, False, heads)
    layer = case.gnn.passage_attention
    peer = GATConv((D, D), D // heads, heads=heads, edge_dim=DE, add_self_loops=False, bias=False)
    with torch.no_grad():
        for linear, ours in ((peer.lin_src, layer.source), (peer.lin_dst, layer.target), (peer.lin_edge, layer.edge)):
            linear.weight.copy_(ours.weight)
        for part, ours in zip((peer.att_dst, peer.att_src, peer.att_edge), layer.attention, strict=True):
            part.copy_(ours[None])
    explanation = case.explainer(np.array([CROWDED])).explain(CROWDED)
    positions = explanation.queries * K + [
        int(np.flatnonzero(case.graph.edges[q] == CROWDED)[0]) for q in explanation.queries
    ]
    target = torch.from_numpy(case.h_p[[CROWDED]])
    sources = torch.cat([torch.from_numpy(case.h_q[explanation.queries]), target])
    features = torch.cat([torch.from_numpy(EdgeFeatures(case.graph).of_edges(positions)), case.gnn.passage_loop[None]])
    edges = torch.stack([torch.arange(len(sources)), torch.zeros(len(sources), dtype=torch.long)])
    _, (_, weights) = peer((sources, target), edges, features, return_attention_weights=True)
    np.testing.assert_allclose(
        np.concatenate([explanation.weights, explanation.self_loop[None]]), weights.detach().numpy(), atol=1e-6
    )


def test_a_passage_that_no_query_reaches_is_all_its_own() -> None:
    explanation = Case(2, "filter", True, False, False).explainer(np.array([APART])).explain(APART)
    assert len(explanation.queries) == 0 and explanation.weights.shape == (0, 4)
    np.testing.assert_allclose(explanation.self_loop, 1)
