"""Texts in one row give what they give padded; which backbones can be read so is found out."""

from typing import Any

import numpy as np
import pytest
import torch
from reference_attention import ReferenceAttention
from transformers import (
    AlbertConfig,
    AutoModel,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    EuroBertConfig,
    GPT2Config,
    ModernBertConfig,
    MPNetConfig,
    RobertaConfig,
)

from gnn_encoder.models.packed import CannotPack, Row, first_position, gpu_attention, pack, reads_packed

SHAPE: dict[str, Any] = {
    "vocab_size": 90, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
BACKBONES = {
    "bert": BertConfig(**SHAPE),
    "electra": ElectraConfig(**SHAPE, embedding_size=16),
    "albert": AlbertConfig(**SHAPE, embedding_size=16),
    "distilbert": DistilBertConfig(
        vocab_size=90, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64
    ),
    "roberta": RobertaConfig(**SHAPE | {"pad_token_id": 1, "max_position_embeddings": 66}),
    "modernbert": ModernBertConfig(
        **SHAPE, local_attention=8, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2, bos_token_id=1,
        eos_token_id=2,
    ),
    "eurobert": EuroBertConfig(**SHAPE, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, mask_token_id=3),
    "mpnet": MPNetConfig(**SHAPE | {"pad_token_id": 1, "max_position_embeddings": 66}),
    "deberta": DebertaV2Config(**SHAPE),
    "gpt2": GPT2Config(
        vocab_size=90, n_embd=32, n_layer=2, n_head=4, n_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2
    ),
}  # fmt: skip


def backbone(name: str) -> Any:
    torch.manual_seed(3)
    return AutoModel.from_config(BACKBONES[name]).eval()


def texts(padding: int) -> tuple[np.ndarray, np.ndarray]:
    mask = np.arange(50) < np.array([50, 3, 17, 17, 1])[:, None]
    ids = np.random.default_rng(5).integers(4, 90, mask.shape)
    return np.where(mask, ids, padding), mask.astype(np.int64)


def in_a_row(model: Any, packed: tuple[Any, ...], attention: Any) -> torch.Tensor:
    arrays = (torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in packed)
    with reads_packed(model):
        return Row(attention, *arrays).hidden(model)


@pytest.mark.parametrize(
    ("name", "start"),
    [("bert", 0), ("electra", 0), ("albert", 0), ("distilbert", 0), ("roberta", 2), ("modernbert", 0), ("eurobert", 0)],
)
@torch.inference_mode()
def test_a_row_gives_what_padded_texts_give(name: str, start: int) -> None:
    model, attention = backbone(name), ReferenceAttention()
    assert first_position(model, attention) == start and attention.calls == 6  # three tries of two layers
    before = model.config._attn_implementation
    ids, mask = texts(model.config.pad_token_id)
    expected = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))[0][mask.astype(bool)]
    packed = pack(start, ids, mask)
    assert packed[0].shape == packed[1].shape == (1, 88)
    assert (in_a_row(model, packed, attention) - expected).abs().max() < 1e-5
    # Controls: one text of all, and positions that do not restart.
    whole = (*packed[:2], np.array([0, 88], np.int32), 88)
    assert (in_a_row(model, whole, attention) - expected).abs().max() > 1e-2
    if name not in ("modernbert", "eurobert"):  # where only distances count
        running = (packed[0], start + np.arange(88)[None] % 60, *packed[2:])
        assert (in_a_row(model, running, attention) - expected).abs().max() > 1e-2
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("name", ["mpnet", "deberta", "gpt2"])
@torch.inference_mode()
def test_others_are_left_padded(name: str) -> None:
    """Relative positions added to the attention, attention of its own, attention to what came before."""
    assert first_position(backbone(name), ReferenceAttention()) is None


@torch.inference_mode()
def test_a_backbone_that_tells_its_attention_nothing_is_left_padded() -> None:
    model = backbone("bert")
    forward = model.encoder.forward
    model.encoder.forward = lambda hidden, attention_mask, **others: forward(hidden, attention_mask=attention_mask)
    assert first_position(model, ReferenceAttention()) is None
    with pytest.raises(CannotPack, match="not told where texts begin"):
        in_a_row(model, pack(0, *texts(0)), ReferenceAttention())


@torch.inference_mode()
def test_a_wrong_kernel_is_found_out() -> None:
    def identity(query: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        return query

    def across(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        whole = torch.tensor([0, len(q)], dtype=torch.int32)
        return ReferenceAttention()(q, k, v, whole, whole, len(q), len(q), **options)

    for wrong in (identity, across):
        assert first_position(backbone("bert"), wrong) is None


@torch.inference_mode()
def test_bf16_is_near_enough() -> None:
    for name, start in (("bert", 0), ("roberta", 2), ("modernbert", 0)):
        assert first_position(backbone(name).bfloat16(), ReferenceAttention()) == start


def test_an_empty_text_is_not_given_its_neighbours_vector() -> None:
    ids, positions, bounds, longest = pack(0, np.array([[7, 8], [0, 0]]), np.array([[1, 1], [0, 0]]))
    assert ids.tolist() == [[7, 8, 0]] and positions.tolist() == [[0, 1, 0]]
    assert bounds.tolist() == [0, 2, 3] and longest == 2


def test_no_kernel_without_a_gpu() -> None:
    assert gpu_attention(torch.device("cpu"), torch.bfloat16) is None
