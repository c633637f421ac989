"""BM25 against the formula written out, and the rules on stems, stop words, ties and empty texts."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval import bm25
from gnn_encoder.retrieval.bm25 import Bm25, top_positive
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.settings.bm25 import IndexBm25

CORPUS = [
    ("Rivers", "the river runs past the running stones"),
    ("", "copper and stone and copper"),
    ("Garden", "a quiet garden by the river, with one copper gate"),
    ("", "is the of and"),
    ("Market", "letters at the market in winter"),
    ("Market", "letters at the market in winter"),
    ("", "winter winter winter river"),
]


def dataset_of(path: Path, passages: list[tuple[str, str]]) -> Dataset:
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        titles, texts = [t for t, _ in passages], [t for _, t in passages]
        writer.passages([f"p{i}" for i in range(len(passages))], titles, texts)
        writer.queries(["q0"], ["river"], ["test"], [[]])
        writer.qrels(["q0"], ["p0"], [1], [0], [0])
        writer.close()
    return Dataset(path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return dataset_of(tmp_path_factory.mktemp("lexical") / "dataset", CORPUS)


def words(text: str) -> list[str]:
    return re.findall(r"\b\w\w+\b", text.lower())


def reference(query: str, k1: float, b: float) -> np.ndarray:
    """Robertson's formula with Lucene's idf, ln(1 + (N - df + ½)/(df + ½)), term by term."""
    documents = [words(f"{title} {text}") for title, text in CORPUS]
    average = sum(map(len, documents)) / len(documents)
    scores = np.zeros(len(documents))
    for row, document in enumerate(documents):
        counts = Counter(document)
        for term in words(query):
            df = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            norm = k1 * (1 - b + b * len(document) / average)
            scores[row] += idf * counts[term] / (counts[term] + norm)
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (2.0, 0.0)])
@pytest.mark.parametrize("query", ["copper river", "winter winter market", "the stone gate", "violin river"])
def test_scores_equal_the_formula(corpus: Dataset, query: str, k1: float, b: float) -> None:
    index = Bm25.build(corpus.passages, IndexBm25(k1=k1, b=b, stemmer="none", stopwords="none"))
    scores, rows = index.search([query], len(CORPUS))
    expected = reference(query, k1, b)
    is_hit = rows[0] >= 0
    assert set(rows[0][is_hit]) == set(np.flatnonzero(expected > 0))
    np.testing.assert_allclose(scores[0][is_hit], expected[rows[0][is_hit]], rtol=1e-5)
    np.testing.assert_array_equal(rows[0][is_hit], np.argsort(-expected, kind="stable")[: is_hit.sum()])
    assert np.isneginf(scores[0][~is_hit]).all()


def test_k1_and_b_matter(corpus: Dataset) -> None:
    one, _ = Bm25.build(corpus.passages, IndexBm25()).search(["copper"], 2)
    other, _ = Bm25.build(corpus.passages, IndexBm25(k1=0.9, b=0.4)).search(["copper"], 2)
    assert not np.allclose(one, other)


def test_stems_meet_and_without_a_stemmer_do_not(corpus: Dataset) -> None:
    _, stemmed = Bm25.build(corpus.passages, IndexBm25()).search(["a runner's runs"], 7)
    assert stemmed[0][0] == 0
    # "stoned" is no word of the corpus, its stem is: a new word may still map to a known stem.
    _, unseen = Bm25.build(corpus.passages, IndexBm25()).search(["stoned"], 7)
    assert set(unseen[0][unseen[0] >= 0]) == {0, 1}
    _, exact = Bm25.build(corpus.passages, IndexBm25(stemmer="none")).search(["stoned"], 7)
    assert (exact == -1).all()


def test_stop_words_find_nothing_unless_kept(corpus: Dataset) -> None:
    _, without = Bm25.build(corpus.passages, IndexBm25()).search(["the of and"], 7)
    assert (without == -1).all()
    _, kept = Bm25.build(corpus.passages, IndexBm25(stopwords="none")).search(["the of and"], 7)
    assert kept[0][0] == 3


@pytest.mark.parametrize("query", ["", "?!", "the", "xylophone"])
def test_queries_without_a_known_term_find_nothing(corpus: Dataset, query: str) -> None:
    """Row 3 is empty once stop words are gone; an empty query must not match it."""
    scores, rows = Bm25.build(corpus.passages, IndexBm25()).search([query, "river"], 3)
    assert (rows[0] == -1).all() and np.isneginf(scores[0]).all()
    assert rows[1][0] >= 0


def test_equal_passages_come_in_row_order(corpus: Dataset) -> None:
    scores, rows = Bm25.build(corpus.passages, IndexBm25()).search(["letters market"], 2)
    assert rows[0].tolist() == [4, 5] and scores[0][0] == scores[0][1]


def test_title_is_searched(corpus: Dataset) -> None:
    _, rows = Bm25.build(corpus.passages, IndexBm25()).search(["garden"], 1)
    assert rows[0].tolist() == [2]


def test_corpus_of_stop_words_is_refused(tmp_path: Path) -> None:
    data = dataset_of(tmp_path / "dataset", [("", "the of"), ("", "and")])
    with pytest.raises(UserError, match="no passage has a word"):
        Bm25.build(data.passages, IndexBm25())


@pytest.mark.parametrize("fields", ["joined", "separate"])
@pytest.mark.parametrize("only", [None, [True, False, True, False, True, True, True]])
def test_a_search_in_blocks_of_passages_has_the_same_bits(
    corpus: Dataset, fields: str, only: list[bool] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Bm25.build(corpus.passages, IndexBm25(fields=fields, stopwords="none"))
    queries = ["copper river", "winter market letters", "the stone gate", "garden", "violin", ""]
    selection = None if only is None else Selection(np.array(only))
    whole = [index.search(queries, k, only=selection) for k in (1, 3, 9)]
    monkeypatch.setattr(bm25, "BLOCK", 2)
    for (scores, rows), k in zip(whole, (1, 3, 9), strict=True):
        again, again_rows = index.search(queries, k, only=selection)
        assert np.array_equal(again, scores) and np.array_equal(again_rows, rows)
    assert (whole[1][1][:2] >= 2).any(), "a hit is outside the first block"


@settings(max_examples=100, deadline=None)
@given(
    scores=npst.arrays(np.float32, st.integers(0, 30), elements=st.sampled_from([0.0, 0.5, 1.0, 2.0])),
    k=st.integers(1, 12),
)
def test_top_positive_is_a_stable_sort(scores: np.ndarray, k: int) -> None:
    expected = [row for row in np.argsort(-scores, kind="stable") if scores[row] > 0][:k]
    assert top_positive(scores, k).tolist() == expected


def test_separate_fields_add_the_scores_of_title_and_text(tmp_path: Path, corpus: Dataset) -> None:
    options = {"k1": 1.2, "b": 0.6, "stemmer": "none", "stopwords": "none"}
    texts = dataset_of(tmp_path / "texts", [("", text) for _, text in CORPUS])
    both = all_scores(Bm25.build(corpus.passages, IndexBm25(fields="separate", **options)), "winter river market")
    text_only = all_scores(Bm25.build(texts.passages, IndexBm25(**options)), "winter river market")
    joined = all_scores(Bm25.build(corpus.passages, IndexBm25(**options)), "winter river market")
    untitled = [row for row, (title, _) in enumerate(CORPUS) if not title]
    assert np.allclose(both[untitled], text_only[untitled], atol=1e-6)
    assert both[4] > text_only[4] and not np.allclose(both, joined)


@pytest.mark.parametrize("kind", [IndexBm25(), IndexBm25(k1=0.9, fields="separate", stemmer="none", stopwords="none")])
def test_a_saved_index_finds_the_same(tmp_path: Path, corpus: Dataset, kind: IndexBm25) -> None:
    built = Bm25.build(corpus.passages, kind)
    built.save(tmp_path)
    loaded = Bm25.load(tmp_path)
    assert loaded.kind == built.kind == kind.model_copy(update={"language": "en"})
    queries = ["winter river", "runner stones", "the market", "unseen"]
    for one, other in zip(built.search(queries, 5), loaded.search(queries, 5), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(file.suffix in (".pkl", ".pickle") for file in tmp_path.rglob("*"))


def all_scores(index: Bm25, query: str) -> np.ndarray:
    scores, rows = index.search([query], len(CORPUS))
    out = np.zeros(len(CORPUS))
    out[rows[0][rows[0] >= 0]] = scores[0][rows[0] >= 0]
    return out


def test_a_saved_index_tells_how_bm25_scores(tmp_path: Path, corpus: Dataset) -> None:
    Bm25.build(corpus.passages, IndexBm25(k1=0.9, fields="separate")).save(tmp_path)
    kind = json.loads((tmp_path / "bm25.json").read_text())["kind"]
    taken = {"language": "en", "stemmer": "language", "stopwords": "language", "ngrams": "language"}
    assert kind == {"k1": 0.9, "b": 0.75, **taken, "fields": "separate"}


def test_a_question_without_spaces_finds_the_passage_that_shares_most(tmp_path: Path) -> None:
    texts = ["金沢の図書館は朝九時に開きます。", "金沢の駅は朝五時に開きます。", "福岡の図書館は休みです。", "हिन्दी में"]
    index = Bm25.build(dataset_of(tmp_path / "data", [("", text) for text in texts]).passages, IndexBm25())
    index.save(tmp_path)
    for one in (index, Bm25.load(tmp_path)):
        _, rows = one.search(["福岡の図書館", "ｶﾅ", "हिन्दी"], 2)
        assert rows.tolist() == [[2, 0], [-1, -1], [3, -1]]


@pytest.mark.parametrize(
    "settings", [{}, {"stemmer": "none", "stopwords": "none"}, {"language": "de"}, {"language": "zh"}]
)
def test_questions_leave_no_words_behind(corpus: Dataset, settings: dict[str, Any]) -> None:
    index = Bm25.build(corpus.passages, IndexBm25(**settings))
    tokenizer = index._parts[0].tokenizer
    questions = ["the runnings of a RIVER", "is a secret in the copper", "stoned gardening, winters", "", "河流 rivers"]
    before = [dict(known) for known in (tokenizer.word_to_id, tokenizer.word_to_stem, tokenizer.stem_to_sid)]
    terms = list(index._terms(questions))
    index.search(questions, 3)
    assert [tokenizer.word_to_id, tokenizer.word_to_stem, tokenizer.stem_to_sid] == before
    expected = tokenizer.streaming_tokenize(questions, update_vocab=False, allow_empty=False)
    assert [ids for (ids,) in terms] == list(expected) and any(ids for (ids,) in terms)
    assert not tokenizer.stemmer or tokenizer.word_to_stem != before[1], "control: bm25s keeps them"
