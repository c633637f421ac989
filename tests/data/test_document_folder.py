"""Folders of documents of many formats: passages of whole sections, links to pages, and bad files that end nothing."""

import io
import os
import zipfile
from pathlib import Path

import beir_folder
import pytest

from gnn_encoder.data import file_reader, open_source
from gnn_encoder.data.blocks import Block
from gnn_encoder.data.cutting import words_in
from gnn_encoder.data.document_folder import joined
from gnn_encoder.data.file_reader import FileReader, Unreadable, _unhyphenated, decoded, read
from gnn_encoder.data.validation import DataReport, Problems
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest


def settings_of(folder: Path, **changes: object) -> Ingest:
    values = {"dataset": str(folder), "format": "documents", "needs": "passages", "passage_words": 40}
    return Ingest(**{**values, **changes})


def ingested(folder: Path, **changes: object) -> tuple[DataReport, dict[str, tuple[str, str]]]:
    data, report = beir_folder.ingested(settings_of(folder, **changes), folder.parent / "out")
    passages = next(data.passages.stream())
    return report, dict(zip(passages.ids, zip(passages.titles, passages.texts, strict=True), strict=True))


def pdf_of(pages: list[str]) -> bytes:
    """A PDF with a line of text on each page."""
    kids = " ".join(f"{3 + 2 * i} 0 R" for i in range(len(pages)))
    parts = [b"<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>".encode()]
    font = "<</Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    for i, text in enumerate(pages):
        drawn = f"BT /F 12 Tf 50 700 Td ({text}) Tj ET".encode()
        parts.append(
            f"<</Type/Page/Parent 2 0 R/Resources{font}/MediaBox[0 0 600 800]/Contents {4 + 2 * i} 0 R>>".encode()
        )
        parts.append(b"<</Length %d>>stream\n%s\nendstream" % (len(drawn), drawn))
    out, starts = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        starts.append(len(out))
        out += b"%d 0 obj%s endobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % start for start in starts)
    end = b"xref\n0 %d\n0000000000 65535 f \n%strailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return out + end % (len(parts) + 1, table, len(parts) + 1, len(out))


def docx_of(paragraphs: list[tuple[str, str]]) -> bytes:
    """A DOCX file with paragraphs, each with the id of its style."""
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>'
        for style, text in paragraphs
    )
    space, kind = "http://schemas.openxmlformats.org", "application/vnd.openxmlformats"
    files = {
        "[Content_Types].xml": f'<Types xmlns="{space}/package/2006/content-types"><Default Extension="rels" '
        f'ContentType="{kind}-package.relationships+xml"/><Override PartName="/word/document.xml" '
        f'ContentType="{kind}-officedocument.wordprocessingml.document.main+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{space}/package/2006/relationships"><Relationship Id="r" '
        f'Type="{space}/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>',
        "word/document.xml": f'<w:document xmlns:w="{space}/wordprocessingml/2006/main"><w:body>{body}</w:body>'
        "</w:document>",
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, f'<?xml version="1.0" encoding="UTF-8"?>{text}')
    return file.getvalue()


def words(first: int, count: int) -> str:
    return " ".join(f"w{number}" for number in range(first, first + count)) + "."


def test_paragraphs_of_a_section_are_joined_and_never_across_its_border() -> None:
    sizes = {"A": [10, 10, 30, 5], "B": [3], "C": [90]}
    blocks, number = [], 0
    for heading, counts in sizes.items():
        blocks.append(Block(1, heading, 1))
        for count in counts:
            blocks.append(Block(0, words(number, count), 1, links=[f"{heading}{number}"]))
            number += count
    out = list(joined(blocks, 40))
    sections: dict[str, list[str]] = {}
    for block in out:
        if block.level:
            sections[block.text] = []
        else:
            sections[[*sections][-1]].append(block.text)
    # 10 + 10 + 30 is too much, and 5 words are too few for a passage of their own.
    assert [[words_in(text) for text in texts] for texts in sections.values()] == [[20, 35], [3], [40, 40, 10]]
    assert " ".join(text for texts in sections.values() for text in texts).split() == [
        word for block in blocks if not block.level for word in block.text.split()
    ]
    links = [link for block in out for link in block.links]
    assert links == [link for block in blocks for link in block.links]  # each once, also of a block that was cut
    overlapping = [block.text.split() for block in joined(blocks, 40, overlap=4) if not block.level]
    assert overlapping[1][:4] == overlapping[0][-4:] and overlapping[2][0] == "w55"
    sentence = "这是一个很长的句子没有空格。"
    unspaced = [block.text for block in joined([Block(0, sentence * 20, 1)], 40, overlap=5)]
    assert all(words_in(text) <= 45 for text in unspaced) and unspaced[1].startswith(unspaced[0][-10:])


def test_places_are_borders_too() -> None:
    blocks = [
        Block(0, "one.", 1, place="page=1"),
        Block(0, "two.", 2, place="page=2"),
        Block(0, "three.", 2, place="page=2"),
    ]
    assert [(block.text, block.place) for block in joined(blocks, 40)] == [
        ("one.", "page=1"), ("two.\n\nthree.", "page=2"),
    ]  # fmt: skip


def test_texts_pages_and_bad_files(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "guide.md").write_text(
        f"# Boats\n\n{words(0, 10)}\n\n{words(10, 10)}\n\n## Sails\n\nSee [notes](sub/notes.txt).\n"
    )
    (folder / "page.html").write_bytes("<meta charset=latin-1><h1>Größe</h1><p>Ein Maß.".encode("latin-1"))
    (folder / "sub" / "notes.txt").write_text("First thought.\n\n\nSecond thought.")
    (folder / "photo.png").write_bytes(b"\x89PNG")
    (folder / "binary.txt").write_bytes(bytes(range(256)))
    (folder / "bomb.docx").write_bytes(b"PK")
    report, passages = ingested(folder)
    assert passages == {
        "guide.md#boats:1": ("Boats", f"{words(0, 10)}\n\n{words(10, 10)}"),
        "guide.md#sails:1": ("Boats > Sails", "See notes."),
        "page.html#größe:1": ("Größe", "Ein Maß."),
        "sub/notes.txt:1": ("notes", "First thought.\n\nSecond thought."),
    }
    remarks = "\n".join(report.remarks)
    assert "binary.txt was not read: binary, not text" in remarks and "bomb.docx was not read: damaged" in remarks
    assert "files of other formats were not read: 1 .png" in remarks
    assert not report.problems and report.structure and report.structure.edges["external"] == 1
    for path in folder.glob("*.*"):
        if path.suffix in (".md", ".html"):
            path.unlink()
    (folder / "sub" / "notes.txt").unlink()
    with pytest.raises(UserError, match=r"unreadable file \(binary.txt: binary, not text"):
        ingested(folder)


def test_a_pdf_has_a_link_to_each_page(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "annual_report.pdf").write_bytes(pdf_of(["The first page.", "", "The third page."]))
    (folder / "scan.pdf").write_bytes(pdf_of([""]))
    (folder / "cut.pdf").write_bytes(pdf_of(["The first page."])[:60])
    report, passages = ingested(folder)
    assert passages == {
        "annual_report.pdf#page=1:1": ("annual report", "The first page."),
        "annual_report.pdf#page=3:1": ("annual report", "The third page."),
    }
    assert [remark.partition(":")[0] for remark in report.remarks if "not read" in remark] == [
        "cut.pdf was not read", "scan.pdf was not read",
    ]  # fmt: skip


def test_office_files_have_the_sections_that_markitdown_finds(tmp_path: Path) -> None:
    markitdown = pytest.importorskip("markitdown")
    file = tmp_path / "memo.docx"
    file.write_bytes(
        docx_of([("Heading1", "Rules"), ("Normal", "Be on time."), ("Heading2", "Late"), ("Normal", "Call.")])
    )
    assert [(block.level, block.text) for block in read(file).blocks] == [
        (1, "Rules"),
        (0, "Be on time."),
        (2, "Late"),
        (0, "Call."),
    ]
    whole = markitdown.MarkItDown().convert(file).markdown
    assert whole.split() == ["#", "Rules", "Be", "on", "time.", "##", "Late", "Call."]
    pptx = pytest.importorskip("pptx")
    slides = pptx.Presentation()
    for title in ("Alpha", "Beta", ""):
        slide = slides.slides.add_slide(slides.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, f"About {title or 'nothing'}."
    slides.save(tmp_path / "talk.pptx")
    (tmp_path / "docs").mkdir()
    (tmp_path / "talk.pptx").rename(tmp_path / "docs" / "talk.pptx")
    _, passages = ingested(tmp_path / "docs")
    assert passages == {
        "talk.pptx#slide=1:1": ("Alpha", "About Alpha."), "talk.pptx#slide=2:1": ("Beta", "About Beta."),
        "talk.pptx#slide=3:1": ("talk", "About nothing."),
    }  # fmt: skip


def test_a_file_that_hangs_or_kills_its_reader_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child is this project's, with a parser that hangs for one file and ends the process for another."""
    child = tmp_path / "sitecustomize.py"
    child.write_text(
        "import os, sys, time\n"
        "from gnn_encoder.data import file_reader\n"
        "def paragraphs(text, place=''):\n"
        "    if 'hang' in text: time.sleep(60)\n"
        "    if 'die' in text: os._exit(9)\n"
        "    if 'grow' in text: bytearray(4 << 30)\n"
        "    yield file_reader.Block(0, text, 1)\n"
        "file_reader._paragraphs = paragraphs\n"
        "if '-m' in sys.orig_argv: file_reader.main(); os._exit(0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    for name in ("die", "grow", "hang", "well"):
        (tmp_path / f"{name}.txt").write_text(name)
    reader, said = FileReader(5), {}
    try:
        for name in ("die", "grow", "well", "hang", "well"):
            try:
                (block,) = reader.content(tmp_path / f"{name}.txt").blocks
                said[name] = block.text
            except Unreadable as error:
                said[name] = str(error)
    finally:
        reader.close()
    assert said == {
        "die": "its reader ended (out of memory?)", "grow": "needs more than 1.5 GiB of memory",
        "hang": "took more than 5 s", "well": "well",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("data", "text", "guessed"),
    [
        ("schön".encode(), "schön", False),
        ("schön".encode("utf-8-sig"), "schön", False),
        ("schön".encode("utf-16"), "schön", False),
        ("schön".encode("cp1252"), "schön", True),
        (b"<meta charset=iso-8859-7>" + "καλό".encode("iso-8859-7"), "<meta charset=iso-8859-7>καλό", False),
        (b"<meta charset=undefined>\xe9", "<meta charset=undefined>é", True),
        (
            '<?xml version="1.0" encoding="cp1251"?>да'.encode("cp1251"),
            '<?xml version="1.0" encoding="cp1251"?>да',
            False,
        ),
        ("encoding=cp1251 is no é".encode("cp1252"), "encoding=cp1251 is no é", True),
    ],
)
def test_a_text_is_decoded(data: bytes, text: str, guessed: bool) -> None:
    assert decoded(data) == (text, guessed)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_that_is_no_text_is_named_with_its_line(mark: bytes) -> None:
    with pytest.raises(Unreadable, match=r"byte 0x81 in line 2 is not UTF-8, and the file is not Windows-1252 either"):
        decoded(mark + "schön\n".encode() + b"bad \x81 byte\n")
    with pytest.raises(Unreadable, match=r"byte 0x81 in line 1 is not UTF-16"):
        decoded(b"\xff\xfea\x00\x81")


def test_guessed_encodings_and_files_without_a_passage_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "good.md").write_text("# Boats\n\nOne mast.")
    for number in range(4):
        (folder / f"p{number}.txt").write_bytes("привет".encode("cp1251"))
    (folder / "empty.txt").touch()
    (folder / "headings.md").write_text("# Only\n\n## headings\n\n&#8203;\n")
    (folder / "東.txt").write_bytes("東京は日本の首都です。".encode("shift-jis"))
    report, passages = ingested(folder)
    assert len(passages) == 5
    assert report.remarks == [
        "東.txt was not read: byte 0x93 in line 1 is not UTF-8, and the file is not Windows-1252 either: mend or "
        "convert it",
        "4 files are not UTF-8 and were read as Windows-1252: p0.txt, p1.txt, p2.txt, …: convert them to UTF-8 if they "
        "are in another encoding",
        "2 files have no text for a passage: empty.txt, headings.md",
        *(remark for remark in report.remarks if "different texts" in remark),
    ]


def test_only_the_labels_of_the_folder_itself_are_no_documents(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    for name in ("candidates", "qrels", "jobs/candidates", "jobs/node_modules", "elsewhere"):
        (folder / name).mkdir(parents=True)
        (folder / name / "page.md").write_text(f"About {name}.")
    for more in (b"more", b"odd\xe9"):
        (folder / "jobs" / os.fsdecode(more)).symlink_to(folder / "elsewhere")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tcandidates/page.md:1\t1\n")
    (folder / "candidates" / "photo.png").touch()
    for name in ("documents", "markup"):
        source = open_source(settings_of(folder, format=name))
        (rows,) = source.passages(Problems())
        assert rows.ids == ["candidates/page.md:1", "elsewhere/page.md:1", "jobs/candidates/page.md:1"]
        assert source.remarks == [
            "'qrels/page.md' was not read: splits are train, dev and test",
            "3 folders of packages or behind a symbolic link were not read: "
            r"jobs/more, jobs/node_modules, jobs/odd\udce9",
            *["files of other formats were not read: 1 .png"] * (name == "documents"),
        ]
    (folder / "candidates" / "test.tsv.gz").touch()
    (rows,) = open_source(settings_of(folder)).passages(Problems())
    assert "candidates/page.md:1" not in rows.ids


def test_line_ends_of_a_printed_page() -> None:
    page = "今日は\r\n天気です。\r\n明日も use\r\nPython\r\n使う，好\n the hy-\r\nphen"
    assert _unhyphenated(page) == "今日は天気です。明日も use Python 使う，好 the hyphen"


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_reader, "LARGEST_TEXT", 10)
    monkeypatch.setattr(file_reader, "UNPACKED", 10)
    (tmp_path / "long.md").write_text("x" * 11)
    with pytest.raises(Unreadable, match=r"11 bytes; a .md file has at most 10"):
        read(tmp_path / "long.md")
    pytest.importorskip("markitdown")
    (tmp_path / "bomb.docx").write_bytes(docx_of([]))
    with pytest.raises(Unreadable, match="unpacks to"):
        list(read(tmp_path / "bomb.docx").blocks)


def test_a_file_with_a_name_that_is_no_text_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "good.md").write_text("# Boats\n\nOne mast.")
    for name in (b"caf\xe9.md", b"a.\xe9t\xe9", "no\u00a0break.md".encode()):
        (folder / os.fsdecode(name)).write_text("text")
    report, passages = ingested(folder)
    assert [*passages] == ["good.md#boats:1"]
    assert report.remarks == [
        r"'caf\udce9.md' was not read: rename it without control characters and in UTF-8",
        r"'no\xa0break.md' was not read: rename it without control characters and in UTF-8",
        r"files of other formats were not read: 1 .\udce9t\udce9",
    ]
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "how many masts"}')
    assert not any(".jsonl" in remark for remark in open_source(settings_of(folder)).remarks), "it is read"


def test_a_file_that_may_not_be_read_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read all files, so one that is gone after it was listed stands for one without permission."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in ("a.md", "b.md"):
        (folder / name).write_text(f"# {name}\n\nText.")
    source = open_source(settings_of(folder))
    (folder / "b.md").unlink()
    assert len(source.digest()) == 64
    (rows,) = source.passages(Problems())
    assert rows.ids == ["a.md#amd:1"] and source.remarks == ["b.md was not read: No such file or directory"]
