"""Docstrings become queries and passages without running anything."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_encoder.data.cutting import HIGH, SHORTEST_TAIL, cut
from gnn_encoder.data.python_docs import PythonDocs, read_docstrings, split_docstring
from gnn_encoder.data.rows import Label, Query
from gnn_encoder.data.validation import Problems
from gnn_encoder.errors import UserError

SOURCE = '''"""Tools for boats and harbours.

Everything here assumes calm water and a steady wind from the west.
"""
raise RuntimeError("this file must never be run")

class Boat:
    """A boat that floats, e.g. a dinghy. It has a hull and a mast which may be removed."""

    def sail(self):
        """sail(speed) -> None

        Sail with the wind.
        The wind must come from behind, or nothing happens at all.
        """
        def inner():
            """Inner functions are not documented. No one may look for this text anywhere."""

    def _hide(self):
        """Hide the boat somewhere. This text is private and must not be read by anyone."""

if True:
    def anchor():
        """Drop anchor.

        The chain runs out until the anchor holds to the ground below.
        """

def row():
    """Sail with the wind. Rowing is what remains when there is no wind to be had."""

def one_line():
    """Nothing but a sentence here."""
'''


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "lib" / "pkg" / "tests").mkdir(parents=True)
    (tmp_path / "lib" / "pkg" / "__init__.py").write_text("")
    (tmp_path / "lib" / "pkg" / "boats.py").write_text(SOURCE)
    (tmp_path / "lib" / "pkg" / "tests" / "__init__.py").write_text('"""A test of boats. It must not be read by us."""')
    (tmp_path / "lib" / "broken.py").write_text("def (")
    return tmp_path / "lib"


def test_what_is_read_and_what_is_not(library: Path) -> None:
    docstrings = {d.name: (d.query, d.body) for d in read_docstrings(library / "pkg" / "boats.py", "boats")}
    assert docstrings == {
        "boats": (
            "Tools for boats and harbours", "Everything here assumes calm water and a steady wind from the west.",
        ),
        "boats.Boat": ("A boat that floats, e.g. a dinghy", "It has a hull and a mast which may be removed."),
        "boats.Boat.sail": ("Sail with the wind", "The wind must come from behind, or nothing happens at all."),
        "boats.anchor": ("", "Drop anchor.\n\nThe chain runs out until the anchor holds to the ground below."),
        "boats.row": ("Sail with the wind", "Rowing is what remains when there is no wind to be had."),
        "boats.one_line": ("Nothing but a sentence here", ""),
    }  # fmt: skip


def test_queries_of_the_same_words_are_merged_and_unasked_passages_kept(library: Path) -> None:
    source = PythonDocs([], 0, 0, library)
    (passages,) = source.passages(Problems())
    rows = list(source.questions(Problems()))
    queries = {row.id: row.text for row in rows if isinstance(row, Query)}
    labels = [(row.query_id, row.passage_id) for row in rows if isinstance(row, Label)]
    titles = dict(zip(passages.ids, passages.titles, strict=True))
    assert sorted(queries.values()) == [
        "A boat that floats, e.g. a dinghy", "Sail with the wind", "Tools for boats and harbours",
    ]  # fmt: skip
    assert sorted(titles[p] for q, p in labels if queries[q] == "Sail with the wind") == [
        "pkg.boats.Boat.sail", "pkg.boats.row",
    ]  # fmt: skip
    assert "pkg.boats.anchor" in titles.values() and len(titles) == source.work == 5
    assert any("broken.py" in remark for remark in source.remarks)


def test_drawing_keeps_whole_docstrings_and_follows_the_seed(library: Path) -> None:
    def titles(limit: int, seed: int) -> list[str]:
        return next(iter(PythonDocs([], limit, seed, library).passages(Problems()))).titles

    whole = titles(0, 0)
    assert all(len(titles(3, seed)) == 3 and set(titles(3, seed)) < set(whole) for seed in range(4))
    assert titles(3, 0) == titles(3, 0)
    assert len({tuple(titles(3, seed)) for seed in range(8)}) > 1


def test_the_digest_follows_the_sources(library: Path) -> None:
    before = PythonDocs([], 0, 0, library).digest()
    assert PythonDocs([], 0, 0, library).digest() == before
    (library / "more.py").write_text('"""More."""')
    assert PythonDocs([], 0, 0, library).digest() != before


def test_packages_are_found_and_unknown_ones_refused(library: Path) -> None:
    source = PythonDocs(["hypothesis.strategies"], 0, 0, library)
    assert "hypothesis.strategies" in source.sources and source.facts["hypothesis.strategies"]
    for name in ("no_such_package", "hypothesis.no_such_part"):
        with pytest.raises(UserError, match="names"):
            PythonDocs([name], 0, 0, library)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Return a new list. Items are copied.", "Return a new list"),
        ("Return a list, i.e. a new one, of items", "Return a list, i.e. a new one, of items"),
        ("S.join(iterable) -> str\n\nJoin strings with S. More.", "Join strings with S"),
        ("Two words.\n\nAnd the rest.", ""),
        ("Split a line of\ntext in parts.\nThen go on.", "Split a line of text in parts"),
        ("boats\n\nTools for boats. More.", "Tools for boats"),
    ],
)
def test_first_sentences(text: str, query: str) -> None:
    assert split_docstring(text, "boats")[0] == query


@given(st.lists(st.sampled_from(["word ", "end. ", "\n", "\n\n", "x" * 30 + " "]), max_size=600).map("".join))
def test_passages_hold_all_words_in_order_and_are_neither_empty_nor_long(text: str) -> None:
    passages = cut(text)
    assert [word for passage in passages for word in passage.split()] == text.split()
    assert all(0 < len(passage.split()) < HIGH + SHORTEST_TAIL for passage in passages)


def test_paragraphs_are_where_passages_end() -> None:
    paragraph = "word " * 69 + "end."
    assert cut(f"{paragraph}\n\n{paragraph}") == [paragraph, paragraph]


@pytest.mark.parametrize(
    ("sentence", "end"),
    [("这条河流发源于北部的山区，经过许多城市。", "。"), ("यह नदी उत्तर के पहाड़ों से निकलती है। ", "।"), ("河流", "流")],
)
def test_texts_of_other_scripts_are_cut_at_their_sentences(sentence: str, end: str) -> None:
    text = sentence * 120
    passages = cut(text)
    assert "".join("".join(passages).split()) == "".join(text.split()), "nothing is lost"
    assert len(passages) > 1 and all(passage.rstrip().endswith(end) for passage in passages)
    assert all(len(passage) < 700 for passage in passages)


PARTS = [
    "「今日は寒い。」",
    "と彼は言った。",
    "本当に？！",
    "这是一个句子。",
    "2019年",
    "“好。”",
    "Yes. ",
    "(है।) ",
    "word ",
    " ",
    "。」",
]


@given(st.lists(st.sampled_from(PARTS), min_size=100, max_size=600).map(lambda parts: " ".join("".join(parts).split())))
def test_passages_are_parts_of_the_text_as_it_is(text: str) -> None:
    passages = cut(text)
    # A short tail has a line of its own, but not where the text has no white space.
    assert all(passage.replace("\n", " ") in text for passage in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "sentence", ["「今日は寒い。」", "彼は「本当に？！」", "2019年（これは文です。）", "“这是真的吗？！”。"]
)
def test_marks_stay_with_what_they_close(sentence: str) -> None:
    passages = cut(sentence * 99)
    assert len(passages) > 1 and "".join(passages) == sentence * 99
    assert all(len(passage) % len(sentence) == 0 for passage in passages)
