"""A question's vector without torch is the one that transformers gives."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import write_tokenizer
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_question
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.question import Bert, Transformer, question_encoder
from gnn_encoder.settings import MINILM

QUESTIONS = ["what is the old river", "a", "?!", "Ünïcode, 北京 and 🙂\x00\x07", "the winter market " * 40, "violin"]


def check(folder: Path, questions: list[str]) -> None:
    """Both ways give one vector for each question, and another one for another question."""
    ours, theirs = question_encoder(folder), TextEncoder.load(folder)
    assert isinstance(ours, Bert) and ours.width == theirs.width
    vectors = np.concatenate([ours(question) for question in questions])
    expected = np.concatenate([encode_question(theirs, question) for question in questions])
    assert vectors.dtype == np.float32 and vectors.shape == expected.shape
    np.testing.assert_allclose(vectors, expected, atol=2e-6 * np.abs(expected).max())
    assert np.abs(vectors[0] - vectors[-1]).max() > 1e-3


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("normalize", ["yes", "no"])
def test_a_bert_reads_as_transformers_does(tmp_path: Path, tiny_backbone: Path, pooling: str, normalize: str) -> None:
    TextEncoder.from_backbone(str(tiny_backbone), pooling, normalize, max_length=24).save(tmp_path)
    check(tmp_path, QUESTIONS)


def test_minilm_reads_as_transformers_does(tmp_path: Path) -> None:
    TextEncoder.from_backbone(MINILM).save(tmp_path)
    check(tmp_path, QUESTIONS)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_long_question_is_cut_on_its_tokenizers_side(tmp_path: Path, tiny_backbone: Path, side: str) -> None:
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=6)
    encoder.tokenizer.truncation_side = side
    encode_question(encoder, "winter")  # the tokenizer keeps how it cut last
    encoder.save(tmp_path)
    check(tmp_path, ["the old river is in the silent garden", "violin"])


@pytest.mark.parametrize("change", [{"hidden_act": "relu"}, {"dtype": "float16"}, {"is_decoder": True}])
def test_another_encoder_is_left_to_transformers(
    tmp_path: Path, tiny_backbone: Path, change: dict[str, object]
) -> None:
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    encoder.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    assert isinstance(question_encoder(tmp_path), Transformer)


def test_a_roberta_is_left_to_transformers(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "backbone")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    RobertaModel(RobertaConfig(vocab_size=200, **shape)).save_pretrained(tmp_path / "backbone")
    encoder = TextEncoder.from_backbone(str(tmp_path / "backbone"), max_length=24)
    encoder.save(tmp_path / "saved")
    ours = question_encoder(tmp_path / "saved")
    assert isinstance(ours, Transformer) and ours.width == 16
    np.testing.assert_array_equal(ours("the old river"), encode_question(encoder, "the old river"))


@pytest.mark.parametrize("change", [{"num_hidden_layers": 3}, {"num_attention_heads": 5}, {"hidden_size": 31}])
def test_weights_of_another_config_are_one_line(tmp_path: Path, change: dict[str, int]) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8}
    write_tokenizer(tmp_path / "backbone")
    BertModel(BertConfig(vocab_size=200, **shape)).save_pretrained(tmp_path / "backbone")
    TextEncoder.from_backbone(str(tmp_path / "backbone"), max_length=24).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    if "hidden_size" in change:
        assert question_encoder(tmp_path).width == 31  # which a searcher compares with the vectors'
        return
    with pytest.raises(UserError, match="do not fit"):
        question_encoder(tmp_path)("winter")
