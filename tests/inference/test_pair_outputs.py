"""Ragged outputs of a frozen encoder: equal to what the full model reads, and independent of the other pairs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from text_table import TextTable

from gnn_encoder.inference import replicas
from gnn_encoder.inference.pair_outputs import FrozenEncoder, PairOutputs, read_outputs
from gnn_encoder.inference.scoring import PairTokens
from gnn_encoder.inference.sentences import SentencePairs, Sentences
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.bert_dmn import BertDmn, reading
from gnn_encoder.models.cross_encoder import CrossEncoder

QUERIES = ["what is the river", "", "stone " * 30]
TEXTS = ["the old river. the stone! is the cloud bright? yes", "a garden without any end", "", "the river. " * 30]


@pytest.fixture
def model(tiny_backbone: Path) -> BertDmn:
    torch.manual_seed(0)
    return BertDmn.from_backbone(str(tiny_backbone), 24, width=4).train()


@pytest.fixture
def pairs(model: BertDmn) -> SentencePairs:
    queries, table = Tokens.of(model.tokenizer, QUERIES, 64), TextTable(TEXTS)
    sentences = Sentences(model.tokenizer, table, np.arange(len(TEXTS)), 64)  # type: ignore[arg-type]
    return SentencePairs(model.tokenizer, queries, sentences, model.max_length)


def every_pair() -> tuple[np.ndarray, np.ndarray]:
    """Queries and passages: without tokens, of one sentence, and cut."""
    first, second = (axis.ravel() for axis in np.meshgrid(np.arange(3), np.arange(len(TEXTS)), indexing="ij"))
    return first, second


@pytest.mark.parametrize("packs", [True, False])
def test_a_reading_is_what_the_model_reads(
    model: BertDmn, pairs: SentencePairs, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packs:
        monkeypatch.setattr(replicas, "packed_attention", lambda *where: None)
    first, second = every_pair()
    arrays = [torch.from_numpy(array) for array in pairs.padded(first, second)]
    outputs = read_outputs(
        FrozenEncoder(model), pairs, first, second, np.float32, precision="fp32", tokens_per_batch=64
    )
    rows = np.random.default_rng(0).permutation(len(first))
    pairs_read = outputs.reading(rows)
    with torch.no_grad():
        hidden = model.eval().backbone(input_ids=arrays[0], attention_mask=arrays[1], token_type_ids=arrays[2])[0]
    expected = reading(hidden, arrays[3])
    assert torch.equal(pairs_read.query_length, expected.query_length[rows])
    assert torch.equal(pairs_read.sentence_count, expected.sentence_count[rows])
    assert pairs_read.query_length.min() == pairs_read.sentence_count.min() == 0 < 2 < pairs_read.sentence_count.max()
    torch.testing.assert_close(pairs_read.cls, expected.cls[rows], atol=1e-5, rtol=0)
    torch.testing.assert_close(pairs_read.sentences, expected.sentences[rows], atol=1e-5, rtol=0)
    for row, length in enumerate(pairs_read.query_length):
        torch.testing.assert_close(
            pairs_read.query[row, :length], expected.query[rows[row], :length], atol=1e-5, rtol=0
        )
    # Control: the reading of other pairs differs.
    other = outputs.reading(np.roll(rows, 1))
    assert (other.cls - expected.cls[rows]).abs().max() > 0.01


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_pair_has_the_same_bits_in_every_batch(model: BertDmn, pairs: SentencePairs, precision: str) -> None:
    first, second = every_pair()

    def read(rows: np.ndarray) -> PairOutputs:
        return read_outputs(FrozenEncoder(model), pairs, first[rows], second[rows], np.float32, precision=precision)

    together = read(np.arange(len(first)))
    for row in range(len(first)):
        alone, one = read(np.array([row])).reading(np.zeros(1, np.int64)), together.reading(np.array([row]))
        assert all(torch.equal(a, b) for a, b in zip(alone, one, strict=True))


def test_without_sentences_only_cls_is_kept(tiny_backbone: Path, pairs: SentencePairs) -> None:
    model = CrossEncoder.from_backbone(str(tiny_backbone), 24)
    plain = PairTokens(model.tokenizer, pairs.first, pairs.second, 24)
    first, second = every_pair()
    outputs = read_outputs(FrozenEncoder(model), plain, first, second, np.float32, precision="fp32")
    assert len(outputs.values) == len(first)
    with torch.no_grad():
        ids, mask, types = (torch.from_numpy(array) for array in plain.padded(first, second))
        expected = model.eval()(ids, mask, types)
        scores, cls = model.scored(outputs.reading(np.arange(len(first))).cls)
    torch.testing.assert_close(cls, expected[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(scores, expected[0], atol=1e-5, rtol=0)
