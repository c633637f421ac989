"""Cached gradients equal uncached ones, with dropout; where the random state is not replayed, they do not."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from ordered_sums import OrderedSums
from small_training import examples_of, two_encoders
from torch import nn

from gnn_encoder.artifacts import Dataset, Graph, reverse_csr
from gnn_encoder.inference.encoding import autocast, encode_texts
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.models.packed import is_packed, pack
from gnn_encoder.settings.foundation import TrainDpr
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.training import computation, losses, masked_graph
from gnn_encoder.training import embed as embedding
from gnn_encoder.training.computation import computing_as_trained, set_dropout
from gnn_encoder.training.contrastive import train_contrastive
from gnn_encoder.training.embed import embed
from gnn_encoder.training.losses import contrastive_loss
from gnn_encoder.training.masked_graph import MaskedGraphTraining
from gnn_encoder.training.prefetch import batches_of

pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture(scope="module")
def encoders(tiny_backbone) -> DualEncoder:
    return two_encoders(tiny_backbone)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "TOKENS_PER_PASS", {"cpu": 64, "cuda": 64})
    monkeypatch.setattr(losses, "SCORED", 88)
    monkeypatch.setattr(masked_graph, "PART", 5)


def gradients(model: nn.Module, loss) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and its gradients in training mode, dropout at 0.1, from one random state."""
    model.train()
    model.zero_grad()
    torch.manual_seed(7)
    value = loss()
    value.backward()
    model.eval()
    return value.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def largest_difference(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert one.keys() == two.keys() and len(one) > 10
    return max(float((one[n] - two[n]).abs().max()) for n in one)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_of_the_dual_encoder(encoders, tiny_dataset: Dataset, monkeypatch, precision) -> None:
    texts = tiny_dataset.passages.take(np.arange(30)).full_texts()
    tokens = Tokens.of(encoders.passage_encoder.tokenizer, texts, 32)
    queries, passages = np.arange(11), np.arange(8, 30)
    excluded = torch.rand(11, 22, generator=torch.Generator().manual_seed(3)) < 0.1
    excluded[:, :11].fill_diagonal_(False)
    excluded = excluded.nonzero().T

    def loss(cached: bool) -> torch.Tensor:
        with autocast(precision):
            return contrastive_loss(
                embed(encoders.query_encoder, tokens, queries, cached=cached),
                embed(encoders.passage_encoder, tokens, passages, cached=cached),
                torch.arange(11), excluded, 1.0, cached=cached,
            )  # fmt: skip

    value, plain = gradients(encoders, partial(loss, False))
    cached_value, cached = gradients(encoders, partial(loss, True))
    assert cached_value == pytest.approx(value, abs=1e-6)
    assert largest_difference(plain, cached) < (1e-5 if precision == "fp32" else 1e-3)
    # Control: without the first pass's random state dropout draws anew, and the gradients are another function's.
    forgetful = partial(torch.utils.checkpoint.checkpoint, preserve_rng_state=False)
    monkeypatch.setattr(embedding, "checkpoint", forgetful)
    _, wrong = gradients(encoders, partial(loss, True))
    assert largest_difference(plain, wrong) > 1e-2


@pytest.mark.parametrize("cached", [False, True])
def test_packed_rows_have_the_gradients_of_padded_ones(encoders, tiny_dataset: Dataset, monkeypatch, cached) -> None:
    """As encoders train on a GPU in bf16, here in fp32 by the attention of a CPU."""
    monkeypatch.setattr(embedding, "ROW", 7)
    texts = tiny_dataset.passages.take(np.arange(30)).full_texts()
    tokens = Tokens.of(encoders.passage_encoder.tokenizer, texts, 32)
    weights, rows = torch.randn(30, 32, generator=torch.Generator().manual_seed(1)), np.arange(30)[::-1]
    model = copy.deepcopy(encoders)
    set_dropout(model, 0.0)

    def loss() -> torch.Tensor:
        with autocast("fp32"):
            sides = (embed(side, tokens, rows, cached=cached) for side in (model.query_encoder, model.passage_encoder))
            return sum(((vectors * weights).sum() for vectors in sides), torch.zeros(()))

    def packed_gradients() -> tuple[float, dict[str, torch.Tensor]]:
        with computing_as_trained(model, "fp32"):
            assert all(is_packed(side.backbone) for side in (model.query_encoder, model.passage_encoder))
            vectors = encode_texts(model.passage_encoder, texts, precision="bf16")  # as the refreshed passages' are
            assert np.abs(vectors).max() > 0.1
            return gradients(model, loss)

    value, plain = gradients(model, loss)
    monkeypatch.setattr(computation, "PACKED_ON", ("cpu",))
    packed_value, packed = packed_gradients()
    assert not is_packed(model.query_encoder.backbone)
    assert packed_value == pytest.approx(value, abs=1e-4)
    assert largest_difference(plain, packed) < 1e-4

    def late(*padded, **options):  # control: each text but the first begins one token late
        ids, positions, bounds, longest = pack(*padded, **options)
        bounds[1:-1] += 1
        return ids, positions, bounds, longest + 1

    monkeypatch.setattr(embedding, "pack", late)
    assert largest_difference(plain, packed_gradients()[1]) > 1e-2


def test_the_first_pass_keeps_nothing_of_a_part(encoders, tiny_dataset: Dataset) -> None:
    texts = tiny_dataset.passages.take(np.arange(30)).full_texts()
    tokens = Tokens.of(encoders.passage_encoder.tokenizer, texts, 32)
    recorded: list[bool] = []
    noted = encoders.passage_encoder.register_forward_pre_hook(lambda *_: recorded.append(torch.is_grad_enabled()))
    vectors = embed(encoders.passage_encoder, tokens, np.arange(30), cached=True)
    first = list(recorded)
    vectors.sum().backward()
    noted.remove()
    assert len(first) > 1 and not any(first)
    assert recorded == first + [True] * len(first)
    with torch.no_grad():
        cached, plain = (embed(encoders.passage_encoder, tokens, np.arange(30), cached=on) for on in (True, False))
    assert torch.equal(cached, plain)


def test_memory_is_given_back_before_the_backward_pass(encoders, tiny_dataset: Dataset, monkeypatch) -> None:
    returned = 0

    def counted() -> None:
        nonlocal returned
        returned += 1

    monkeypatch.setattr(embedding, "give_back", counted)
    monkeypatch.setattr(embedding, "TRIMMED", 10**9)
    tokens = Tokens.of(encoders.query_encoder.tokenizer, tiny_dataset.query_texts(np.arange(9)), 32)
    vectors = embed(encoders.query_encoder, tokens, np.arange(9), cached=True)
    assert returned == 0
    vectors.sum().backward()
    assert returned == 1


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that were checkpointed; `_part` stands for an encoder."""
    seen: list[str] = []
    real = embedding.checkpoint

    def noted(function, *arguments, **options):
        seen.append(function.__name__)
        return real(function, *arguments, **options)

    monkeypatch.setattr(embedding, "checkpoint", noted)
    return seen


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_through_the_gnn(encoders, tiny_dataset: Dataset, layers, parts: list[str]) -> None:
    generator = np.random.default_rng(0)
    queries = tiny_dataset.query_rows("train")
    edges = np.stack([generator.permutation(100)[:8] for _ in queries]).astype(np.int32)
    features = generator.standard_normal((*edges.shape, 6)).astype(np.float16)
    graph = Graph(queries, edges, edges < -1, features, *reverse_csr(edges, 100))
    examples = examples_of(tiny_dataset, generator.integers(0, 100, (60, 4)).astype(np.int32))
    model = GnnEncoder(encoders, GNN(GnnConfig(width=32, edge_width=6, layers=layers)))
    vectors = generator.standard_normal((100, 32)).astype(np.float32)
    settings = TrainGnn(mask="folds", mask_fraction=0.2, batch_size=12)
    plain, cached = (
        MaskedGraphTraining(model, tiny_dataset, examples, graph, vectors, chosen)
        for chosen in (settings, settings.model_copy(update={"gradient_cache": True}))
    )
    batch = next(batches_of(plain.plan(), 0))
    with OrderedSums():
        value, expected = gradients(model, lambda: plain.loss(batch))
        assert not parts
        cached_value, cached_gradients = gradients(model, lambda: cached.loss(batch))
    assert min(parts.count(name) for name in ("_part", "query_side", "passage_side", "losses")) > 1
    assert cached_value == pytest.approx(value, abs=1e-6)
    assert largest_difference(expected, cached_gradients) < 1e-5
    # Control: another loss scale has other gradients.
    cached.scale *= 1.01
    assert largest_difference(expected, gradients(model, lambda: cached.loss(batch))[1]) > 1e-4


@pytest.mark.parametrize("on", [False, True])
def test_the_setting_reaches_contrastive_training(
    encoders, tiny_dataset: Dataset, tmp_path, monkeypatch, on, parts
) -> None:
    settings = TrainDpr(epochs=1, batch_size=8, dev_queries=0, gradient_cache=on)
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    with mlflow_runs.step_log("test", params={}, tags={}) as run:
        context = Context("test", run, "key")
        train_contrastive(copy.deepcopy(encoders), examples_of(tiny_dataset), tiny_dataset, settings, context)
    assert bool(parts) == on


def test_control_sums_in_any_order_are_noticed() -> None:
    values, rows = torch.randn(5, 4, requires_grad=True), torch.tensor([0, 3, 3, 1])
    with OrderedSums():
        values[rows[:2]].sum().backward()
        values.index_select(0, rows).sum().backward()
        with pytest.raises(AssertionError, match="in any order"):
            values[rows].sum().backward()
