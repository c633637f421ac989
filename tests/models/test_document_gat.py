"""The document GAT against PyTorch's attention in a float64 loop; its context-only graphs; gradients; saving."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from document_graphs import PASSAGES, random_graph, random_tokens
from torch._subclasses import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from gnn_encoder.artifacts.document_graph import KINDS
from gnn_encoder.document_graph.neighbourhoods import edges_into, neighbourhood
from gnn_encoder.models import document_gat
from gnn_encoder.models.document_gat import (
    BATCHING,
    SIZES,
    Batching,
    DocumentGat,
    DocumentGatConfig,
    Edges,
    TokenMatrices,
    TypedAttention,
)
from gnn_encoder.models.document_reranker import ContextMatching, DocumentReranker
from gnn_encoder.models.late_interaction import LateInteraction, LateInteractionLayout

D = 16
SMALL = DocumentGatConfig(width=D, heads=2, dropout=0.0)


def with_random_weights(module: torch.nn.Module, seed: int = 3) -> torch.nn.Module:
    """Weights that are large enough to matter; biases, too, which start at 0."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.7)
    return module.eval()


def loop(layer: TypedAttention, asking: TokenMatrices, answering: TokenMatrices, edges: Edges) -> torch.Tensor:
    """Eq. 1, an edge at a time, in float64."""
    exact, config = copy.deepcopy(layer).double(), layer.config
    share = torch.softmax(exact.type_weights, dim=0)
    asks, answers = (list(m.values.double().split(m.lengths.tolist())) for m in (asking, answering))
    out = [torch.zeros_like(matrix) for matrix in asks]
    for target, source, kind in zip(*edges[:3], strict=True):
        if KINDS[kind] not in config.edge_types:
            continue
        same = int(((edges.target == target) & (edges.kind == kind)).sum())
        mixed, _ = exact.attention[KINDS[kind]](asks[target], answers[source], answers[source], need_weights=False)
        weight = 1 if config.neighbour_reduction == "sum" else 1 / same
        out[target] = out[target] + weight * share[config.edge_types.index(KINDS[kind])] * mixed
    return torch.cat(out)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"neighbour_reduction": "mean"},
        {"edge_types": tuple(kind for kind in KINDS if kind != "structural")},
        {"edge_types": ("structural", "internal_inverse"), "neighbour_reduction": "mean"},
        {"edge_types": ("self",)},
    ],
)
@pytest.mark.parametrize("all_types", [False, True])
def test_a_layer_equals_multihead_attention_in_a_loop(
    all_types: bool, changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    batching = Batching(np.array([4, 8]), 2**22, all_types, 2**22)
    monkeypatch.setitem(BATCHING, "cpu", batching)
    graph = random_graph()
    tokens, config = random_tokens(graph, D), replace(SMALL, **changes)
    layer, edges = with_random_weights(TypedAttention(config)), edges_into(graph, np.arange(len(graph)))
    expected = loop(layer, tokens, tokens, edges)
    with torch.no_grad():
        output = layer(tokens, tokens, edges)
        torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=1e-5)
        monkeypatch.setitem(BATCHING, "cpu", batching._replace(scores=40))  # an edge or two at a time
        torch.testing.assert_close(layer(tokens, tokens, edges), output, atol=1e-5, rtol=1e-5)
        # Control: the other reduction, and other types of the same edges, differ.
        other = "mean" if config.neighbour_reduction == "sum" else "sum"
        layer.config = replace(config, neighbour_reduction=other)
        if config.edge_types != ("self",):
            assert (layer(tokens, tokens, edges) - output).abs().max() > 1e-2


def test_a_gpu_gets_no_more_edges_together_than_its_kernel_takes() -> None:
    """torch's attention with dropout refuses more than 65,535 there, also after training has padded their number."""
    lengths = np.full(70_000, 4)
    parts = list(document_gat._batches(lengths, lengths, 8, BATCHING["cuda"]))
    assert max(document_gat._upto(len(part), SIZES) for part in parts) <= 65_535
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(70_000))
    assert len(list(document_gat._batches(lengths, lengths, 8, BATCHING["cuda"]._replace(edges=2**22)))) == 1  # control


def test_nodes_that_hear_nobody_and_padding() -> None:
    """A node without edges gets 0; a node without tokens is not heard; other nodes' lengths change nothing."""
    graph = random_graph()
    tokens, layer = random_tokens(graph, D), with_random_weights(TypedAttention(SMALL))
    edges = edges_into(graph, np.arange(len(graph)))
    some = edges.take(edges.target != 5)
    with torch.no_grad():
        all_heard, heard = layer(tokens, tokens, edges), layer(tokens, tokens, some)
        offsets = tokens.offsets
        assert not heard[offsets[5] : offsets[6]].any() and all_heard[offsets[5] : offsets[6]].any()
        torch.testing.assert_close(heard[: offsets[5]], all_heard[: offsets[5]])
        lengths = tokens.lengths.copy()
        lengths[4] = 0
        empty = TokenMatrices(tokens.values[np.r_[0 : offsets[4], offsets[5] : offsets[-1]]], lengths)
        without = edges.take((edges.source != 4) & (edges.target != 4))
        torch.testing.assert_close(layer(empty, empty, edges), layer(empty, empty, without))
        alone = neighbourhood(graph, np.array([2]), 1, context_only=False)
        read = layer(tokens.take(np.array([2])), tokens.take(alone.nodes), alone.hops[0].edges)
        torch.testing.assert_close(read, all_heard[offsets[2] : offsets[3]], atol=1e-5, rtol=1e-5)


def test_residual_connection_and_norm() -> None:
    graph = random_graph()
    tokens, edges = random_tokens(graph, D), edges_into(graph, np.arange(len(graph)))
    layer = with_random_weights(TypedAttention(replace(SMALL, residual=True, layer_norm=True)))
    with torch.no_grad():
        expected = torch.nn.functional.layer_norm(
            loop(layer, tokens, tokens, edges) + tokens.values.double(),
            (D,), layer.norm.weight.double(), layer.norm.bias.double(),
        )  # fmt: skip
        torch.testing.assert_close(layer(tokens, tokens, edges).double(), expected, atol=1e-4, rtol=1e-4)


def test_the_order_of_nodes_does_not_matter() -> None:
    graph = random_graph()
    tokens, layer = random_tokens(graph, D), with_random_weights(TypedAttention(SMALL))
    edges, order = edges_into(graph, np.arange(len(graph))), np.random.default_rng(1).permutation(len(graph))
    row_of = np.argsort(order)
    moved = edges._replace(target=row_of[edges.target], source=row_of[edges.source])
    moved = moved.take(np.random.default_rng(2).permutation(len(moved.target)))
    shuffled = tokens.take(order)
    with torch.no_grad():
        result = TokenMatrices(layer(shuffled, shuffled, moved), shuffled.lengths)
        torch.testing.assert_close(result.take(row_of).values, layer(tokens, tokens, edges), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"neighbour_reduction": "mean", "residual": True, "layer_norm": True}])
@pytest.mark.parametrize("asks", ["content", "learned"])
@pytest.mark.parametrize("context_only", [True, False])
def test_a_passage_is_never_a_value_of_its_own_context(context_only: bool, asks: str, changes: dict) -> None:
    """Other token vectors of p, while p asks as before, change nothing after three layers. Control: the plain GAT."""
    graph = random_graph()
    tokens = random_tokens(graph, D)
    network = with_random_weights(
        DocumentGat(replace(SMALL, context_only=context_only, context_asks=asks, **changes))  # type: ignore[arg-type]
    )
    passages = np.arange(PASSAGES - 1)  # the last one has no neighbours
    changed = 0
    for passage in passages:
        hood = neighbourhood(graph, np.array([passage]), 3, context_only=context_only)
        taken = tokens.take(hood.nodes)
        questions = network.questions(taken.first(1))
        values = taken.values.clone()
        values[: taken.lengths[0]] += 1
        other = TokenMatrices(values, taken.lengths)
        with torch.no_grad():
            before, after = (network(tokens_of, hood.hops, 1, questions).values for tokens_of in (taken, other))
            if context_only:
                assert torch.equal(before, after)
                # It asks with its content, or with nothing of its own.
                with_other = network(other, hood.hops, 1).values
                assert torch.equal(with_other, before) == (asks == "learned")
                neighbour = taken.values.clone()
                neighbour[taken.lengths[0] :] += 1
                heard = network(TokenMatrices(neighbour, taken.lengths), hood.hops, 1, questions).values
                assert not torch.allclose(heard, before)
            changed += not torch.allclose(before, after)
    assert changed == (0 if context_only else len(passages))


@pytest.mark.parametrize("kind", ["mim", "lim", "mix_im"])
def test_gradients_reach_everything(kind: str) -> None:
    graph = random_graph()
    torch.manual_seed(0)
    context = ContextMatching(kind, replace(SMALL, context_only=kind == "lim", context_asks="learned", dropout=0.3))
    context.train()
    tokens = random_tokens(graph, D)
    tokens.values.requires_grad_()
    passages = np.arange(PASSAGES)
    hood = neighbourhood(graph, passages, 3, context_only=kind == "lim")
    matrices = context.network(tokens.take(hood.nodes), hood.hops, PASSAGES)
    score = context.relevance(torch.tensor(0.3), matrices.values.square().sum())
    score.backward()
    without = [name for name, p in context.named_parameters() if p.grad is None or not p.grad.any()]
    # In the last layer of the context-only network, passages alone ask, and none of them hears itself.
    assert all(kind == "lim" and name.startswith("network.layers.2.attention.self.") for name in without)
    assert tokens.values.grad is not None and tokens.values.grad.any()


def test_the_backward_pass_draws_the_same_dropout() -> None:
    """The backward pass computes the attention again; a step along the gradient has the effect that it says."""
    graph, tokens = random_graph(), random_tokens(random_graph(), D)
    layer = with_random_weights(TypedAttention(replace(SMALL, dropout=0.5))).double().train()
    edges = edges_into(graph, np.arange(len(graph)))
    values = tokens.values.double().requires_grad_()

    def total(inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        matrices = TokenMatrices(inputs, tokens.lengths)
        return layer(matrices, matrices, edges).square().sum()

    (gradient,) = torch.autograd.grad(total(values), values)
    step = 1e-3 * gradient / gradient.norm()
    with torch.no_grad():
        change = (total(values + step) - total(values - step)) / 2
        assert float(change / (gradient * step).sum()) == pytest.approx(1, rel=1e-2)
        torch.manual_seed(6)
        matrices = TokenMatrices(values, tokens.lengths)  # control: another draw
        assert not torch.allclose(total(values), layer(matrices, matrices, edges).square().sum())


def test_batches_of_few_sizes_in_training_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training, edges are padded to few lengths and `SIZES`; without dropout neither results nor gradients change.

    A GPU's batches, of all types of edges, are few, and give the same."""
    graph, tokens = random_graph(), random_tokens(random_graph(), D)
    layer = with_random_weights(TypedAttention(replace(SMALL, dropout=0.0))).double()
    edges = edges_into(graph, np.arange(len(graph)))
    shapes: set[tuple[int, ...]] = set()
    plain = document_gat._attention

    def noted(*arguments: Any) -> torch.Tensor:
        shapes.add((len(arguments[0]), arguments[0].shape[2], arguments[1].shape[2]))
        return plain(*arguments)

    monkeypatch.setattr(document_gat, "_attention", noted)
    outputs, calls = [], []
    few = Batching(BATCHING["cpu"].lengths, 2**27, all_types=True, edges=2**15)
    for mode, batching in ((False, BATCHING["cpu"]), (True, BATCHING["cpu"]), (True, few)):
        monkeypatch.setitem(BATCHING, "cpu", batching)
        shapes.clear()
        values = tokens.values.double().requires_grad_()
        matrices = TokenMatrices(values, tokens.lengths)
        with CountedCalls() as counted:
            result = layer.train(mode)(matrices, matrices, edges)
            gradients = torch.autograd.grad(result.square().sum(), [values, *layer.parameters()])
        outputs.append((result.detach(), *gradients))
        calls.append(counted.calls)
        lengths = set(batching.lengths)
        assert all({asking, answering} <= lengths and size in SIZES for size, asking, answering in shapes) == mode
    for plain_result, rounded, of_all_types in zip(*outputs, strict=True):
        torch.testing.assert_close(plain_result, rounded)
        torch.testing.assert_close(plain_result, of_all_types)
    assert calls[2] < calls[1] / 3


class CountedCalls(TorchDispatchMode):
    """Counts the calls of torch's operations."""

    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention_in_training_equals_torchs(dtype: torch.dtype) -> None:
    """And drops as many weights as it should, so that its mean over many draws is the attention without dropout."""
    torch.manual_seed(0)
    sides = [torch.randn(5, 2, length, 4, dtype=dtype, requires_grad=True) for length in (3, 7, 7)]
    answers = (torch.arange(7) < torch.tensor([7, 1, 3, 5, 2])[:, None])[:, None, None]
    wanted = scaled_dot_product_attention(*sides, attn_mask=answers)
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype is torch.float64 else {"rtol": 0.02, "atol": 0.02}
    torch.testing.assert_close(document_gat._attention(*sides, answers, 0.0), wanted, **tolerance)
    mean = sum(document_gat._attention(*sides, answers, 0.7).detach().double() for _ in range(4000)) / 4000
    assert (mean - wanted).abs().max() < 0.2
    everything = scaled_dot_product_attention(*sides)  # control: with the masked tokens, it would be another mean
    assert (mean - everything).abs().max() > 0.4
    kept = document_gat._kept(torch.zeros(1000, 1001, dtype=dtype), 0.7)
    assert (kept > 0).double().mean() == pytest.approx(0.3, abs=2e-3)
    assert kept.max().item() == pytest.approx(1 / 0.3, rel=5e-3)


def test_scores_mix_content_and_context() -> None:
    context = ContextMatching("lim", SMALL)
    with torch.no_grad():
        context.mixture.fill_(-1.5)
    share = 1 / (1 + np.exp(1.5))
    scores = context.relevance(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 8.0]))
    np.testing.assert_allclose(scores.detach(), (1 - share) * np.array([2, 4]) + share * np.array([1, 8]), rtol=1e-6)
    assert ContextMatching("mim", SMALL).relevance(torch.tensor(2.0), torch.tensor(1.0)) == 1


def test_a_network_on_a_gpu_mixes_similarities_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ContextMatching("lim", SMALL)
    with FakeTensorMode():
        share, similarities = torch.empty((), device="cuda"), torch.ones(3)
        monkeypatch.setattr(ContextMatching, "share", share)
        with pytest.raises(RuntimeError, match="same device"):  # control: a fake device has the rules of a real one
            share * similarities
        assert context.relevance(similarities, similarities).device.type == "cpu"


@pytest.mark.parametrize("kind", ["mim", "lim", "mix_im"])
def test_saved_and_loaded(kind, tiny_backbone, tmp_path) -> None:
    text = LateInteraction.from_backbone(str(tiny_backbone), LateInteractionLayout(width=D))
    model = DocumentReranker.of(
        text, kind, heads=4, context_asks="learned", edge_types=("order", "self"), unit_length=True
    )
    with_random_weights(model.context)
    model.save(tmp_path)
    again = DocumentReranker.load(tmp_path)
    assert again.context.network.config == model.context.network.config and again.context.unit_length
    assert again.context.kind == kind and again.context.network.config.context_only == (kind == "lim")
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
