"""A passage is its title and its text: a passage with a title alone is read, encoded, ranked and shown."""

import json
from pathlib import Path

import numpy as np
import pytest
from beir_folder import PASSAGES, check, ingested, lines, write_beir
from hypothesis import given
from hypothesis import strategies as st

from gnn_encoder.artifacts import Dataset, DatasetWriter, Passages, drafting, passage_text
from gnn_encoder.data.validation import Kind
from gnn_encoder.report.profile import data_profile
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.search import Hit
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.settings.foundation import Ingest

ALONE = [{"text": ""}, {"text": " \u200b"}, {"text": None}, {}]
"""Fields of a passage that has no text besides its title."""


@pytest.mark.usefixtures("way")
def test_passages_with_a_title_alone_stay_with_their_labels(tmp_path: Path) -> None:
    alone = [{"_id": f"d{i}", "title": f"Title {i}", **fields} for i, fields in enumerate(ALONE)]
    settings = Ingest(dataset=str(write_beir(tmp_path / "d", corpus=lines([*alone, *PASSAGES[4:]]))))
    data, report = ingested(settings, tmp_path / "out")
    assert not report.problems and report.passages == 6 and report.labels == {"train": 3, "dev": 1, "test": 1}
    assert report.passage_words == (4 * 2 + 2 * 4) / 6
    passages = data.passages.take(np.arange(6))
    assert passages.texts == [""] * 4 + ["text of passage 4", "text of passage 5"]
    assert passages.full_texts()[:4] == [f"Title {i}" for i in range(4)]


@pytest.mark.usefixtures("way")
def test_passages_without_title_and_text_are_problems(tmp_path: Path) -> None:
    blank = [{"_id": "e0", "text": ""}, {"_id": "e1", "title": " ", "text": "\ufeff"}, {"_id": "e2", "title": "\u200b"}]
    wrong = [{"_id": "e3", "title": ""}, {"_id": "e4", "title": 5, "text": ""}, {"_id": "e5", "title": "t", "text": 5}]
    report = check(Ingest(dataset=str(write_beir(tmp_path / "d", corpus=lines([*PASSAGES, *blank, *wrong])))))
    assert {problem.kind: problem.places for problem in report.problems} == {
        Kind.EMPTY_PASSAGE: [f"corpus.jsonl line {7 + i}: 'e{i}'" for i in range(3)],
        Kind.BAD_ROW: [
            'corpus.jsonl line 10: "text" is missing or not a string', 'corpus.jsonl line 11: "title" is not a string',
            'corpus.jsonl line 12: "text" is missing or not a string',
        ],
    }  # fmt: skip


WORDS = st.text("a é\t", max_size=6)


@given(WORDS, WORDS)
def test_title_and_text_are_joined_as_by_beirs_users(title: str, text: str) -> None:
    joined = passage_text(title, text)
    assert joined.strip() == (title + " " + text).strip()
    if title.strip() and text.strip():
        assert joined == title + " " + text
    elif title.strip():
        assert joined == title.strip()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("alone") / "dataset"
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p0", "p1", "p2"], ["the river", "", "a mountain"], ["", "the old harbour", "of stone"])
        writer.queries(["q0"], ["river"], ["test"], [[]])
        writer.qrels(["q0"], ["p0"], [1], [0], [0])
        writer.close()
    return Dataset(path)


@pytest.mark.parametrize("fields", ["joined", "separate"])
def test_bm25_finds_it(alone: Dataset, fields: str) -> None:
    scores, rows = Bm25.build(alone.passages, IndexBm25(fields=fields)).search(["the river"], 3)
    assert rows[0].tolist() == [0, -1, -1] and scores[0, 0] > 0


def test_a_search_shows_no_empty_line_for_it(alone: Dataset) -> None:
    assert Hit(1, 0.5, "p0", "the river", "").body() == []
    assert Hit(1, 0.5, "p1", "", "the old\nharbour").body() == ["     the old harbour"]
    assert data_profile(alone, None).words["passages"].tolist() == [2, 3, 2]
    assert Passages(["a"], ["t"], ["x"]).bare_texts() == ["x"]


def test_nul_is_named_in_a_remark(tmp_path: Path) -> None:
    rows = [dict(row) for row in PASSAGES]
    rows[2]["text"], rows[4]["title"] = "a\0b", "a\0title"
    folder = write_beir(tmp_path / "d", corpus=lines(rows))
    (remark,) = (line for line in check(Ingest(dataset=str(folder))).remarks if "NUL" in line)
    assert remark.startswith("2 passages have the character NUL (U+0000), first corpus.jsonl line 3: 'd2': PostgreSQL")
    rows[5]["_id"] = "d\0"
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = check(Ingest(dataset=str(folder)))
    assert not report.problems and any(remark.startswith("3 passages have the char") for remark in report.remarks)
    assert not any("NUL" in line for line in check(Ingest(dataset=str(write_beir(tmp_path / "e")))).remarks)
