"""Equal texts and empty texts, held against Unicode's own tables in `regex` and `unicodedata`."""

import itertools
import random
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import regex

from gnn_encoder.artifacts.texts import blank, folded, folded_column, is_blank, text_lines

CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]


def test_folded_leaves_out_the_ignorable_characters_and_no_others() -> None:
    ignorable = regex.compile(r"[\p{Default_Ignorable_Code_Point}\p{Cc}\uFFF9-\uFFFB]")
    assigned = [character for character in CHARACTERS if unicodedata.category(character) not in ("Cn", "Co")]
    ignorable_codes = [character for character in CHARACTERS if ignorable.match(character)]
    for character in {*assigned, *ignorable_codes}:
        left_out = folded(f"a{character}b") == "ab"
        assert left_out == (ignorable.match(character) is not None and not character.isspace()), hex(ord(character))


def test_normal_forms_of_a_text_are_equal() -> None:
    for character in CHARACTERS:
        if unicodedata.decomposition(character) or character.casefold() != character:
            wanted = folded(f"a{character}b")
            assert folded(wanted) == wanted, hex(ord(character))
            forms = {unicodedata.normalize(form, f"a{character}b") for form in ("NFC", "NFD", "NFKC", "NFKD")}
            assert {folded(form) for form in forms} == {wanted}, hex(ord(character))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Straße ", "STRASSE"),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("cafe\u0301", "Café"),
        ("\ufeffa que\u00adstion\u200b", "a question"),
        ("a\r\n\tb", "a b"),
        ("㎏ ①", "kg 1"),
    ],
)
def test_equal_texts(one: str, other: str) -> None:
    assert folded(one) == folded(other)


@pytest.mark.parametrize(("one", "other"), [("C", "C++"), ("resume", "résumé"), ("a b", "ab"), ("ı", "i")])
def test_different_texts(one: str, other: str) -> None:
    assert folded(one) != folded(other)


def test_a_text_and_a_column_of_texts_are_empty_by_one_rule() -> None:
    assert np.array_equal(blank(pa.chunked_array([CHARACTERS])), [is_blank(character) for character in CHARACTERS])


@pytest.mark.parametrize("text", ["", " \t\n", "\u200b", "\ufeff", "\u3164 \u00a0", "\x00", "\ufe0f", "\u2800"])
def test_empty_texts(text: str) -> None:
    assert is_blank(text)
    assert not is_blank(f"{text}.")


def test_a_column_is_folded_as_each_text() -> None:
    """Every pair of ASCII characters, between letters and at both ends; many other characters; longer texts; null."""
    ascii_pairs = ["".join(pair) for pair in itertools.product(map(chr, range(128)), repeat=2)]
    texts = [text for pair in ascii_pairs for text in (pair, f"A{pair}b")]
    texts += [text for character in CHARACTERS[:0x3100] + CHARACTERS[::997] for text in (character, f"Ab{character} c")]
    generator = random.Random(0)
    texts += ["".join(generator.choices("aB 9.\t\u200bé", k=20)) for _ in range(2000)]
    assert folded_column(pa.chunked_array([texts[:9], texts[9:]])).to_pylist() == list(map(folded, texts))
    assert folded_column(pa.array(["A", None, "\u200bB"], pa.string())).to_pylist() == ["a", None, "b"]
    assert folded_column(pa.chunked_array([], pa.string())).to_pylist() == []


def test_lines_of_a_file_from_any_editor(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes("\ufeffa\r\n\r\nb\u2028c\x85d\n\ufeff\ufeffe\ufeff\x0cf".encode())
    assert list(text_lines(file)) == [(1, "a"), (2, ""), (3, "b\u2028c\x85d"), (4, "e\ufeff\x0cf")]
    file.write_bytes(b"\xef\xbb\xbf")
    assert [line for _, line in text_lines(file)] == [""]
