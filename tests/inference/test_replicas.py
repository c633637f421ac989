"""Packed or padded, on one device or several: the same vectors and scores."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import WORDS
from reference_attention import ReferenceAttention

from gnn_encoder.inference import encoding, replicas
from gnn_encoder.inference.encoding import encode_passages, encode_question, encode_texts, fast_bf16
from gnn_encoder.inference.replicas import streamed
from gnn_encoder.inference.scoring import PairTokens, score_pairs
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import TextEncoder

TEXTS = [" ".join(WORDS[(i * j) % len(WORDS)] for j in range(1, 2 + i % 9 * 3)) for i in range(40)]
SPEED = {"precision": "fp32", "tokens_per_batch": 100}
CPU = torch.device("cpu")


def write_mpnet(path: Path, like: Path) -> Path:
    """A random MPNet with the tokenizer of another folder."""
    from transformers import AutoTokenizer, MPNetConfig, MPNetModel

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(like)
    config = MPNetConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    MPNetModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> ReferenceAttention:
    """Reads rows from here on, and counts."""
    reference = ReferenceAttention()
    monkeypatch.setattr(replicas, "packed_attention", lambda where, dtype: reference)
    return reference


@pytest.fixture
def without_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be packed."""
    monkeypatch.setattr(replicas, "packed_attention", lambda where, dtype: None)


@pytest.fixture(params=["bert", "mpnet"])
def backbone(request: pytest.FixtureRequest, tiny_backbone: Path, tmp_path: Path) -> str:
    return str(tiny_backbone if request.param == "bert" else write_mpnet(tmp_path / "mpnet", tiny_backbone))


def scored(model: CrossEncoder, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores and vectors of each text with ten others."""
    tokens = Tokens.of(model.tokenizer, TEXTS, 40)
    first, second = np.repeat(np.arange(len(TEXTS)), 10), np.arange(10 * len(TEXTS)) * 7 % len(TEXTS)
    scores, cls = np.empty(len(first), np.float32), np.empty((len(first), model.width), np.float32)
    pairs = PairTokens(model.tokenizer, tokens, tokens, 40)
    score_pairs(model, pairs, first, second, scores, cls, **SPEED, **options)
    return scores, cls


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.usefixtures("without_attention")
def test_packed_vectors_equal_padded_ones(backbone, pooling, request):
    encoder = TextEncoder.from_backbone(backbone, pooling=pooling, normalize="no", max_length=24).eval()
    padded = encode_texts(encoder, TEXTS, **SPEED)
    attention = request.getfixturevalue("attention")
    packed = encode_texts(encoder, TEXTS, **SPEED)
    assert np.abs(packed - padded).max() < 1e-5 and np.abs(packed - padded[::-1]).max() > 1e-3
    assert (attention.calls > 6) == ("mpnet" not in backbone)


@pytest.mark.usefixtures("without_attention")
def test_packed_scores_equal_padded_ones(backbone, request):
    torch.manual_seed(1)
    model = CrossEncoder.from_backbone(backbone, 40).eval()
    padded = scored(model)
    attention = request.getfixturevalue("attention")
    packed = scored(model)
    assert all(np.abs(a - b).max() < 1e-5 for a, b in zip(padded, packed, strict=True))
    assert (attention.calls > 6) == ("mpnet" not in backbone)


def test_token_types_reach_a_packed_pair(tiny_backbone, attention, monkeypatch):
    model = CrossEncoder.from_backbone(str(tiny_backbone), 40).eval()
    _, right = scored(model)
    pack = replicas.pack
    monkeypatch.setattr(replicas, "pack", lambda start, *arrays, **whole: pack(start, *arrays[:2], **whole))
    assert np.abs(scored(model)[1] - right).max() > 1e-3


@pytest.mark.parametrize("precision", ["fp32", *(["bf16"] if fast_bf16() else [])])
def test_what_is_read_together_does_not_show(tiny_backbone, monkeypatch, precision):
    """To the last bit: of the vectors of texts, and of the scores and vectors of pairs."""
    torch.manual_seed(1)
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24, pooling="mean", normalize="yes")
    model = CrossEncoder.from_backbone(str(tiny_backbone), 40)
    tokens, packed = Tokens.of(model.tokenizer, TEXTS, 40), []
    pack = replicas.pack
    monkeypatch.setattr(
        replicas, "pack", lambda *arguments, **whole: packed.append(pack(*arguments, **whole)) or packed[-1]
    )
    pairs = PairTokens(model.tokenizer, tokens, tokens, 40)

    def outputs_of(rows: np.ndarray) -> list[np.ndarray]:
        vectors = encode_texts(encoder, [TEXTS[row] for row in rows], precision=precision, tokens_per_batch=256)
        scores, cls = np.empty(len(rows), np.float32), np.empty((len(rows), model.width), np.float32)
        score_pairs(model, pairs, rows, (7 * rows) % 40, scores, cls, precision=precision, tokens_per_batch=256)
        return [vectors, scores, cls]

    def differ(some: np.ndarray) -> list[bool]:
        few, everything = outputs_of(some), outputs_of(np.arange(len(TEXTS)))
        return [not np.array_equal(one, other[some]) for one, other in zip(few, everything, strict=True)]

    assert not any(differ(np.array([5]))) and not any(differ(np.arange(40)[::-5]))
    # Products as narrow as this model's are alike for any number of tokens, those of a real one are not.
    assert {ids.shape[1] for ids, *_ in packed} == {256} and min(bounds[-1] for _, _, bounds, *_ in packed) < 100
    monkeypatch.setattr(replicas, "packed_attention", lambda where, dtype: None)
    assert any(differ(np.arange(40)[::-5]))


@pytest.mark.usefixtures("on_cpu")
def test_the_larger_batches_of_a_gpu_give_the_same(tiny_backbone, attention, monkeypatch):
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    packed, pack = [], replicas.pack
    monkeypatch.setattr(
        replicas, "pack", lambda *arguments, **sizes: packed.append(pack(*arguments, **sizes)) or packed[-1]
    )
    options = {"precision": "fp32", "tokens_per_batch": 64}
    plain, few = encode_texts(encoder, TEXTS, **options), len(packed)
    monkeypatch.setattr(encoding, "TIMES_TOKENS", {"cpu": 8})
    larger = encode_texts(encoder, TEXTS, **options)
    assert np.abs(larger - plain).max() < 1e-5 and np.abs(np.roll(larger, 1, axis=0) - plain).max() > 1e-3
    sizes = [ids.shape[1] for ids, *_ in packed]
    assert set(sizes[:few]) == {64} and len(sizes) - few <= few / 4
    assert all(size % 64 == 0 for size in sizes) and max(sizes) <= 512


def test_a_question_is_encoded_without_delay(tiny_backbone, attention):
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    vector = encode_question(encoder, TEXTS[8])
    assert attention.calls == 0
    expected = encode_texts(encoder, TEXTS[7:9], precision="fp32")
    assert np.abs(vector - expected[1]).max() < 1e-6 and np.abs(vector - expected[0]).max() > 1e-3


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_several_devices_give_what_one_gives(tiny_backbone, tiny_dataset, monkeypatch, request, packs, count):
    request.getfixturevalue("attention" if packs else "without_attention")
    torch.manual_seed(1)
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    scorer = CrossEncoder.from_backbone(str(tiny_backbone), 40)

    def results() -> list[np.ndarray]:
        vectors = np.zeros((100, encoder.width), np.float32)
        encode_passages(encoder, tiny_dataset.passages, vectors, **SPEED)
        return [vectors, *scored(scorer)]

    alone, threads = results(), set()
    forward = TextEncoder.packed if packs else TextEncoder.forward

    def seen(self: TextEncoder, *inputs: Any) -> torch.Tensor:
        threads.add((threading.get_ident(), id(self)))
        return forward(self, *inputs)

    monkeypatch.setattr(TextEncoder, forward.__name__, seen)
    monkeypatch.setattr(replicas, "devices", lambda: [CPU] * count)
    assert all(np.array_equal(a, b) for a, b in zip(alone, results(), strict=True))
    assert len(threads) == len({replica for _, replica in threads}) == count


@pytest.mark.usefixtures("without_attention")
def test_an_error_on_one_device_ends_the_others(tiny_backbone, monkeypatch):
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    monkeypatch.setattr(replicas, "devices", lambda: [CPU, CPU])
    forward, read, failed = TextEncoder.forward, [], threading.Event()

    def failing(self: TextEncoder, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self is encoder:
            failed.set()
            raise ValueError("out of memory")
        assert failed.wait(10)
        read.append(len(ids))
        return forward(self, ids, mask)

    monkeypatch.setattr(TextEncoder, "forward", failing)
    with pytest.raises(ValueError, match="out of memory"):
        encode_texts(encoder, TEXTS * 40, precision="fp32", tokens_per_batch=24)
    assert len(read) < 20  # of several hundred


def test_the_devices_are_the_cpu_without_a_gpu():
    assert torch.cuda.is_available() or replicas.devices() == [CPU]


def test_results_come_one_batch_late_and_all_of_them():
    begun: list[int] = []

    def work(array: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        begun.append(number)
        return array + number, array * number

    batches = ((i, (np.full(2, i, np.float32), i)) for i in range(4))
    for key, (added, multiplied) in streamed(batches, work, CPU):
        assert begun == list(range(min(key + 2, 4)))
        assert added.tolist() == [2 * key] * 2 and multiplied.tolist() == [key * key] * 2
    assert list(streamed(iter([]), work, CPU)) == [] and len(begun) == 4
