"""Passages of equal text, against a plain loop: their numbers, their groups, and what is stored and said of them."""

import random
import re
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from beir_folder import QRELS, check, ingested, lines, write_beir

from gnn_encoder.artifacts.passages import passage_text
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.data import copies
from gnn_encoder.data.copies import SecondReading, Sums, passage_groups
from gnn_encoder.settings.foundation import Ingest

FORMS = ("NFC", "NFD", "NFKC", "NFKD")
ODD = "éÅﬁｆ①カﾞガ가각ΰᾳςΣßİıǅ\u0301\u0323\u0345\u00ad\u200b\ufeff\uffa0\u00a0\u3000\t\n\x00𝔸😀½™…"
PASSAGES = [
    ("Title", "one  text"),
    ("", "another text"),
    ("Title one", "TEXT\u200b"),
    ("", "ｔｉｔｌｅ one text"),
    ("", "text one title"),  # the same letters
    ("Caf\u00e9", "a"),
    ("", "Cafe\u0301 a"),
    ("title", "one text!"),
]
GROUPS = [0, 1, 0, 0, 4, 5, 5, 7]


def column(*texts: str) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, pa.string())])


@pytest.mark.slow
def test_every_form_of_every_character_has_one_number() -> None:
    """Of all characters that have another form, of some syllables of Hangul, and of many that have none."""
    every = (chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    characters = [
        c for c in every if unicodedata.decomposition(c) or c.casefold() != c or c < "\u3000" or ord(c) % 401 == 0
    ]
    sums = Sums()
    numbers = sums.of(column(*characters))
    for change in (folded, *(lambda text, form=form: unicodedata.normalize(form, text) for form in FORMS)):
        assert np.array_equal(sums.of(column(*map(change, characters))), numbers)
    forms = {folded(character): number for character, number in zip(characters, numbers.tolist(), strict=True)}
    assert len(set(forms.values())) > 0.99 * len(forms)


def test_equal_texts_have_one_number_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts in one column, in several slices, and in parts that are as small as a text."""
    generator = random.Random(0)
    alphabet = [*("abc DE" * 8), *ODD]
    texts = ["".join(generator.choices(alphabet, k=generator.randrange(12))) for _ in range(3000)]
    numbers = Sums().of(column(*texts))
    pairs = {(folded(text), number) for text, number in zip(texts, numbers.tolist(), strict=True)}
    assert len(pairs) == len({form for form, _ in pairs})
    letters = {number: sorted(unicodedata.normalize("NFKD", form).replace(" ", "")) for form, number in pairs}
    assert all(sorted(unicodedata.normalize("NFKD", f).replace(" ", "")) == letters[number] for f, number in pairs)
    array = pa.array(["é", *texts], pa.string())
    monkeypatch.setattr(copies, "CHUNK", 16)
    sliced = pa.chunked_array([array.slice(1, 700), array.slice(701, 0), array.slice(701)])
    assert np.array_equal(Sums().of(sliced), numbers)
    assert Sums().of(pa.chunked_array([], pa.string())).shape == (0,)


def corpus(passages: list[tuple[str, str]]) -> str:
    return lines([{"_id": f"d{i}", "title": title, "text": text} for i, (title, text) in enumerate(passages)])


def copied(remarks: list[str]) -> list[str]:
    return [remark for remark in remarks if "passages have" in remark]


def test_they_are_stored_and_counted(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d", corpus(PASSAGES))
    data, written = ingested(Ingest(dataset=str(folder)), tmp_path / "out")
    assert data.passage_groups is not None and data.passage_groups.dtype == np.int32
    assert isinstance(data.passage_groups, np.memmap) and data.passage_groups.tolist() == GROUPS
    texts = [folded(text) for batch in data.passages.stream() for text in batch.full_texts()]
    assert [texts.index(text) for text in texts] == GROUPS
    report = check(Ingest(dataset=str(folder)))
    assert copied(report.remarks) == copied(written.remarks) and report.copies == 3
    assert copied(written.remarks)[0].startswith("8 passages have 5 different texts")


def test_rows_that_are_left_out_have_no_copies(tmp_path: Path) -> None:
    """Passages with an earlier id, or without a text, are read and left out, in both readings."""
    rows = corpus([*PASSAGES[:4], ("", " "), *PASSAGES[5:]]).splitlines(keepends=True)
    folder = write_beir(tmp_path / "d", "".join([rows[0], rows[0], *rows[1:]]))
    settings = Ingest(dataset=str(folder), on_bad_rows="drop")
    data, written = ingested(settings, tmp_path / "out")
    assert data.passage_groups is not None and data.passage_groups.tolist() == [0, 1, 0, 0, 4, 4, 6]
    report = check(settings)
    assert report.copies == 3 and copied(report.remarks) == copied(written.remarks)


def test_without_copies_nothing_is_stored_and_nothing_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Ingest(dataset=str(write_beir(tmp_path / "d")))
    monkeypatch.setattr("gnn_encoder.data.canonical.SecondReading.read", None)
    data, report = ingested(settings, tmp_path / "out")
    assert data.passage_groups is None and not copied(report.remarks) and check(settings).copies == 0
    assert "passage_groups.npy" not in data.manifest.files


@pytest.mark.parametrize("similarity", [0.5, 0.8, 1.0])
def test_near_copies_equal_a_loop(similarity: float, tmp_path: Path) -> None:
    generator = random.Random(1)
    words = [f"w{i}" for i in range(12)]
    passages = [("", " ".join(generator.choices(words, k=generator.randrange(2, 9)))) for _ in range(80)]
    sets = [set(re.findall(r"\w+", folded(text))) for _, text in passages]
    groups = list(range(len(sets)))
    for i, one in enumerate(sets):
        for j, other in enumerate(sets[:i]):
            if len(one & other) >= similarity * len(one | other) - 1e-9:
                first, second = sorted((groups[i], groups[j]))
                groups = [first if group == second else group for group in groups]
    qrels = {split: [(q, f"d{q[1:]}", 1) for q, *_ in rows] for split, rows in QRELS.items()}
    folder = write_beir(tmp_path / "d", corpus(passages), qrels=qrels)
    settings = Ingest(dataset=str(folder), copy_similarity=similarity)
    data, _ = ingested(settings, tmp_path / "out")
    assert data.passage_groups is not None and data.passage_groups.tolist() == groups
    assert 1 < len(set(groups)) < len(groups)
    assert check(settings).copies == len(groups) - len(set(groups))


def test_a_number_that_occurs_twice_is_no_proof() -> None:
    """All passages have one number; the groups are still those of the texts."""

    def read(reading: SecondReading) -> None:
        titles, texts = zip(*PASSAGES, strict=True)
        for part in (slice(0, 3), slice(3, 3), slice(3, None)):
            some = column(*titles[part]), column(*texts[part])
            reading.passages(some[0], *some)

    groups = passage_groups(np.zeros(len(PASSAGES), np.uint64), read, 0.0)
    assert groups is not None and groups.tolist() == GROUPS
    texts = [folded(passage_text(*passage)) for passage in PASSAGES]
    assert [texts.index(text) for text in texts] == GROUPS
