"""How a model computes while it is trained: its attention and its dropout."""

import pytest
import torch
from torch import nn

from gnn_encoder.models.backbone import load_encoder
from gnn_encoder.training.loop import set_dropout, trainable_attention

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
    with trainable_attention(nn.ModuleList([backbone]), precision):
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
    with trainable_attention(both, precision):
        assert {part.config._attn_implementation for part in parts} == {inside}
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert {part.config._attn_implementation for part in parts} == {"sdpa"} and torch.backends.cuda.cudnn_sdp_enabled()
