"""BM25 with labels against plain loops over the longer texts, with the statistics of the passages alone."""

from collections import Counter
from math import log
from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts import DatasetWriter, PassageTable, drafting
from gnn_encoder.artifacts.labelled_queries import LabelledQueries
from gnn_encoder.artifacts.passages import CORPUS
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.label_field import LabelField
from gnn_encoder.settings.bm25 import IndexBm25

PASSAGES = [
    "the red fruit",
    "the green fruit pie",
    "yellow",
    "sour fruit",
    "the cake",
    "plum cake of the friend",
    "stone",
]
TEXTS = ["red apple pie", "green apple", "red apple pie", "sour cherry", "plum", "cherry cake cake", "zebra cake"]
QUERY, PASSAGE = np.array([0, 1, 2, 3, 4, 5, 1]), np.array([2, 2, 2, 0, 5, 5, 0])
WITH = {2: "red apple pie green apple", 0: "green apple sour cherry", 5: "plum cherry cake cake"}
QUESTIONS = ["apple", "cherry cake", "plum pie", "zebra", "apple apple red fruit", "nothing at all"]


def texts(rows: np.ndarray) -> list[str]:
    return [TEXTS[row] for row in rows.tolist()]


def labels(query: np.ndarray = QUERY, passage: np.ndarray = PASSAGE) -> LabelledQueries:
    return LabelledQueries.grouped(query, passage, len(PASSAGES), np.eye(len(TEXTS), dtype=np.float32))


@pytest.fixture(params=["joined", "separate"])
def words(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Bm25, PassageTable]:
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(7)], ["the title"] * 7, PASSAGES)
        writer.close()
    table = PassageTable(tmp_path / "dataset" / CORPUS)
    kind = IndexBm25(k1=1.2, b=0.6, stemmer="none", stopwords="none", fields=request.param)
    return Bm25.build(table, kind), table


def plain(kind: IndexBm25, more: dict[int, str]) -> np.ndarray:
    """Scores [questions, 7] of passages with more words, by the idf and the mean length of the passages alone."""
    scores = np.zeros((len(QUESTIONS), 7))
    title, body = [["the", "title"]] * 7, [text.split() for text in PASSAGES]
    fields = [[a + b for a, b in zip(title, body, strict=True)]] if kind.fields == "joined" else [title, body]
    for field in fields:
        mean = sum(map(len, field)) / 7
        for row, question in enumerate(QUESTIONS):
            for passage, known in enumerate(field):
                counts = Counter([*known, *(more.get(passage, "").split() if field is fields[-1] else [])])
                for term in question.split():
                    df = sum(term in others for others in field)
                    idf = log(1 + (7 - df + 0.5) / (df + 0.5))
                    norm = kind.k1 * (1 - kind.b + kind.b * counts.total() / mean)
                    scores[row, passage] += idf * counts[term] / (norm + counts[term])
    return scores


def totals(bm25: Bm25, field: LabelField) -> np.ndarray:
    plain_scores = (np.zeros(7, np.float32) if of is None else of for of in bm25.totals(QUESTIONS))
    return np.stack(list(field.totals(QUESTIONS, plain_scores)))


def test_a_passage_has_its_labelled_queries_words_and_a_text_counts_once(words: tuple[Bm25, PassageTable]) -> None:
    bm25, table = words
    scores = totals(bm25, LabelField.build(bm25, table, labels(), texts))
    assert np.allclose(scores, plain(bm25.kind, WITH), atol=1e-5)
    assert not np.allclose(scores, plain(bm25.kind, {}), atol=0.1)
    assert not np.allclose(scores, plain(bm25.kind, WITH | {2: f"{WITH[2]} red apple pie"}), atol=0.01)


def test_changed_labels_count_at_once_and_change_no_statistics(
    words: tuple[Bm25, PassageTable], tmp_path: Path
) -> None:
    bm25, table = words
    LabelField.build(bm25, table, labels(), texts).write(tmp_path / "field")
    # Passage 5 loses a query, 6 gets a first one with a new word, 0 loses all.
    now = labels(np.array([0, 1, 2, 4, 6]), np.array([2, 2, 2, 5, 6]))
    field = LabelField.read(tmp_path / "field").changed(bm25, table, now, texts, np.array([0, 5, 6]))
    scores = totals(bm25, field)
    assert np.allclose(scores, plain(bm25.kind, {2: WITH[2], 5: "plum", 6: "zebra cake"}), atol=1e-5)
    assert scores[QUESTIONS.index("zebra"), 6] > 0.5


def test_without_a_label_all_is_as_it_is(words: tuple[Bm25, PassageTable]) -> None:
    bm25, table = words
    field = LabelField.build(bm25, table, labels(QUERY[:0], PASSAGE[:0]), texts)
    assert np.allclose(totals(bm25, field), plain(bm25.kind, {}), atol=1e-5)


@pytest.mark.parametrize("language", ["auto", "en"])
def test_labelled_queries_have_the_terms_of_the_passages_language(language: str, tmp_path: Path) -> None:
    texts = ["Der Fluss mündet in das Meer und ist lang.", "Das Museum zeigt die alten Gemälde der Stadt."] * 3
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(6)], [""] * 6, texts)
        writer.close()
    table = PassageTable(tmp_path / "dataset" / CORPUS)
    index = Bm25.build(table, IndexBm25(language=language))
    labels = LabelledQueries.grouped(np.zeros(1, np.int64), np.ones(1, np.int64), 6, np.eye(1, dtype=np.float32))
    field = LabelField.build(index, table, labels, lambda rows: ["Wie hoch sind die Lebensversicherungen?"] * len(rows))
    field.write(tmp_path / "field")
    for stored in (field, LabelField.read(tmp_path / "field")):
        question = ["Versicherung"]
        plain_scores = iter([np.zeros(6, np.float32)])
        (scores,) = stored.totals(question, plain_scores)
        assert np.flatnonzero(scores).tolist() == ([1] if language == "auto" else [])
