"""Headings and sentences as queries."""

from pathlib import Path

from beir_folder import ingested

from gnn_encoder.artifacts import Passages, WrittenQueries
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.written import WriteQueries
from gnn_encoder.steps.write_queries import write_queries
from gnn_encoder.written.titles import heading, queries_of_headings, queries_of_sentences, sentences


def test_a_passage_alone_in_its_section_has_its_neighbours() -> None:
    titles = ["A > B", "A > C", "A > C", "D", ""]
    texts = [f"This is passage number {number}." for number in range(5)]
    quotations = [(of.quoted, of.passage) for of in queries_of_sentences([Passages(titles, titles, texts)], 1)]
    assert quotations == [(0, 1), (1, 2), (2, 1)]
    many = ["A"] * 40
    near = [of for of in queries_of_sentences([Passages(many, many, texts[:1] * 40)], 1) if of.quoted == 20]
    assert [of.passage for of in near] == [17, 18, 19, 21, 22, 23]


def test_sections_of_two_documents_are_two_whatever_their_titles(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in "ab":
        text = "".join(f"The {name} document says {word} of all things.\n\n" for word in ("one", "two"))
        (tmp_path / "docs" / f"{name}.md").write_text(f"# Notes\n\n{text}")
    settings = Ingest(dataset=str(tmp_path / "docs"), format="documents", needs="passages", passage_words=8)
    ingested(settings, tmp_path / "dataset")
    write_queries(WriteQueries(generator="titles"), dataset=tmp_path / "dataset", written_queries=tmp_path / "out")
    written = WrittenQueries.read(tmp_path / "out")
    pairs = list(zip(written.quoted, written.passage, strict=True))
    assert pairs == [(0, 1), (1, 0), (2, 3), (3, 2)]


def test_a_short_heading_has_the_one_above_it() -> None:
    assert heading("Guide > Install") == "Guide Install" and heading("Guide > On Debian") == "On Debian"
    assert heading("") == "" and heading("Guide") == "Guide"
    headings = queries_of_headings([Passages(["1", "2"], ["Guide", ""], ["", ""])])
    assert [tuple(of) for of in headings] == [(0, "heading", "Guide", -1)]
    text = "One. Two words here are five now. This one is a longer sentence than the other."
    assert sentences(text) == ["This one is a longer sentence than the other", "Two words here are five now"]


def test_scripts_without_spaces_have_sentences_and_headings_too() -> None:
    chinese = "河流是自然形成的水流。它短。为什么每一条河流最后都会流入大海或者湖泊？"
    assert sentences(chinese) == ["为什么每一条河流最后都会流入大海或者湖泊", "河流是自然形成的水流"]
    phrase = "แม่น้ำสายนี้ไหลลงสู่ทะเล"
    assert sentences(" ".join([phrase] * 9)) == [phrase] * 9 and sentences(phrase) == [phrase]
    assert sentences("word " * 41) == [], "the control"
    assert heading("指南 > 安装") == "指南 安装" and heading("指南 > 如何安装软件") == "如何安装软件"
