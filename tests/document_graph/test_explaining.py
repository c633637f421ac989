"""Shares of a passage's neighbours in a score: a float64 loop over edges, and the sum against the stored scores."""

import copy
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from document_graphs import CASES, PASSAGES, WIDTH, matching, random_graph, random_tokens, stored

from gnn_encoder.artifacts import Dataset, DocumentContext, DocumentGraph
from gnn_encoder.artifacts.document_graph import KINDS
from gnn_encoder.document_graph.building import document_graph
from gnn_encoder.document_graph.context import context_vectors
from gnn_encoder.document_graph.explaining import BIAS, CARRIED, Explained, explained
from gnn_encoder.document_graph.neighbourhoods import edges_into, neighbourhood
from gnn_encoder.document_graph.nodes import encode_nodes
from gnn_encoder.inference.late_interaction import max_similarities
from gnn_encoder.models.document_gat import TokenMatrices
from gnn_encoder.models.document_reranker import ContextMatching, DocumentReranker
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.scorers import NAMED, DocumentScorer, load_scorer, save_scorer

QUERY = np.random.default_rng(5).normal(size=(6, WIDTH)).astype(np.float32)
QUERY[4:] = 0  # tokens that are not summed over


def by_hand(
    context: ContextMatching, graph: DocumentGraph, tokens: TokenMatrices, passage: int, type_weights: bool = True
) -> Counter[tuple[int, str]]:
    """The amount of each edge into the passage in float64: the last layer and MaxSim, an edge and a token at a time."""
    exact = copy.deepcopy(context).double().eval()
    network, config, kinds = exact.network, exact.network.config, exact.network.config.edge_types
    hood = neighbourhood(graph, np.array([passage]), config.layers, context_only=config.context_only, kinds=kinds)
    matrices = TokenMatrices(tokens.values.double(), tokens.lengths).take(hood.nodes)
    asking, layer = network.questions(matrices.first(1)), network.stack[-1]
    with torch.no_grad():
        if config.layers > 1:
            for number, hop in enumerate(hood.hops[:-1]):
                asks = matrices.first(hop.targets)
                if number == 0:
                    rest = asks.after(1)
                    asks, kept = TokenMatrices.join([asking, rest]), network.kept(asking, rest)
                else:
                    kept = None
                matrices = TokenMatrices(network.stack[number](asks, matrices, hop.edges, kept), asks.lengths)
            asking = matrices.first(1)
        answers = matrices.values.split(matrices.lengths.tolist())
        weights = torch.softmax(layer.type_weights, dim=0) if type_weights else torch.ones(len(kinds))
        edges, parts = hood.hops[-1].edges, {}
        for source, kind in zip(edges.source, edges.kind, strict=True):
            name, answer = KINDS[kind], answers[source]
            mixed, _ = layer.attention[name](asking.values, answer, answer, need_weights=False)
            share = weights[kinds.index(name)] / (
                int((edges.kind == kind).sum()) if config.neighbour_reduction == "mean" else 1
            )
            parts[int(hood.nodes[source]), name] = share * mixed
        if config.residual and not (config.context_only and config.layers == 1):
            parts[passage, CARRIED] = asking.values
        vectors = sum(parts.values(), torch.zeros_like(asking.values))
        if config.layer_norm:
            deviation = (vectors.var(dim=1, unbiased=False) + 1e-5) ** 0.5
            for key, part in parts.items():
                parts[key] = (part - part.mean(dim=1)[:, None]) / deviation[:, None] * layer.norm.weight
            parts[passage, BIAS] = layer.norm.bias.repeat(len(vectors), 1)
            vectors = layer.norm(vectors)
        lengths = vectors.norm(dim=1).clamp(min=1e-12) if exact.unit_length else torch.ones(len(vectors))
        amounts: Counter[tuple[int, str]] = Counter()
        for word in torch.from_numpy(QUERY).double():
            best = int((vectors / lengths[:, None] @ word).argmax())
            for key, part in parts.items():
                amounts[key] += float(part[best] @ word / lengths[best])
    return amounts


def amounts_of(explanation: Explained) -> dict[tuple[int, str], float]:
    amounts = {(share.node, share.kind): share.amount for share in explanation.shares}
    assert len(amounts) == len(explanation.shares)
    return amounts


@pytest.mark.parametrize("kind", ["lim", "mix_im", "mim"])
@pytest.mark.parametrize("changes", [*CASES, {"layers": 1, "residual": True}], ids=str)
def test_shares_equal_a_loop_and_add_up_to_the_stored_score(kind: str, changes: dict) -> None:
    for seed in range(2):
        graph = random_graph(seed)
        tokens, context = random_tokens(graph, WIDTH), matching(kind, **changes)
        passages = np.arange(PASSAGES)
        streamed = context_vectors(context, graph, stored(tokens), passages, token_vectors="fp32")
        zeros = np.zeros(PASSAGES, np.int64)
        in_context = max_similarities(QUERY[None], streamed, zeros, passages)
        alone = max_similarities(QUERY[None], stored(tokens), zeros, passages)
        for passage in (0, 3, 11, PASSAGES - 1):
            explanation = explained(context, graph, stored(tokens), QUERY, passage)
            scale = max(1.0, *(abs(share.amount) for share in explanation.shares)) if explanation.shares else 1.0
            expected = by_hand(context, graph, tokens, passage)
            assert amounts_of(explanation) == pytest.approx(dict(expected), abs=1e-4 * scale)
            assert explanation.context == pytest.approx(in_context[passage], abs=1e-4 * scale)
            assert sum(share.amount for share in explanation.shares) == pytest.approx(explanation.context)
            similarities = (torch.tensor(vectors[passage]) for vectors in (alone, in_context))
            with torch.no_grad():
                score = float(context.relevance(*similarities))
            assert (
                1 - explanation.share
            ) * explanation.content + explanation.share * explanation.context == pytest.approx(score, abs=1e-4 * scale)
            # Control: without the weights of the types, the parts differ.
            other = by_hand(context, graph, tokens, passage, type_weights=False)
            if len(changes) < 2 and "layer_norm" not in changes and explanation.shares:
                assert max(abs(other[key] - expected[key]) for key in expected) > 1e-2 * max(
                    map(abs, expected.values())
                )


def test_the_shares_are_of_the_graphs_edges_and_dropout_is_off() -> None:
    graph = random_graph()
    tokens = random_tokens(graph, WIDTH)
    for kind in ("lim", "mim"):
        context = matching(kind, dropout=0.9).train()
        explanations = [explained(context, graph, stored(tokens), QUERY, 3) for _ in range(2)]
        assert explanations[0] == explanations[1] and context.network.training
        edges = edges_into(graph, np.array([3]))
        expected = {
            (int(j), KINDS[t]) for j, t in zip(edges.source, edges.kind, strict=True) if kind == "mim" or j != 3
        }
        assert set(amounts_of(explanations[0])) == expected


def scorer_of(data: Dataset, backbone: Path, folder: Path, kind: str) -> DocumentScorer:
    torch.manual_seed(1)
    text = LateInteraction.from_backbone(str(backbone), LateInteractionLayout(16, 24, 40))
    torch.nn.init.normal_(text.projection.weight)
    model = DocumentReranker.of(text, kind, heads=4)
    for parameter in model.context.parameters():
        torch.nn.init.normal_(parameter, 0, 0.4)
    save_scorer(kind, model, folder)
    of = data.structure
    assert of is not None
    graph = document_graph(of.passages, of.document, of.parent, of.place, *of.citations)
    tokens = encode_nodes(model.text, data, np.ones(len(of), bool), precision="fp32")
    contexts = context_vectors(model.context, graph, tokens, np.arange(of.passages))
    DocumentContext.write(folder, *contexts, graph, of.sections, data.corpus_digests)
    scorer = load_scorer(folder)
    assert isinstance(scorer, DocumentScorer)
    return scorer


@pytest.mark.parametrize("kind", ["lim", "mix_im", "mim"])
def test_a_scorers_explanation_adds_up_to_its_score(
    kind: str, tiny_documents: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = scorer_of(tiny_documents, tiny_backbone, tmp_path / "scorer", kind)
    queries, passages = np.array([3, 70, 85]), np.array([5, 42, 4])
    scores = scorer.score(tiny_documents, queries, passages, precision="fp32")
    for most in (NAMED, 2):
        monkeypatch.setattr("gnn_encoder.retrieval.scorers.NAMED", most)
        for query, passage, score in zip(tiny_documents.query_texts(queries), passages.tolist(), scores, strict=True):
            parts = scorer.explain(tiny_documents, query, passage)
            assert sum(part.amount for part in parts) == pytest.approx(score, rel=2e-3, abs=0.02)
            assert [part.amount for part in parts] == sorted((part.amount for part in parts), reverse=True)
    assert len(parts) == 3 + (kind != "mim") and any(part.source.endswith(" more") for part in parts)
    monkeypatch.undo()
    share = scorer.reranker.context.share.item()
    plain = scorer.explain(tiny_documents, "what is the stone", 4)
    sources = {part.source for part in plain}
    assert f"context × {share:.2f}, structural_inverse “stone”" in sources  # the section of passages 4 to 7
    assert f"context × {share:.2f}, order_inverse p5" in sources and f"context × {share:.2f}, external p0" in sources
    everyone = np.ones(len(tiny_documents.passages), bool)
    for hidden in ([], [5], [0, 5]):
        seen = everyone.copy()
        seen[hidden] = False
        limited = scorer.explain(tiny_documents, "what is the stone", 4, Selection(seen, seen))
        assert sum(part.amount for part in limited) == pytest.approx(sum(part.amount for part in plain), abs=1e-3)
        named = " ".join(part.source for part in limited)
        assert "the rest" in named and " more" not in named and "“" not in named, "sections may be of others"
        assert [f" p{row}" in named for row in (0, 5)] == [row not in hidden for row in (0, 5)]
    assert (f"content × {1 - share:.2f}" in sources) == (kind != "mim")
    assert (f"context × {share:.2f}, self" in sources) == (kind != "lim")
    scorer.context = None
    with pytest.raises(Exception, match="run encode_context first"):
        scorer.explain(tiny_documents, "what is the stone", 4)
