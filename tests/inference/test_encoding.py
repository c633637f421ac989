"""Encoding: the same vectors as a plain one-by-one pass, whatever the batches."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3Model

from gnn_encoder.inference import tokens
from gnn_encoder.inference.encoding import (
    attention_of_any_shape,
    budget_batches,
    encode_passages,
    encode_texts,
    inference_copy,
    inference_dtype,
)
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.models.packed import Row

TEXTS = ["the old river", "a", "what is the bright copper garden about and in the narrow winter", "stone " * 60]


@pytest.fixture(scope="module", params=["cls", "mean"])
def encoder(request, tiny_backbone) -> TextEncoder:
    return TextEncoder.from_backbone(str(tiny_backbone), pooling=request.param, normalize="yes", max_length=24).eval()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU decides")
@pytest.mark.parametrize(
    ("capabilities", "fast"),
    [
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, False),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": False}, False),
        ({"architecture": "arm64"}, False),
    ],
)
def test_bf16_is_used_where_it_is_fast(
    capabilities: dict[str, bool | str], fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert inference_dtype("auto") is (torch.bfloat16 if fast else torch.float32)
    assert inference_dtype("bf16") is torch.bfloat16


def one_by_one(encoder: TextEncoder, texts: list[str]) -> np.ndarray:
    rows = []
    with torch.inference_mode():
        for text in texts:
            inputs = encoder.tokenizer(text, truncation=True, max_length=24, return_tensors="pt")
            hidden = encoder.backbone(inputs["input_ids"], inputs["attention_mask"])[0][0]
            vector = hidden[0] if encoder.pooling == "cls" else hidden.mean(0)
            rows.append((vector / vector.norm()).numpy())
    return np.stack(rows)


@pytest.mark.parametrize("budget", [1, 30, 4096])
def test_equals_one_by_one(encoder, budget):
    vectors = encode_texts(encoder, TEXTS, tokens_per_batch=budget, precision="fp32")
    assert np.abs(vectors - one_by_one(encoder, TEXTS)).max() < 1e-5
    assert np.abs(vectors - one_by_one(encoder, TEXTS[::-1])).max() > 1e-3


def test_bf16_leaves_the_encoders_own_weights_alone(encoder):
    before = {name: p.clone() for name, p in encoder.named_parameters()}
    with inference_copy(encoder, "bf16") as model:
        assert next(model.parameters()).dtype is torch.bfloat16
    assert all(torch.equal(p, before[name]) for name, p in encoder.named_parameters())


def test_rotary_frequencies_stay_fp32_in_bf16() -> None:
    """As transformers keeps them: the error of a frequency grows with the position (after 1,024 tokens of a Qwen3 with
    random weights, 1 - cosine of the last token to fp32 is 0.013 with frequencies in bf16, and 0.0004 without)."""
    model = Qwen3Model(
        Qwen3Config(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1, head_dim=16)
    )
    with inference_copy(model, "bf16") as copied:
        assert {parameter.dtype for parameter in copied.parameters()} == {torch.bfloat16}
        assert copied.rotary_emb.inv_freq.tolist() == model.rotary_emb.inv_freq.tolist()
        assert copied.rotary_emb.inv_freq.bfloat16().float().tolist() != model.rotary_emb.inv_freq.tolist()


def test_passages_are_title_and_text(encoder, tiny_dataset):
    out = np.zeros((100, encoder.width), np.float32)
    encode_passages(encoder, tiny_dataset.passages, out, precision="fp32")
    some = tiny_dataset.passages.take(np.array([99, 3]))
    assert np.abs(out[[99, 3]] - encode_texts(encoder, some.full_texts(), precision="fp32")).max() < 1e-5
    assert np.abs(out[[99, 3]] - encode_texts(encoder, some.texts, precision="fp32")).max() > 1e-4


def test_tokenizing_in_shards_changes_nothing(encoder, monkeypatch):
    whole = Tokens.of(encoder.tokenizer, TEXTS, 24)
    monkeypatch.setattr(tokens, "SHARD", 3)
    sharded = Tokens.of(encoder.tokenizer, TEXTS, 24)
    assert np.array_equal(whole.ids, sharded.ids) and np.array_equal(whole.offsets, sharded.offsets)
    assert len(Tokens.of(encoder.tokenizer, [], 24)) == 0


def test_empty_input(encoder):
    assert encode_texts(encoder, []).shape == (0, encoder.width)


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 200))
def test_batches_hold_every_row_once_within_the_budget(lengths, budget):
    array = np.array(lengths, dtype=np.int64)
    batches = list(budget_batches(array, budget))
    assert sorted(np.concatenate(batches).tolist() if batches else []) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or array[batch].max() * len(batch) <= budget


def test_take_and_padded():
    tokens = Tokens.flatten([[1, 2, 3], [4], [5, 6]])
    ids, mask = tokens.take(np.array([2, 0])).padded(np.array([0, 1]), pad=9)
    assert ids.tolist() == [[5, 6, 9], [1, 2, 3]] and mask.tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("shared", [False, True])
def test_dual_encoder_round_trip(tmp_path, tiny_backbone, shared):
    model = DualEncoder.from_backbone(
        str(tiny_backbone), pooling="cls", normalize="no", query_length=8, passage_length=16, share_encoders=shared
    )
    with torch.no_grad():
        model.query_encoder.backbone.embeddings.word_embeddings.weight.normal_()
    model.save(tmp_path)
    again = DualEncoder.load(tmp_path)
    assert again.shared == shared and again.query_encoder.max_length == 8 and not again.passage_encoder.normalize
    for one, other in ((model.query_encoder, again.query_encoder), (model.passage_encoder, again.passage_encoder)):
        assert np.array_equal(encode_texts(one, TEXTS), encode_texts(other, TEXTS))
    same = np.allclose(encode_texts(again.query_encoder, TEXTS[:1]), encode_texts(again.passage_encoder, TEXTS[:1]))
    assert same == shared
    assert not list(tmp_path.rglob("*.bin"))


def test_cudnns_attention_is_off_in_all_blocks_of_several_threads_and_on_after_them() -> None:
    entered, leave, after = threading.Event(), threading.Event(), []

    def inside() -> None:
        with attention_of_any_shape():
            entered.set()
            assert leave.wait(10)
            after.append(torch.backends.cuda.cudnn_sdp_enabled())

    thread = threading.Thread(target=inside)
    with attention_of_any_shape():
        thread.start()
        assert entered.wait(10)
    leave.set()
    thread.join()
    assert after == [False] and torch.backends.cuda.cudnn_sdp_enabled()


def test_a_batch_that_is_not_filled_has_no_more_tokens_than_it_needs(encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    packed = TextEncoder.packed

    def seen(self: TextEncoder, row: Row) -> torch.Tensor:
        read.append(row.ids.shape[1])
        return packed(self, row)

    monkeypatch.setattr(TextEncoder, "packed", seen)
    expected = one_by_one(encoder, TEXTS)
    for filled, tokens_read in ((True, [4096]), (False, [64])):
        read.clear()
        vectors = encode_texts(encoder, TEXTS, precision="fp32", filled=filled)
        assert read == tokens_read and np.abs(vectors - expected).max() < 1e-5
