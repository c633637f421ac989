"""A question's vector without torch is the one that transformers gives."""

import json
from pathlib import Path

import numpy as np
import pytest
from bundles import fill_bundle
from conftest import write_tokenizer
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_question
from gnn_encoder.inference.numpy_bert import Bert
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.settings.shared import MINILM

QUESTIONS = ["what is the old river", "a", "?!", "Ünïcode, 北京 and 🙂\x00\x07", "the winter market " * 40, "violin"]


def check(folder: Path, questions: list[str]) -> None:
    """Both ways give one vector for each question, and another one for another question."""
    ours, theirs = Bert.read(folder), TextEncoder.load(folder)
    assert ours and ours.width == theirs.width
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
    assert Bert.read(tmp_path) is None


def test_a_roberta_is_left_to_transformers(tmp_path: Path, tiny_dataset: Dataset) -> None:
    write_tokenizer(tmp_path / "backbone")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    RobertaModel(RobertaConfig(vocab_size=200, **shape)).save_pretrained(tmp_path / "backbone")
    encoder = TextEncoder.from_backbone(str(tmp_path / "backbone"), max_length=24)
    vectors = np.random.default_rng(0).normal(size=(len(tiny_dataset.passages), 16)).astype(np.float32)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, vectors, tiny_dataset, encoder.save)
    searcher = Searcher(Bundle.read(tmp_path / "bundle"))
    assert Bert.read(searcher.bundle.query_encoder_path) is None
    vector, _, rows = searcher.find("the old river", 3)
    np.testing.assert_array_equal(vector[None], encode_question(encoder, "the old river"))
    assert rows.tolist() == np.argsort(-(vectors @ vector), kind="stable")[:3].tolist()


@pytest.mark.parametrize("change", [{"num_hidden_layers": 3}, {"num_attention_heads": 5}, {"hidden_size": 31}])
def test_weights_of_another_config_are_one_line(tmp_path: Path, change: dict[str, int]) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8}
    write_tokenizer(tmp_path / "backbone")
    BertModel(BertConfig(vocab_size=200, **shape)).save_pretrained(tmp_path / "backbone")
    TextEncoder.from_backbone(str(tmp_path / "backbone"), max_length=24).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    bert = Bert.read(tmp_path)
    assert bert
    if "hidden_size" in change:
        assert bert.width == 31  # which a searcher compares with the vectors'
        return
    with pytest.raises(UserError, match="do not fit"):
        bert("winter")
