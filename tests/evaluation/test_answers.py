import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.evaluation import answers as module
from gnn_encoder.evaluation.answers import DEPTH, Answers, Passage, answer_recall, tokens


def reference_tokens(text: str) -> list[str]:
    """DPR's rule, character by character from Unicode's categories."""
    out: list[str] = []
    inside = False
    for character in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(character)[0]
        if kind in "LNM":
            out[-1:] = [out[-1] + character] if inside else [*out[-1:], character]
            inside = True
        else:
            inside = False
            if kind not in "ZC":
                out.append(character)
    return [token.lower() for token in out]


def reference(text: str, answers: list[str]) -> bool:
    """Whether the tokens of an answer stand in the text's, one after the other."""
    words = reference_tokens(text)
    for answer in answers:
        wanted = reference_tokens(answer)
        if wanted and any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1)):
            return True
    return False


TRICKY = [
    ("The café was opened in 1921.", "CAFÉ", True),
    ("The café was opened in 1921.", "cafe", False),  # an accent is a part of its word
    ("The cafe\u0301 was opened", "caf\u00e9", True),  # composed or not
    ("born in New  York, U.S.A.", "new york", True),
    ("born in New-York", "new york", False),  # the hyphen is a token of its own
    ("born in New-York", "New - York", True),
    ("U.S.A. today", "U.S.A.", True),
    ("U.S.A. today", "USA", False),
    ("it cost $1,000,000 then", "$1,000,000", True),
    ("it cost $1,000,000 then", "1,000", True),
    ("it cost $1,000,000 then", "000000", False),
    ("Bernard ran", "Bern", False),  # whole words only
    ("Émile\tZola\u00a0wrote", "émile zola", True),
    ("the end", "the end of it", False),
    ("ΟΔΥΣΣΕΥΣ came home", "οδυσσευς", True),
    ("STRASSE", "straße", False),
    ("\u200bzero\u200bwidth", "zero width", True),  # a control character only separates
    ("a b c", "", False),
    ("a b c", " \u200b\n", False),
    ("日本語 text", "日本語", True),
    ("it's 5 o'clock", "o'clock", True),
    ("C++ and C#", "C++", True),
]


@pytest.mark.parametrize(("text", "answer", "expected"), TRICKY)
def test_the_rule_on_tricky_texts(text: str, answer: str, expected: bool) -> None:
    assert Answers([answer]).are_in(Passage(text)) is expected
    assert reference(text, [answer]) is expected


def test_the_rule_on_random_texts() -> None:
    generator = np.random.default_rng(0)
    letters = list("aAbBéÉñ\u0301ßſİıσςΣ 1٣²-.'\u00a0\u200b\n\t$€日ǅ")
    agreed = {True: 0, False: 0}
    for _ in range(6000):
        text, answer = ("".join(generator.choice(letters, generator.integers(0, n))) for n in (40, 3))
        assert tokens(text) == reference_tokens(text)
        expected = reference(text, [answer])
        assert Answers([answer]).are_in(Passage(text)) is expected, (text, answer)
        agreed[expected] += 1
    assert min(agreed.values()) > 400


def test_folding_forgets_no_more_than_lower_casing() -> None:
    for code in range(sys.maxunicode + 1):
        character = unicodedata.normalize("NFD", chr(code))
        assert character.lower().casefold() == character.casefold(), hex(code)


def test_any_answer_will_do() -> None:
    assert Answers(["nothing", "the river"]).are_in(Passage("by the river"))
    assert not Answers([])
    assert not Answers([" "])
    assert Answers(["x"])


def test_recall_at_each_cutoff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    words = [f"w{i}" for i in range(60)]
    texts = [" ".join(generator.choice(words, 3)) for _ in range(400)]
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(400)], ["w0"] * 400, texts)
        writer.queries(["q"], ["q"], ["test"], [[]])
        writer.close()
    passages = Dataset(tmp_path / "dataset").passages
    answers = [[str(generator.choice(words)), "w1 w2"] for _ in range(20)]
    hits = {name: generator.permuted(np.tile(np.arange(400), (20, 1)), axis=1)[:, :DEPTH] for name in ("a", "b")}
    hits["a"][:, 30:] = -1
    hits["b"][3] = -1

    def found_by_hand(row: np.ndarray, wanted: list[str], k: int) -> bool:
        return any(reference(texts[p], wanted) for p in row[:k] if p >= 0)

    monkeypatch.setattr(module, "BATCH", 7)
    recall = answer_recall(passages, [Answers(a) for a in answers], hits)
    for system, rows in hits.items():
        expected = [[found_by_hand(row, a, k) for k in (5, 20, 100)] for row, a in zip(rows, answers, strict=True)]
        np.testing.assert_array_equal(recall[system], np.array(expected, dtype=float))
    assert 0 < recall["a"][:, 0].mean() < recall["b"][:, 1].mean()
