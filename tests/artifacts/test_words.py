"""The words of texts in several scripts, against the rule for ASCII texts and against words split by hand."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_encoder.artifacts.words import words


@given(st.text(st.characters(max_codepoint=127)))
def test_words_of_ascii_texts_are_runs_of_two_characters_or_more(text: str) -> None:
    seen = re.sub(r"[\0-\x08\x0e-\x1b\x7f]", "", text)  # controls that are no white space
    assert words(text) == re.findall(r"(?u)\b\w\w+\b", seen.lower())


@given(st.text("ab12_ .,'“”—…€§Bé"))
def test_signs_split_english_words_as_spaces_do(text: str) -> None:
    assert words(text) == re.findall(r"(?u)\b\w\w+\b", text.lower())


def bigrams(*runs: str) -> list[str]:
    return [run[i : i + 2] for run in runs for i in range(max(len(run) - 1, 1))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("札幌の空港は朝九時に開きます。土曜日", bigrams("札幌の空港は朝九時に開きます", "土曜日")),
        ("サーバーの再起動", bigrams("サーバーの再起動")),
        ("第3章、iPhone15を見る", ["第", "3", "章", "iphone15", *bigrams("を見る")]),
        ("ภาษาไทย ง่าย", bigrams("ภาษาไทย", "ง่าย")),
        ("한국어를 배우다", bigrams("한국어를", "배우다")),
        ("ភាសា", bigrams("ភាសា")),
        ("ພາສາລາວ", bigrams(unicodedata.normalize("NFKC", "ພາສາລາວ"))),
        ("မြန်မာ", bigrams("မြန်မာ")),
        ("हिन्दी में कितने दिन हैं?", ["हिन्दी", "में", "कितने", "दिन", "हैं"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("كِتَاب", ["كِتَاب"]),
        ("ﻻ ﬀ", ["لا", "ff"]),
        ("½ of 2½", ["of", "21⁄2"]),
        ("Windows™ 10⁻³", ["windows", "10"]),
        ("İstanbul’un", ["i\u0307stanbul", "un"]),
        ("за́мок ọjọ́ пʼять Spın̈al", [w.lower() for w in ["за́мок", "ọjọ́", "пʼять", "spın̈al"]]),
        ("々だ ラーメン屋", bigrams("々だ", "ラーメン屋")),
    ],
)
def test_words_of_other_scripts(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("café crème", "cafe\u0301 cre\u0300me"),
        ("한국어", unicodedata.normalize("NFD", "한국어")),
        ("ガギグ", unicodedata.normalize("NFD", "ガギグ")),
        ("ガギグ", "ｶﾞｷﾞｸﾞ"),
        ("ABC 123 finance", "ＡＢＣ １２３ ﬁnance"),
        ("straße ΟΔΟΣ ЁЛКА", "STRASSE οδος ёлка"),
        ("softhyphen", "soft\u00adhyphen"),
        ("word", "\ufeffwo\u200brd\u200e"),
        ("میخواهم", "می\u200cخواهم"),
        ("क्ष", "क्\u200dष"),
        ("ไทยง่าย", "ไทย\u200bง่าย"),
        ("5kg No5 TEL python", "5㎏ №5 ℡ Ⓟython"),
        ("株式会社", "㍿"),
        ("foo_bar", "ｆｏｏ＿ｂａｒ"),
        ("foobar", "foo\x00bar"),
        ("foobar é", "foo\x00bar é"),
    ],
)
def test_forms_of_a_text_that_read_the_same_have_the_same_words(one: str, other: str) -> None:
    assert words(one) == words(other) != []


def test_single_letters_are_words_where_they_are_asked_for() -> None:
    assert words("Is C a é ½?") == ["is"]
    assert words("Is C a é ½?", shortest=1) == ["is", "c", "a", "é", "1⁄2"]
    assert words("金 a", shortest=1) == ["金", "a"]


def test_different_words_stay_different() -> None:
    assert words("cafe") != words("café")
    assert words("दिन") != words("दीन")
    assert words("東京") != words("京東")
