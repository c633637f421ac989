"""Folders of Markdown and HTML become passages, sections and citations."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from beir_folder import QRELS, QUERIES, check, ingested, lines

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.structure import NODES, Structure
from gnn_encoder.data import markup, open_source
from gnn_encoder.data.cutting import HIGH, SHORTEST_TAIL
from gnn_encoder.data.validation import Kind, Problems
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest

GUIDE = """---
title: Guide
---
Before any heading.

# Boats

Short.

### Sails & masts

- Hoist the [main sail](other.html#rig)
  - slowly
- See [above](#boats) and [nowhere](#nothing)

| part | use |
|---|---|
| mast | holds |

## Empty

## Sails & masts

```sh
row --fast

row --slow
```

Read [the other](other.html), [a website](https://example.org), [code](run.py) and [a lost page](lost.md).
"""
OTHER = """<html><head><title>no text</title><style>p {}</style></head><body>
<nav><a href="guide.md">menu</a></nav>
<section id="rigging"><h1>Rigging<a class="headerlink" href="#rigging">¶</a></h1>
<p>Ropes and
 blocks. <p id="rig">The <b>rig</b> needs <a href="guide.md#sails--masts-1">sails</a>.
<h4>Knots</h4><ul><li>bowline</li><li>clove<br>hitch</li></ul>
<pre>  over
under</pre>
loose text<table><tr><td>rope</td><td>10 m</td></tr></table></section></body></html>
"""


def write(folder: Path, with_queries: bool = True) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "guide.md").write_text(GUIDE, encoding="utf-8")
    (folder / "other.html").write_text(OTHER, encoding="utf-8")
    (folder / "run.py").write_text("")
    (folder / "sub" / "README.md").write_text("A [link to its parent](../guide.md#empty), and [here](../sub/).\n")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.md").write_text("must not be read")
    if with_queries:
        (folder / "qrels").mkdir()
        (folder / "queries.jsonl").write_text(lines(QUERIES))
        ids = ["guide.md:1", "guide.md#boats:1", "other.html#rigging:1", "other.html#knots:1", "sub/README.md:1"]
        for split, rows in QRELS.items():
            text = "".join(f"{query}\t{ids[int(passage[1:])]}\t1\n" for query, passage, _ in rows)
            (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + text)
    return folder


def structure_of(folder: Path, out: Path, **settings: object) -> tuple[Dataset, Structure]:
    data, _ = ingested(Ingest(dataset=str(folder), **settings), out)
    assert data.structure is not None
    return data, data.structure


def test_a_folder_becomes_passages_sections_and_citations(tmp_path: Path) -> None:
    data, structure = structure_of(write(tmp_path / "d"), tmp_path / "out")
    passages, ids = next(data.passages.stream()), structure._column(NODES, "node_id").to_pylist()
    assert dict(zip(passages.ids, zip(passages.titles, passages.texts, strict=True), strict=True)) == {
        "guide.md:1": ("", "Before any heading."),
        "guide.md#boats:1": ("Boats", "Short."),
        "guide.md#sails--masts:1": (
            "Boats > Sails & masts", "- Hoist the main sail\n  - slowly\n- See above and nowhere",
        ),
        "guide.md#sails--masts:2": ("Boats > Sails & masts", "part | use\nmast | holds"),
        "guide.md#sails--masts-1:1": ("Boats > Sails & masts", "row --fast\n\nrow --slow"),
        "guide.md#sails--masts-1:2": (
            "Boats > Sails & masts", "Read the other, a website, code and a lost page.",
        ),
        "other.html#rigging:1": ("Rigging", "Ropes and blocks."),
        "other.html#rigging:2": ("Rigging", "The rig needs sails."),
        "other.html#knots:1": ("Rigging > Knots", "- bowline\n- clove\nhitch"),
        "other.html#knots:2": ("Rigging > Knots", "over\nunder"),
        "other.html#knots:3": ("Rigging > Knots", "loose text"),
        "other.html#knots:4": ("Rigging > Knots", "rope | 10 m"),
        "sub/README.md:1": ("", "A link to its parent, and here."),
    }  # fmt: skip
    assert dict(zip(ids[13:], structure.titles.to_pylist()[13:], strict=True)) == {
        "guide.md#boats": "Boats", "guide.md#sails--masts": "Sails & masts", "guide.md#empty": "Empty",
        "guide.md#sails--masts-1": "Sails & masts", "other.html#rigging": "Rigging", "other.html#knots": "Knots",
    }  # fmt: skip
    parent = {node: ids[up] if up >= 0 else None for node, up in zip(ids, structure.parent.tolist(), strict=True)}
    assert parent["guide.md:1"] is None and parent["guide.md#boats"] is None
    assert parent["guide.md#sails--masts"] == parent["guide.md#empty"] == parent["guide.md#sails--masts-1"]
    assert parent["guide.md#empty"] == "guide.md#boats"  # ### under # skips a level
    assert parent["other.html#knots"] == "other.html#rigging" and parent["other.html#knots:4"] == "other.html#knots"
    inside = [i for i, document in enumerate(structure.document) if document == structure.document[0]]
    assert [ids[i] for i in sorted(inside, key=lambda i: structure.place[i])] == [
        "guide.md:1", "guide.md#boats", "guide.md#boats:1", "guide.md#sails--masts", "guide.md#sails--masts:1",
        "guide.md#sails--masts:2", "guide.md#empty", "guide.md#sails--masts-1", "guide.md#sails--masts-1:1",
        "guide.md#sails--masts-1:2",
    ]  # fmt: skip
    assert {(ids[s], ids[t]) for s, t in zip(*structure.citations, strict=True)} == {
        ("guide.md#sails--masts:1", "other.html#rigging:2"), ("guide.md#sails--masts:1", "guide.md#boats"),
        ("guide.md#sails--masts-1:2", "other.html#rigging"), ("other.html#rigging:2", "guide.md#sails--masts-1"),
        ("sub/README.md:1", "guide.md#empty"),
    }  # fmt: skip
    assert structure.document_ids.to_pylist() == ["guide.md", "other.html", "sub/README.md"]


def test_links_to_nowhere_are_counted_and_links_to_websites_and_files_are_outside(tmp_path: Path) -> None:
    report = check(Ingest(dataset=str(write(tmp_path / "d"))))
    assert report.format == "markup" and not report.problems and report.structure
    assert [remark for remark in report.remarks if "links" in remark] == [
        "2 links lead to no section and no passage: 'guide.md#nothing' in 'guide.md#sails--masts:1', "
        "'lost.md' in 'guide.md#sails--masts-1:2'"
    ]
    assert report.structure.outside_citations == 2
    assert report.structure.edges["internal"] == 1 and report.structure.edges["external"] == 4
    assert report.structure.tree_depth == 3 and report.structure.sections_without_text == 6


def test_without_queries_a_folder_is_checked_but_not_ingested(tmp_path: Path) -> None:
    settings = Ingest(dataset=str(write(tmp_path / "d", with_queries=False)))
    report = check(settings)
    assert not report.problems and report.passages == 13
    assert report.remarks[0].startswith("no queries: `run --documents` makes them")
    with pytest.raises(UserError, match=r"no queries.*add queries\.jsonl"):
        ingested(settings, tmp_path / "o")


def test_labels_without_queries_are_a_missing_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    (folder / "queries.jsonl").unlink()
    assert Kind.MISSING_FILE in [p.kind for p in check(Ingest(dataset=str(folder))).problems]


def test_a_beir_folder_without_its_corpus_is_none_of_pages_though_it_has_a_readme(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("about the data")
    (tmp_path / "queries.jsonl").write_text(lines(QUERIES))
    assert open_source(Ingest(dataset=str(tmp_path))).format == "beir"
    (tmp_path / "page.md").write_text("a page")
    assert open_source(Ingest(dataset=str(tmp_path))).format == "markup"


def test_a_page_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    (folder / "bad.md").write_bytes(b"fine\n\n\xff bad\n")
    (problem,) = check(Ingest(dataset=str(folder))).problems
    assert (problem.kind, problem.places) == (Kind.ENCODING, ["bad.md line 3: byte 0xff; the file is not read"])


def test_pages_without_passages_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Only\n\n## headings\n")
    (tmp_path / "b.md").write_text("")
    (tmp_path / "c.html").write_text("<p>Text with <a href='a.md'>a link</a> and <a href='b.md'>b</a>.")
    report = check(Ingest(dataset=str(tmp_path)))
    assert report.passages == 1 and report.structure and not report.problems
    assert (report.structure.documents, report.structure.nodes) == (2, 3) and report.structure.edges["external"] == 1
    assert "1 links lead to no section and no passage: 'b.md' in 'c.html:1'" in report.remarks


def test_a_readme_alone_is_no_folder_of_pages(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("about the data")
    with pytest.raises(UserError, match=r"holds no data set: expected .* besides a README"):
        open_source(Ingest(dataset=str(tmp_path)))
    assert check(Ingest(dataset=str(tmp_path), format="markup")).passages == 1


def test_a_folder_of_documents_is_told_how_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "data.bin").touch()
    with pytest.raises(UserError) as without:
        open_source(Ingest(dataset=str(tmp_path)))
    assert "--documents" not in str(without.value), "the control"
    (tmp_path / "Report.PDF").touch()
    with pytest.raises(UserError, match=r"`run --documents FOLDER` and `data check --format documents`"):
        open_source(Ingest(dataset=str(tmp_path)))


def test_a_heading_without_text_ends_sections_and_a_blank_block_is_no_passage(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        "# A\n\n&#8203;\n\n&#12644;\n\n## B\n\nin b\n\n# <a name='x'></a>\n\nlast, [x](#x)\n"
    )
    report = check(Ingest(dataset=str(tmp_path)))
    assert report.passages == 2 and not report.problems and not [r for r in report.remarks if "links" in r]
    (rows,) = open_source(Ingest(dataset=str(tmp_path))).passages(Problems())
    assert list(zip(rows.ids, rows.titles, strict=True)) == [("a.md#b:1", "A > B"), ("a.md:1", "")]


def test_a_huge_heading_and_a_huge_anchor_are_not_repeated_in_passages(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\n# " + "word " * 1000 + "\n\ntext\n")
    (tmp_path / "b.html").write_text(f"<h1 id={'x' * 1000}>B</h1>text")
    (rows,) = open_source(Ingest(dataset=str(tmp_path))).passages(Problems())
    assert set(rows.titles) == {"A", "B"} and sum(len(text.split()) for text in rows.texts) == 1002
    assert rows.ids[-1] == "b.html#b:1" and max(map(len, rows.ids)) < 20


def test_line_ends_and_marks_of_windows_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf---\r\ntitle: x\r\n---\r\n# A\r\n\r\none\r\ntwo\r\n")
    (tmp_path / "b.html").write_bytes(b"<pre>one\r\ntwo</pre>")
    (rows,) = open_source(Ingest(dataset=str(tmp_path))).passages(Problems())
    assert rows.texts == ["one\ntwo"] * 2 and rows.lines[0] == 6


def test_a_page_that_cannot_be_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    problems = check(Ingest(dataset=str(write(tmp_path / "d")))).problems
    assert [str(p) for p in problems if p.kind == Kind.UNREADABLE] == [
        "3 × unreadable file (guide.md: Permission denied, other.html: Permission denied, "
        "sub/README.md: Permission denied)"
    ]


def test_links_of_folders_and_odd_names_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a b" / "x y.md").write_text("# X\n\n[up](../index.md#top) and [out](../../z.md)\n")
    (tmp_path / "index.md").write_text("# I\n\n[x](a%20b/x%20y.md#x), [again](./a%20b/../a%20b/x%20y.md)\n")
    report = check(Ingest(dataset=str(tmp_path)))
    assert report.structure and report.passages == 2 and not [r for r in report.remarks if "links" in r]
    assert (report.structure.edges["external"], report.structure.outside_citations) == (2, 1)


def test_pages_are_joined_to_batches_and_the_size_of_a_batch_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "d")
    for i in range(100):
        (folder / f"p{i}.md").write_text(f"# P {i}\n\nText [next](p{i + 1}.md#p-{i + 1}).\n")
    source = open_source(Ingest(dataset=str(folder)))
    assert len(list(source.passages(Problems()))) == 1 and len(list(source.sections(Problems()))) == 1
    whole, _ = structure_of(folder, tmp_path / "whole")
    monkeypatch.setattr(markup, "BATCH", 7)
    assert len(list(source.passages(Problems()))) > 20
    parts, _ = structure_of(folder, tmp_path / "parts")
    names = ("nodes.parquet", "citations.parquet", "documents.parquet", "corpus.parquet")
    for name in names:
        assert pq.read_table(tmp_path / "whole" / name).equals(pq.read_table(tmp_path / "parts" / name))
    assert len(whole.passages) == len(parts.passages) == 113


def test_a_link_whose_name_is_too_long_for_a_file_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(f"Text [a](guide.md) [b]({'x' * 300}.md).")
    (remark,) = (remark for remark in check(Ingest(dataset=str(tmp_path))).remarks if "links" in remark)
    assert remark.startswith("2 links lead to no section")


def test_a_link_to_a_folder_that_cannot_be_read_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.md").write_text("Text [a](secret/).")
    (tmp_path / "secret").mkdir()

    def refused(folder: Path) -> None:
        raise PermissionError(folder)

    monkeypatch.setattr(Path, "iterdir", refused)
    report = check(Ingest(dataset=str(tmp_path)))
    assert report.structure and report.structure.outside_citations == 1


def test_moving_a_page_changes_the_digest(tmp_path: Path) -> None:
    folder = write(tmp_path / "d")
    before = open_source(Ingest(dataset=str(folder))).digest()
    assert open_source(Ingest(dataset=str(folder))).digest() == before
    (folder / "other.html").rename(folder / "sub" / "other.html")
    assert open_source(Ingest(dataset=str(folder))).digest() != before


def test_a_long_paragraph_is_cut_and_a_short_one_is_not_joined(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\nOne.\n\n" + "word [b](a.md#b) and so on. " * 60 + "\n\nTwo.\n\n# B\n")
    source = open_source(Ingest(dataset=str(tmp_path)))
    (rows,) = source.passages(None)  # type: ignore[arg-type]
    sizes = [len(text.split()) for text in rows.texts]
    assert sizes[0] == sizes[-1] == 1 and sum(sizes) == 2 + 60 * 5 and max(sizes) <= HIGH + SHORTEST_TAIL
    assert rows.ids == [f"a.md#a:{i}" for i in range(1, len(sizes) + 1)] and len(sizes) >= 5
