"""The sentences of token pairs against a loop over one pair at a time."""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from text_table import TextTable
from transformers import BertTokenizerFast

from gnn_encoder.artifacts import Dataset, DatasetWriter, PassageTable, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.inference import sentences as sentences_module
from gnn_encoder.inference.sentences import SentencePairs, Sentences, sentence_starts
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.bert_dmn import BertDmn
from gnn_encoder.models.word_models import WordDmn
from gnn_encoder.retrieval.scorers import load_scorer, save_scorer
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.training.rerankers import _memory

TEXTS = [
    "the old river. the stone! is the cloud bright? yes",
    "a garden without any end",
    "It costs 3.5 or 4.5 a day. \"the letter.\" (the winter.) and the market",
    "",
    "... the river",
    "the river. " * 30,
]  # fmt: skip


@pytest.fixture
def tokenizer(tiny_backbone: Path) -> BertTokenizerFast:
    return BertTokenizerFast.from_pretrained(tiny_backbone)


@pytest.fixture
def sentences(tokenizer: BertTokenizerFast) -> Sentences:
    table: PassageTable = TextTable(TEXTS)  # type: ignore[assignment]
    return Sentences(tokenizer, table, np.arange(len(TEXTS)), 64)


def words(tokenizer: BertTokenizerFast, ids: np.ndarray) -> str:
    return tokenizer.decode(ids).replace(" ", "")


def test_sentences_end_at_punctuation_before_white_space() -> None:
    sentences = [[text[a:b] for a, b in pairwise([*sentence_starts(text), None])] for text in TEXTS[:4]]
    assert sentences[0] == ["the old river. ", "the stone! ", "is the cloud bright? ", "yes"]
    assert sentences[1] == [TEXTS[1]]
    assert sentences[2] == ["It costs 3.5 or 4.5 a day. ", '"the letter." ', "(the winter.) ", "and the market"]
    assert sentences[3] == [""]
    assert sentence_starts("one sentence. ").tolist() == [0]
    assert sentence_starts("你好。世界很大。再见！").tolist() == [0, 3, 8]
    assert sentence_starts("a heading\nits text").tolist() == [0, 10]


def test_pysbd_knows_abbreviations(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The rivers, e.g. the old one. Art. 5.2 of Dr. Stone! A heading\nIts text. the end. the end."
    starts = [*sentence_starts(text, "pysbd").tolist(), None]
    assert [text[a:b].strip() for a, b in pairwise(starts)] == [
        "The rivers, e.g. the old one.", "Art. 5.2 of Dr. Stone!", "A heading", "Its text.", "the end.", "the end.",
    ]  # fmt: skip
    assert len(sentence_starts(text)) > 6, "control: the rules end a sentence after e.g."
    assert [sentence_starts(other, "pysbd").tolist() for other in ("", TEXTS[1])] == [[0], [0]]
    monkeypatch.setitem(sys.modules, "pysbd", None)
    sentences_module._pysbd.cache_clear()
    with pytest.raises(UserError, match=r"needs the package pysbd: pip install 'gnn-encoder\[pysbd\]', or set rules"):
        sentence_starts(text, "pysbd")


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("ar", ["هل هذا نهر؟ ", "نعم. ", "لا"]),
        ("hi", ["यह एक नदी है। ", "वह पहाड़ है।", "क्या?"]),
        ("el", ["Τι είναι αυτό; ", "Ποτάμι· και βουνό. ", "Ναι"]),
        ("th", ["แม่น้ำสายนี้๚ ", "ภูเขา๛ ", "ทะเล"]),
        ("ja", ["川です。", "「山」です！", "はい"]),
        ("de", ["Dr. Ort kam z. B. am 3. Mai. ", "Er ging usw. fort. ", "Nr. 5 bzw. 6, d. h. alle. ", "Sie blieb."]),
        ("de", ["Am 12. Oktober 1998 kam Prof. Berg. ", "Er blieb bis 1999. ", "Dann nicht mehr!"]),
    ],
)  # fmt: skip
def test_sentences_of_other_languages(language: str, sentences: list[str]) -> None:
    text = "".join(sentences)
    expected = [0, *np.cumsum([len(sentence) for sentence in sentences])[:-1]]
    assert sentence_starts(text, f"rules {language}").tolist() == expected
    if language not in ("th", "hi"):  # pysbd has no Thai, and knows one danda with white space
        assert sentence_starts(text, f"pysbd {language}").tolist() == expected
    if language == "de":
        assert len(sentence_starts(text, "rules other")) > len(sentences), "control: the rules for all languages"
    else:
        assert sentence_starts(text, "rules other").tolist() == expected, "the rules for all languages"
    assert len(sentence_starts("one; two: three", f"rules {language}")) == 1


def test_words_are_abbreviations_before_digits_alone() -> None:
    sentences = [
        "Es gab drei dieser Art. ",
        "Nach Art. 5 und Kap. 3 lag es am Kap. ",
        "Das ist Lange Str. 7 in St. Veit.",
    ]
    starts = [*sentence_starts("".join(sentences), "rules de").tolist(), None]
    assert [("".join(sentences))[a:b] for a, b in pairwise(starts)] == sentences


def test_a_model_names_the_language_of_its_passages(tiny_dataset: Dataset) -> None:
    assert _memory(TrainReranker(), tiny_dataset.passages)["split_sentences"] == "rules en"


@pytest.mark.parametrize("kind", ["bert_dmn", "dmn"])
def test_a_scorer_divides_passages_as_its_training_did(kind: str, tiny_backbone: Path, tmp_path: Path) -> None:
    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p0"], [""], ["the river, e.g. the stone. a cloud"])
        writer.queries(["q0"], ["what is the river"], ["test"], [[]])
        writer.qrels(["q0"], ["p0"], [1], [0], [0])
        writer.close()
    scores, row = [], np.zeros(1, np.int64)
    for split in ("rules", "pysbd"):
        torch.manual_seed(0)
        options = {"width": 8, "dropout": 0.0, "split_sentences": split}
        if kind == "bert_dmn":
            model = BertDmn.from_backbone(str(tiny_backbone), 64, **options)
        else:
            tokenizer = BertTokenizerFast.from_pretrained(tiny_backbone)
            model = WordDmn(torch.randn(len(tokenizer), 16), tokenizer, 64, **options)
        (tmp_path / split).mkdir()
        save_scorer(kind, model, tmp_path / split)
        scores.append(float(load_scorer(tmp_path / split).score(Dataset(tmp_path / "data"), row, row)[0]))
    assert abs(scores[0] - scores[1]) > 1e-5


def test_each_token_has_its_sentence_and_special_tokens_none(
    sentences: Sentences, tokenizer: BertTokenizerFast
) -> None:
    offsets = sentences.tokens.offsets
    ids, number = sentences.tokens.ids[offsets[0] : offsets[1]], sentences.number[offsets[0] : offsets[1]]
    assert number[0] == number[-1] == -1
    parts = [words(tokenizer, ids[number == n]) for n in (1, 2, 3, 4)]
    assert [part.replace("[UNK]", "#") for part in parts] == ["theoldriver#", "thestone#", "isthecloudbright#", "yes"]
    counts = [sentences.number[a:b].max() for a, b in pairwise(offsets)]
    assert counts[:5] == [4, 1, 4, -1, 2]
    assert sentences.tokens.lengths[5] == 64 and counts[5] > 10


def test_segments_of_pairs(sentences: Sentences, tokenizer: BertTokenizerFast) -> None:
    queries = Tokens.of(tokenizer, ["what is the river", "", "stone " * 30], 64)
    pairs = SentencePairs(tokenizer, queries, sentences, 24)
    first, second = (axis.ravel() for axis in np.meshgrid(np.arange(3), np.arange(len(TEXTS)), indexing="ij"))
    ids, mask, types, segments = pairs.padded(first, second)
    assert (segments[mask == 0] == -1).all()
    special = np.isin(ids, [tokenizer.cls_token_id, tokenizer.sep_token_id])
    assert (segments[special] == -1).all() and (segments[(mask > 0) & ~special] >= 0).all()
    for row, (q, p) in enumerate(zip(first, second, strict=True)):
        query_ids = queries.ids[queries.offsets[q] : queries.offsets[q + 1]][1:-1]
        here = ids[row][segments[row] == 0]
        assert here.tolist() == query_ids[: len(here)].tolist() and len(here) == min(len(query_ids), 10)
        span = slice(sentences.tokens.offsets[p] + 1, sentences.tokens.offsets[p + 1] - 1)
        shown = segments[row] > 0
        assert ids[row][shown].tolist() == sentences.tokens.ids[span][: shown.sum()].tolist()
        assert segments[row][shown].tolist() == sentences.number[span][: shown.sum()].tolist()
        assert (types[row][shown] == 1).all()
    assert segments[3].max() == 0, "an empty passage has no sentence"
    assert not (segments[len(TEXTS)] == 0).any(), "an empty query has no token"
