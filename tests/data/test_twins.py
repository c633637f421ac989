"""Which training queries are twins: equal texts, and nearly equal ones against a comparison of all pairs."""

import re
from pathlib import Path

import numpy as np
import pytest
from beir_folder import lines, write_beir

from gnn_encoder.artifacts import Dataset
from gnn_encoder.data import twins
from gnn_encoder.data.twins import recurring, twin_groups
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.steps.ingest import ingest


def test_case_blanks_and_composition_do_not_count_and_all_else_does() -> None:
    texts = ["What is Café au lait?", "what  is CAFE\u0301 au\tlait? ", "What is cafe au lait?", "What is café au lait"]
    assert twin_groups(texts, 0).tolist() == [0, 0, 2, 3]
    assert twin_groups([], 0).tolist() == twin_groups([], 0.9).tolist() == []


def plain_groups(texts: list[str], similarity: float) -> list[int]:
    """All pairs compared, and groups joined until none are left to join."""
    words = [set(re.findall(r"\w+", text.casefold())) for text in texts]
    groups = list(range(len(texts)))
    for i, a in enumerate(words):
        for j, b in enumerate(words[:i]):
            same = " ".join(texts[i].casefold().split()) == " ".join(texts[j].casefold().split())
            if same or (similarity and a | b and len(a & b) >= similarity * len(a | b) - 1e-9):
                both = groups[i], groups[j]
                groups = [min(both) if group in both else group for group in groups]
    return groups


@pytest.mark.parametrize("pairs", [twins.PAIRS, 20])
def test_near_equal_texts_are_those_of_a_comparison_of_all_pairs(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "PAIRS", pairs)
    generator = np.random.default_rng(0)
    frequent = 1 / np.arange(1, 31)
    near_pairs = set()
    for _ in range(6):
        words = [generator.choice(30, generator.integers(0, 9), p=frequent / frequent.sum()) for _ in range(80)]
        texts = [" ".join(generator.choice(["w", "W"]) + str(w) for w in row) + "?" for row in words]
        for similarity in (0.0, 0.3, 0.5, 2 / 3, 0.75, 0.9, 1.0):
            groups = twin_groups(texts, similarity).tolist()
            assert groups == plain_groups(texts, similarity)
            near_pairs.add((similarity, len(set(groups))))
    assert len({count for _, count in near_pairs}) > 20


def plain_recurring(texts: list[str], kind: list[int], similarity: float) -> list[list[bool]]:
    """All pairs compared."""
    words = [set(re.findall(r"\w+", text.casefold())) for text in texts]
    recurs = [[False] * 3 for _ in texts]
    for i, a in enumerate(words):
        for j, b in enumerate(words):
            same = " ".join(texts[i].casefold().split()) == " ".join(texts[j].casefold().split())
            near = similarity and a | b and len(a & b) >= similarity * len(a | b) - 1e-9
            recurs[i][kind[j]] |= bool(i != j and (same or near))
    return recurs


@pytest.mark.parametrize("pairs", [twins.PAIRS, 20])
def test_recurring_texts_are_those_of_a_comparison_of_all_pairs(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "PAIRS", pairs)
    generator, shares = np.random.default_rng(0), []
    frequent = 1 / np.arange(1, 51)
    for similarity in (0.0, 0.5, 2 / 3, 0.8, 1.0):
        words = [generator.choice(50, generator.integers(0, 9), p=frequent / frequent.sum()) for _ in range(120)]
        texts = [" ".join(f"w{word}" for word in row) + generator.choice(["?", " ?"]) for row in words]
        kind = generator.choice(3, 120, p=[0.7, 0.2, 0.1])
        recurs = recurring(texts, kind, 3, similarity)
        assert recurs.tolist() == plain_recurring(texts, kind.tolist(), similarity)
        shares.append(recurs.mean())
    assert len(set(shares)) == 5 and 0 < min(shares) < max(shares) < 1
    assert recurring([], np.empty(0, int), 3, 0.8).shape == (0, 3)


def test_words_count_and_not_their_order() -> None:
    texts = ["is Klippel-Feil syndrome inherited ?", "Is Klippel Feil syndrome inherited?", "what causes fever", "???"]
    assert twin_groups(texts, 0).tolist() == [0, 1, 2, 3]
    assert twin_groups(texts, 1.0).tolist() == [0, 0, 2, 3]


@pytest.mark.parametrize("similarity", [0.0, 0.7])
def test_only_training_queries_have_twins_and_the_dataset_names_them(
    similarity: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["what is one", "unrelated", "test text", "What is  one", "what is one now", "test text", "what is three"]
    folder = write_beir(
        tmp_path / "d",
        queries=lines([{"_id": f"q{i}", "text": text} for i, text in enumerate(texts)]),
        qrels={
            "train": [(f"q{i}", f"d{i % 6}", 1) for i in (0, 1, 3, 4)],
            "dev": [("q6", "d0", 1)],
            "test": [("q2", "d2", 1), ("q5", "d5", 1)],
        },
    )
    ingest(Ingest(dataset=str(folder), twin_similarity=similarity), dataset=tmp_path / "out")
    data = Dataset(tmp_path / "out")
    assert data.queries["query_id"].to_pylist() == [f"q{i}" for i in range(7)]
    assert data.groups.tolist() == [0, 1, 2, 0, 0 if similarity else 4, 5, 6]
    assert f"{3 if similarity else 2} training queries ask the same as another" in capsys.readouterr().err


def test_nearly_equal_questions_without_spaces_recur() -> None:
    """Words are pairs of characters there; without them each question would be one word."""
    texts = [
        "金沢の図書館は何時に開きますか",
        "金沢の図書館は何時に開きますか。",
        "金沢の図書館は何時に開くの",
        "福岡の空港は遠いですか",
    ]
    again = recurring(texts, np.array([0, 1, 1, 1]), 2, 0.6)
    assert again[:, 0].tolist() == [False, True, True, False]
