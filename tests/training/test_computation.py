"""How a model computes while it is trained: its attention, its dropout, and the gradients of its tables."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.checkpoint import checkpoint

from gnn_encoder.models.backbone import load_encoder
from gnn_encoder.training import computation
from gnn_encoder.training.computation import computing_as_trained, set_dropout

pytestmark = pytest.mark.usefixtures("on_cpu")


def test_dropout_is_set_in_modules_and_in_plain_numbers():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout, self.inner = 0.1, nn.Dropout(0.1)

    layer = Layer()
    set_dropout(layer, 0.0)
    assert layer.dropout == 0.0 and layer.inner.p == 0.0


def gradients(backbone: nn.Module, precision: str, mask: torch.Tensor) -> torch.Tensor:
    """Of the attention's queries in the first layer."""
    ids = torch.arange(5, 15).reshape(2, 5)
    backbone.zero_grad()
    with computing_as_trained(nn.ModuleList([backbone]), precision):
        backbone(input_ids=ids, attention_mask=mask)[0][:, 0].pow(3).sum().backward()
    return backbone.encoder.layer[0].attention.self.query.weight.grad.clone()


def test_attention_in_bf16_training_is_not_fused_and_has_the_same_gradients(tiny_backbone):
    backbone = load_encoder(str(tiny_backbone)).double()
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    fused, plain = (gradients(backbone, precision, mask) for precision in ("fp32", "bf16"))
    assert torch.allclose(fused, plain, rtol=1e-9, atol=1e-12)
    # Control: a mask that attention ignores is noticed.
    assert not torch.allclose(plain, gradients(backbone, "bf16", torch.ones_like(mask)), rtol=1e-3)


@pytest.mark.parametrize(("precision", "inside"), [("fp32", "sdpa"), ("bf16", "eager")])
def test_attention_of_every_part_is_as_before_after_training(tiny_backbone, precision, inside):
    from transformers import BertConfig, BertLMHeadModel, EncoderDecoderModel

    config = BertConfig.from_pretrained(tiny_backbone, is_decoder=True, add_cross_attention=True)
    encoder, decoder = load_encoder(str(tiny_backbone)), BertLMHeadModel(config)
    both = EncoderDecoderModel(encoder=encoder, decoder=decoder)
    parts = (both.encoder, both.decoder, both.decoder.bert)
    with computing_as_trained(both, precision):
        assert {part.config._attn_implementation for part in parts} == {inside}
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert {part.config._attn_implementation for part in parts} == {"sdpa"} and torch.backends.cuda.cudnn_sdp_enabled()


class Words(nn.Module):
    """Reads ids in a table that also writes, as tied masked language models do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 8, padding_idx=0)
        self.table.weight.data[0] = torch.randn(8)
        self.layer, self.writes = nn.Linear(8, 8), nn.Linear(8, 50, bias=False)
        self.writes.weight = self.table.weight

    def vectors(self, ids: Tensor) -> Tensor:
        return self.layer(self.table(ids)).tanh()


def of_parts(words: Words, parts: list[Tensor]) -> Tensor:
    return torch.cat([words.vectors(part).flatten(0, -2) for part in parts])


def by_the_cache(words: Words, parts: list[Tensor]) -> Tensor:
    anchor = torch.zeros(0, requires_grad=True)
    read = [checkpoint(lambda _, ids: words.vectors(ids), anchor, part, use_reentrant=True) for part in parts]
    return torch.cat([vectors.flatten(0, -2) for vectors in read])


def computed_again(words: Words, parts: list[Tensor]) -> Tensor:
    read = [checkpoint(words.vectors, part, use_reentrant=False) for part in parts]
    return torch.cat([vectors.flatten(0, -2) for vectors in read])


def written(words: Words, parts: list[Tensor]) -> Tensor:
    return words.writes(of_parts(words, parts))


def gradients_of(words: Words, read: Callable[[Words, list[Tensor]], Tensor], parts: list[Tensor]) -> list[Tensor]:
    """Of the table and of the layer after it, of two losses that add up."""
    for scale in (1.0, 2.0):
        (read(words, parts) * scale).sin().sum().backward()
    return [p.grad for p in (words.table.weight, words.layer.weight) if p.grad is not None]


@pytest.fixture
def all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of any size count as large."""
    monkeypatch.setattr(computation, "LARGEST_REUSED", 0)


@pytest.mark.usefixtures("all_tables")
@pytest.mark.parametrize("read", [of_parts, by_the_cache, computed_again, written])
def test_gradients_of_look_ups_are_added_to_the_tables_rows(read):
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randint(0, 50, size, generator=generator) for size in ((3, 7), (4,), (5, 2))]
    assert any((part == 0).any() for part in parts)  # padding
    expected = gradients_of(Words(), read, parts)
    with computing_as_trained(words := Words(), "fp32"):
        same = gradients_of(words, read, parts)
    torch.testing.assert_close(same, expected, rtol=1e-5, atol=1e-6)
    assert read is written or not same[0][0].any()
    # Control: another id in one place is noticed.
    parts[0][0, 0] = parts[0][0, 0] % 49 + 1
    with computing_as_trained(other := Words(), "fp32"):
        changed = gradients_of(other, read, parts)
    assert (changed[0] - expected[0]).abs().max() > 0.01


class Scaled(nn.Embedding):
    """As Gemma's."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 3


class Doubled(nn.Module):
    """Computes a weight from a parameter."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def with_forward(table: nn.Embedding) -> nn.Embedding:
    """As some models' own code does."""
    table.forward = lambda ids: table.weight[ids] + 1  # type: ignore[method-assign]
    return table


@pytest.mark.usefixtures("all_tables")
def test_tables_that_are_trained_and_plain_are_looked_up_so_in_the_block_alone():
    others = {
        "frozen": nn.Embedding(9, 4).requires_grad_(False),
        "sparse": nn.Embedding(9, 4, sparse=True),
        "of limited norm": nn.Embedding(9, 4, max_norm=1.0),
        "scaled by frequency": nn.Embedding(9, 4, scale_grad_by_freq=True),
        "scaled": Scaled(9, 4),
        "parametrized": register_parametrization(nn.Embedding(9, 4), "weight", Doubled()),
        "of its own code": with_forward(nn.Embedding(9, 4)),
    }
    plain, ids = nn.Embedding(9, 4), torch.tensor([1, 2, 1])
    model = nn.ModuleList([plain, *others.values()])

    def ways() -> list[str]:
        return [type(table(ids).grad_fn).__name__ for table in model]

    before = ways()
    with computing_as_trained(model, "fp32"):
        assert ways() == ["_LookUpBackward", *before[1:]]
        assert torch.equal(plain(ids), plain.weight[ids])
    with pytest.raises(KeyError), computing_as_trained(model, "fp32"):
        raise KeyError
    assert ways() == before and before[0] == "EmbeddingBackward0"


def test_small_tables_are_left_alone():
    table = nn.Embedding(9, 4)
    with computing_as_trained(nn.ModuleList([table]), "fp32"):
        assert type(table(torch.tensor([1])).grad_fn).__name__ == "EmbeddingBackward0"
