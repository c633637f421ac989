"""BM25 in other languages than English: what is found, with what is found without the language as a control."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import icu4py.breakers
import numpy as np
import py3langid.langid
import pytest
import Stemmer
from bm25s import stopwords as published

from gnn_encoder.artifacts import Dataset, DatasetWriter, PassageTable, drafting
from gnn_encoder.artifacts.words import words
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.terms import language_of, shown, splitter, stemmer, stop_words
from gnn_encoder.settings.bm25 import LANGUAGES, STEMMERS, STOPWORDS, IndexBm25
from gnn_encoder.settings.pipeline import Settings

TEXTS = {
    "de": [
        "Die Krankenversicherungen zahlten im vergangenen Jahr mehr als zwei Milliarden Euro für Arzneimittel.",
        "Der Fluss entspringt in den Alpen und mündet nach vierhundert Kilometern in die Nordsee.",
        "Im Museum sind die Gemälde der alten Meister und einige Skulpturen aus Marmor zu sehen.",
    ],
    "el": [
        "Οι ποταμοί της χώρας πηγάζουν από τα βουνά και εκβάλλουν στη θάλασσα.",
        "Το μουσείο έχει πολλά αγάλματα από μάρμαρο και παλιούς πίνακες ζωγραφικής.",
        "Η κυβέρνηση ανακοίνωσε νέα μέτρα για την προστασία των δασών.",
    ],
    "ar": [
        "يحتوي المتحف على تماثيل من الرخام ولوحات قديمة من القرن الماضي.",
        "تنبع الأنهار من الجبال وتصب في البحر بعد رحلة طويلة.",
        "أعلنت الحكومة عن إجراءات جديدة لحماية الغابات في البلاد.",
    ],
    "hi": [
        "संग्रहालय में संगमरमर की मूर्तियाँ और पुराने चित्र रखे गए हैं।",
        "नदियाँ पहाड़ों से निकलती हैं और समुद्र में मिल जाती हैं।",
        "सरकार ने जंगलों की रक्षा के लिए नए नियम बनाए हैं।",
    ],
    "zh": [
        "博物馆里有大理石雕像和古老的绘画作品。",
        "这条河流发源于山区，最后流入大海。",
        "政府宣布了保护森林的新措施。",
    ],
    "ja": [
        "博物館には大理石の彫刻と古い絵画があります。",
        "その川は山から流れ出て、最後に海に注ぎます。",
        "政府は森林を守るための新しい対策を発表しました。",
    ],
    "th": [
        "พิพิธภัณฑ์มีรูปปั้นหินอ่อนและภาพวาดเก่าแก่จำนวนมาก",
        "แม่น้ำสายนี้ไหลจากภูเขาลงสู่ทะเลในที่สุด",
        "รัฐบาลประกาศมาตรการใหม่เพื่อปกป้องป่าไม้",
    ],
}
QUESTIONS = {
    "de": ["Krankenversicherung", "Flüsse", "Kunstmuseum"],
    "el": ["ο ποταμός", "μουσεία", "κυβερνήσεις"],
    "ar": ["متاحف الرخام", "أنهار وجبال", "غابة"],
    "hi": ["मूर्ति", "नदी", "जंगल"],
    "zh": ["大理石", "河流", "森林"],
    "ja": ["彫刻", "川の流れ", "対策"],
    "th": ["รูปปั้น", "แม่น้ำ", "ป่าไม้"],
}
"""Question i is answered by text i. Those with spaces are in other forms than the texts' words."""


Table = Callable[[list[str]], PassageTable]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Makes passages of texts."""

    def of(texts: list[str]) -> PassageTable:
        folder = tmp_path / f"data{len(list(tmp_path.iterdir()))}"
        with drafting(folder, "dataset") as draft:
            writer = DatasetWriter(draft)
            writer.passages([f"p{i}" for i in range(len(texts))], [""] * len(texts), texts)
            writer.close()
        return Dataset(folder).passages

    return of


@pytest.mark.parametrize("language", TEXTS)
def test_the_language_is_found_and_its_texts_are(language: str, tmp_path: Path, table: Table) -> None:
    index = Bm25.build(table(TEXTS[language]), IndexBm25())
    assert index.kind.language == language
    folder = tmp_path / "index"
    folder.mkdir()
    index.save(folder)
    for bm25 in (index, Bm25.load(folder)):
        assert bm25.search(QUESTIONS[language], 1)[1][:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("language", ["de", "el", "ar", "hi"])
def test_without_the_language_other_forms_are_not_found(language: str, table: Table) -> None:
    index = Bm25.build(table(TEXTS[language]), IndexBm25(language="en"))
    assert index.search(QUESTIONS[language], 1)[1][:, 0].tolist() != [0, 1, 2]


def test_stems_are_snowballs_in_every_language() -> None:
    assert set(STEMMERS.values()) <= set(Stemmer.algorithms())
    terms, of = splitter(IndexBm25(language="fi"))("taloissa"), stemmer(IndexBm25(language="fi"))
    assert of is not None and of(terms[0]) == Stemmer.Stemmer("finnish").stemWord("taloissa") == "talo"
    assert [of(term) for term in terms[1:]] == terms[1:], "parts are not stemmed"
    assert stemmer(IndexBm25(language="th")) is None is stemmer(IndexBm25(language="de", stemmer="none"))


def test_stop_words_are_bm25ss_and_are_split_as_texts_are() -> None:
    assert stop_words("en") == set(published.STOPWORDS_EN)
    assert set(words(" ".join(published.STOPWORDS_FRENCH))) <= stop_words("fr")
    assert all(stop_words(language) for language in STOPWORDS) and not stop_words("th")
    with_them, without = (
        splitter(IndexBm25(language="de", stopwords=which))("Die Flüsse und das Meer") for which in ("none", "language")
    )
    assert "und" in with_them and "und" not in without and "flüsse" in without


def test_terms_are_words_their_parts_and_icus_words() -> None:
    assert [shown(term) for term in splitter(IndexBm25(language="sv"))("Älgen, å 7up")] == [
        "älgen", " älg", "älge", "lgen", "gen ", "7up", " 7up", "7up ",
    ]  # fmt: skip
    japanese = "東京都の図書館"
    assert [shown(term) for term in splitter(IndexBm25(language="ja"))(japanese)] == [
        *icu4py.breakers.WordBreaker(japanese, "ja"), *words(japanese),
    ]  # fmt: skip
    thai = "ภาษาไทยง่าย"
    assert [shown(term) for term in splitter(IndexBm25(language="th"))(thai)] == [
        *icu4py.breakers.WordBreaker(thai, "th"), *(thai[i : i + 3] for i in range(len(thai) - 2)),
    ]  # fmt: skip


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("fields", ["joined", "separate"])
def test_the_words_of_a_question_explain_its_score(language: str, fields: Any, table: Table) -> None:
    index = Bm25.build(table(TEXTS[language]), IndexBm25(fields=fields))
    question = f"{QUESTIONS[language][0]} {TEXTS[language][0]} {QUESTIONS[language][0]}"
    (whole,) = index.totals([question])
    of_words = [total for texts in index.words(question).values() for total in index.totals(texts) if total is not None]
    np.testing.assert_allclose(sum(of_words), whole, rtol=1e-5)
    assert [shown(word) for word in index.words(question)] == list(index.words(question))
    assert len(index.words(question)) > 3


@pytest.mark.parametrize("start", ["\0", "\1", "\2"])
def test_a_text_that_begins_with_a_control_is_split_as_others(start: str, table: Table) -> None:
    plain, begun = (
        Bm25.build(table([before + text for text in TEXTS["de"]]), IndexBm25(language="de")) for before in ("", start)
    )
    question = TEXTS["de"][1]
    (expected,), (same,), (marked,) = (
        plain.totals([question]),
        plain.totals([start + question]),
        begun.totals([question]),
    )
    assert expected is not None and expected[1] > 1
    np.testing.assert_array_equal(same, expected)
    np.testing.assert_array_equal(marked, expected)


def test_a_language_is_known_only_by_enough_words_of_most_passages(table: Table) -> None:
    german, greek, english = TEXTS["de"], TEXTS["el"], ["The river is in the north of the old market town."] * 6
    assert language_of(table(german * 40)) == "de"
    assert language_of(table(english)) == "en"
    assert language_of(table(["Rotterdam ligt aan de Maas en is de grootste haven van Europa."] * 3)) == "nl"
    assert language_of(table(["Місто стоїть на березі річки, яка тече з гір до моря."] * 3)) == "other"
    assert language_of(table([german[0], *english])) == "en", "one of seven"
    assert language_of(table([*greek, *german])) == "en", "none has most: as before"
    assert language_of(table(["Fluss"])) == "en", "too few words"
    assert language_of(table([" ".join(f"w{(7 * i) % 80}" for i in range(60))] * 5)) == "en", "no language"
    assert language_of(table([])) == "en"


def test_the_identifier_knows_every_language_that_is_searched_by_one() -> None:
    known = {name for name, _ in py3langid.langid.rank("text")}
    assert LANGUAGES - known == {"yi", "other"}, "these are taken only if they are set"


@pytest.mark.parametrize("written", ["de", "auto", "other", False])
def test_a_language_is_a_code(written: Any) -> None:
    assert IndexBm25(language=written).language == ("no" if written is False else written)  # YAML's `no`


def test_an_unknown_language_is_refused(table: Table) -> None:
    with pytest.raises(ValueError, match="unknown language 'gr': known are ar, auto"):
        Settings.model_validate({"index_bm25": {"language": "gr"}})
    with pytest.raises(UserError, match="no passage has a word"):
        Bm25.build(table(["und die"]), IndexBm25(language="de"))
