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
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    Lfm2Config,
    MistralConfig,
    ModernBertConfig,
    MPNetConfig,
    Qwen3Config,
    RobertaConfig,
    T5Config,
    T5EncoderModel,
)

from gnn_encoder.models.packed import (
    CannotPack,
    Row,
    _gpu_attention,
    cpu_attention,
    first_position,
    pack,
    packed_attention,
    reads_packed,
)

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
    "qwen3": Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=8, bos_token_id=1, eos_token_id=2),
    "mistral": MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=8, bos_token_id=1, eos_token_id=2),
    "gemma": Gemma3TextConfig(
        **SHAPE, num_key_value_heads=2, head_dim=8, sliding_window=8, bos_token_id=1, eos_token_id=2,
        layer_types=["sliding_attention", "full_attention"], use_bidirectional_attention=True,
    ),
    "gemma2": Gemma2Config(**SHAPE, num_key_value_heads=2, head_dim=8, bos_token_id=1, eos_token_id=2),
    "lfm2": Lfm2Config(
        **SHAPE, num_key_value_heads=2, layer_types=["conv", "full_attention"], bos_token_id=1, eos_token_id=2
    ),
    "t5": T5Config(vocab_size=90, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, pad_token_id=0),
}  # fmt: skip


def backbone(name: str) -> Any:
    torch.manual_seed(3)
    model = T5EncoderModel(BACKBONES[name]) if name == "t5" else AutoModel.from_config(BACKBONES[name])
    return model.eval()


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
    [
        ("bert", 0),
        ("electra", 0),
        ("albert", 0),
        ("distilbert", 0),
        ("roberta", 2),
        ("modernbert", 0),
        ("eurobert", 0),
        ("gpt2", 0),
        ("qwen3", 0),
        ("mistral", 0),
        ("gemma", 0),
    ],
)
@torch.inference_mode()
def test_a_row_gives_what_padded_texts_give(name: str, start: int) -> None:
    model, attention = backbone(name), ReferenceAttention()
    for _ in range(2):  # the second time it is known
        assert first_position(model, attention) == start and attention.calls == 6  # three tries of two layers
    before = model.config._attn_implementation
    ids, mask = texts(model.config.pad_token_id)
    expected = model(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))[0][mask.astype(bool)]
    packed = pack(start, ids, mask)
    assert packed[0].shape == packed[1].shape == (1, 88)
    assert (in_a_row(model, packed, attention) - expected).abs().max() < 1e-5
    assert (in_a_row(model, packed, cpu_attention) - expected).abs().max() < 1e-5
    filled = in_a_row(model, pack(start, ids, mask, whole=100), cpu_attention)
    assert filled.shape[0] == 100 and (filled[:88] - expected).abs().max() < 1e-5
    # Controls: one text of all, and positions that do not restart.
    whole = (*packed[:2], np.array([0, 88], np.int32), 88)
    assert (in_a_row(model, whole, attention) - expected).abs().max() > 1e-2
    if name in ("bert", "electra", "albert", "distilbert", "roberta", "gpt2"):  # elsewhere only distances count
        running = (packed[0], start + np.arange(88)[None] % 60, *packed[2:])
        assert (in_a_row(model, running, attention) - expected).abs().max() > 1e-2
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("name", ["mpnet", "deberta", "t5", "lfm2", "gemma2"])
@torch.inference_mode()
def test_others_are_left_padded(name: str) -> None:
    """Relative positions added to the attention, attention of its own, convolutions, weights that are capped."""
    assert first_position(backbone(name), ReferenceAttention()) is None


@torch.inference_mode()
def test_a_backbone_that_tells_its_attention_nothing_is_left_padded() -> None:
    model = backbone("bert")
    forward = model.encoder.forward
    model.encoder.forward = lambda hidden, attention_mask, **others: forward(hidden, attention_mask=attention_mask)
    assert first_position(model, ReferenceAttention()) is None
    with pytest.raises(CannotPack, match="does not pass on where texts begin"):
        in_a_row(model, pack(0, *texts(0)), ReferenceAttention())


@torch.inference_mode()
def test_a_wrong_kernel_is_found_out() -> None:
    def identity(query: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        return query

    def across(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        whole = torch.tensor([0, len(q)], dtype=torch.int32)
        return ReferenceAttention()(q, k, v, whole, len(q), **options)

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


@pytest.mark.parametrize("window", [(-1, -1), (3, 3), (0, 5), (-1, 2), (40, 40), (-1, 0), (5, 0), (40, 0)])
@pytest.mark.parametrize("groups", [4, 2])
def test_attention_on_a_cpu(window: tuple[int, int], groups: int) -> None:
    torch.manual_seed(2)
    bounds = torch.tensor([0, 30, 47, 64, 80, 96, 97, 100], dtype=torch.int32)
    query, (key, value) = torch.randn(105, 4, 8), torch.randn(2, 105, groups, 8)
    options: dict[str, Any] = {"scale": 0.3, "window_size": window, "enable_gqa": groups == 2}
    attended = cpu_attention(query, key, value, bounds, 30, **options)
    expected = ReferenceAttention()(query, key, value, bounds, 30, **options)
    assert (attended - expected).abs().max() < 1e-6 and (attended[100:] == 0).all()
    # Controls: texts that begin one later, other windows.
    assert (cpu_attention(query, key, value, bounds.clamp(min=1) - 1, 30, **options) - attended).abs().max() > 0.1
    other = cpu_attention(query, key, value, bounds, 30, **options | {"window_size": (1, 1)})
    assert (other - attended).abs().max() > 0.1


def test_a_row_is_filled_up() -> None:
    ids, mask = np.array([[7, 8], [9, 0]]), np.array([[1, 1], [1, 0]])
    tokens, positions, bounds, longest, types = pack(2, ids, mask, mask, whole=6)
    assert tokens.tolist() == [[7, 8, 9, 0, 0, 0]] and positions.tolist() == [[2, 3, 2, 2, 2, 2]]
    assert bounds.tolist() == [0, 2, 3] and longest == 2 and types.tolist() == [[1, 1, 1, 0, 0, 0]]
    assert pack(0, ids, mask, whole=2)[0].tolist() == [[7, 8, 9]]
    assert pack(0, ids, mask, multiple=4)[0].tolist() == [[7, 8, 9, 0]]
    assert pack(0, ids, mask, multiple=3)[0].tolist() == [[7, 8, 9]]


def test_what_attends_where() -> None:
    assert packed_attention(torch.device("cpu"), torch.bfloat16) is cpu_attention
    assert packed_attention(torch.device("cuda"), torch.float32) is None


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_gpu_kernel_is_called_as_it_wants(dropout: float) -> None:
    """Shapes alone, on torch's device without data."""
    query, key, value = (torch.empty(50, 4, 32, device="meta", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    bounds = torch.empty(4, dtype=torch.int32, device="meta")
    options: dict[str, Any] = {"scale": 0.2, "window_size": (-1, 0), "enable_gqa": False, "dropout": dropout}
    result = _gpu_attention(query, key, value, bounds, 20, **options)
    result.float().sum().backward()
    assert result.shape == query.grad.shape == key.grad.shape == value.grad.shape == (50, 4, 32)


def test_a_closed_row_has_no_token_outside_of_texts() -> None:
    ids, mask = np.arange(12).reshape(3, 4), np.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]])
    row, positions, bounds, longest = pack(0, ids, mask, multiple=5, closed=True)
    assert row.shape == (1, 10) and bounds.tolist() == [0, 2, 6, 8, 10] and longest == 4
    assert positions[0].tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 0, 0] and bounds.dtype == np.int32
    whole = pack(0, ids, mask, multiple=8, closed=True)
    assert whole[0].shape == (1, 16) and whole[2].tolist() == [0, 2, 6, 8, 16] and whole[3] == 8
    assert pack(0, ids, mask, multiple=8)[2].tolist() == [0, 2, 6, 8]  # control
