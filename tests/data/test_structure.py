"""The documents of BEIR folders and of Python's documentation: what is read, refused, counted and cut."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from beir_folder import check, ingested, lines, write_beir
from command_line import call

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.structure import Structure
from gnn_encoder.data import canonicalize
from gnn_encoder.data import lines as lines_module
from gnn_encoder.data import places as structure_places
from gnn_encoder.data.beir import Beir
from gnn_encoder.data.corpus import Corpus
from gnn_encoder.data.documents import Documents
from gnn_encoder.data.places import Places
from gnn_encoder.data.python_docs import PythonDocs
from gnn_encoder.data.rows import PLACES
from gnn_encoder.data.validation import DataReport, Kind, Problems
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest

ROWS: list[dict[str, Any]] = [
    {"_id": "d0", "text": "heading", "doc_id": "A", "order": 0, "parent": None, "citations": []},
    {"_id": "d1", "text": "first", "doc_id": "A", "order": 2, "parent": "s1", "citations": ["d3", "d0", "d1", "d3"]},
    {"_id": "d2", "text": "second", "doc_id": "A", "order": 3, "parent": "s1"},
    {"_id": "d3", "text": "other", "doc_id": "B", "order": 7, "section": ["1", "1.1"], "section_titles": ["One"]},
    {"_id": "d4", "text": "more", "doc_id": "B", "order": 5, "section": ["1"], "section_titles": ["One"]},
    {"_id": "d5", "text": "alone"},
]
NODES: list[dict[str, Any]] = [
    {"_id": "d0", "title": "", "doc_id": "A", "order": 0, "parent": None},
    {"_id": "s1", "title": "Part", "doc_id": "A", "order": 1, "parent": "d0", "citations": ["d2"], "empty": True},
]


def write(folder: Path, rows: list[Any] = ROWS, nodes: list[Any] | None = NODES) -> Path:
    write_beir(folder, corpus=lines(rows))
    if nodes is not None:
        (folder / "nodes.jsonl").write_text(lines(nodes), encoding="utf-8")
    return folder


def ingest(folder: Path, out: Path, **settings: Any) -> tuple[Structure | None, DataReport]:
    data, report = ingested(Ingest(dataset=str(folder), **settings), out)
    return data.structure, report


def node_ids(structure: Structure) -> list[str]:
    return structure._column("nodes.parquet", "node_id").to_pylist()


def named(structure: Structure) -> dict[str, tuple[str, str | None, int]]:
    """Node → its document, parent and place."""
    ids, documents = node_ids(structure), structure.document_ids.to_pylist()
    rows = zip(ids, structure.document.tolist(), structure.parent.tolist(), structure.place.tolist(), strict=True)
    return {node: (documents[d], ids[up] if up >= 0 else None, order) for node, d, up, order in rows}


def citations(structure: Structure) -> set[tuple[str, str]]:
    ids = node_ids(structure)
    return {(ids[s], ids[t]) for s, t in zip(*structure.citations, strict=True)}


def test_a_corpus_without_documents_has_no_structure_and_no_files(tmp_path: Path) -> None:
    rows = [{key: row[key] for key in ("_id", "text")} | {"order": "x", "parent": 1.5} for row in ROWS]
    structure, report = ingest(write(tmp_path / "d", rows), tmp_path / "out")
    assert structure is None and report.structure is None and "documents" not in report.metrics()
    assert {path.name for path in (tmp_path / "out").glob("*.parquet")} == {
        "corpus.parquet", "queries.parquet", "qrels.parquet",
    }  # fmt: skip
    assert "nodes.jsonl was not read: no passage has a doc_id" in report.remarks


def test_a_doc_id_inside_another_field_is_not_the_rows_own(tmp_path: Path) -> None:
    rows = [{"_id": row["_id"], "text": row["text"], "metadata": {"doc_id": "A"}} for row in ROWS]
    structure, report = ingest(write(tmp_path / "d", rows, None), tmp_path / "out", document_depth=1)
    assert structure is None and report.structure is None
    assert "document_depth: 1 cut nothing, because the data have no documents" in report.remarks
    others = [{"section": "Intro"}, {"parent": 1.5, "order": "x"}, {"citations": 3}]
    rows = [row | other for row, other in zip(rows, others * 2, strict=True)]
    structure, _ = ingest(write(tmp_path / "e", rows, None), tmp_path / "out2")
    assert structure is None


OTHERS = {
    "section": ["Intro", "Results", "Intro"],
    "section_titles": ["x", "y", 3],
    "parent": [1.5, {"id": "d0"}, True],
    "order": ["1", 2.0, "x"],
    "citations": [12, 0, "d1"],
    "doc_id": [1.0, ["A"], {"id": "A"}],
}
"""Values of fields in other people's data, of types that none of our structure has."""


@pytest.mark.parametrize("block", [1, 200, 1 << 20])
@pytest.mark.parametrize("field", OTHERS)
def test_fields_of_other_types_are_other_data_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, block: int
) -> None:
    monkeypatch.setattr("gnn_encoder.data.lines.BLOCK_BYTES", block)
    plain = [{"_id": f"d{i}", "text": f"text {i}", "doc_id": "AB"[i % 2]} for i in range(6)]
    rows: list[dict[str, Any]] = [dict(plain_row) for plain_row in plain]
    for row, value in zip(rows[1:], [*OTHERS[field], None], strict=False):
        row[field] = value
    if field == "doc_id":
        rows = [{**row, "doc_id": OTHERS[field][i % 3]} for i, row in enumerate(rows)]
    structure, report = ingest(write(tmp_path / "d", rows, None), tmp_path / "out")
    assert not report.problems and report.passages == 6
    (remark,) = (line for line in report.remarks if "corpus.jsonl" in line)
    assert remark.startswith(f'"{field}" ') and f"(line {1 if field == 'doc_id' else 2} on)" in remark
    if field == "doc_id":
        assert structure is None
    else:
        expected, _ = ingest(write(tmp_path / "e", plain, None), tmp_path / "plain")
        assert structure and expected and named(structure) == named(expected)


@pytest.mark.parametrize("right_first", [False, True])
def test_a_field_of_both_types_is_a_mistake(tmp_path: Path, right_first: bool) -> None:
    rows = [row(_id="e0", order="1"), row(_id="e1", order=1)]
    folder = write(tmp_path / "d", [*ROWS, *(rows[::-1] if right_first else rows)], NODES)
    (problem,) = check(Ingest(dataset=str(folder))).problems
    line = 8 if right_first else 7
    assert problem.places == [f'corpus.jsonl line {line}: "order" is not an integer']


@pytest.mark.parametrize("as_objects", [False, True])
@pytest.mark.usefixtures("way")
def test_columns_and_sections_become_trees(tmp_path: Path, as_objects: bool) -> None:
    rows = json.loads(json.dumps(ROWS))
    if as_objects:
        for row in rows:
            row["citations"] = [{"target": t, "type": "x"} for t in row.get("citations", [])]
        rows[0]["citations"] = [{"target": None}, {"text": "a law"}]
    structure, report = ingest(write(tmp_path / "d", rows), tmp_path / "out")
    assert structure is not None and not report.problems and len(structure) == 9 and structure.passages == 6
    assert named(structure) == {
        "d0": ("A", None, 0), "s1": ("A", "d0", 1), "d1": ("A", "s1", 2), "d2": ("A", "s1", 3),
        "B > 1": ("B", None, 0), "d4": ("B", "B > 1", 1), "B > 1 > 1.1": ("B", "B > 1", 2),
        "d3": ("B", "B > 1 > 1.1", 3), "d5": ("d5", None, 0),
    }  # fmt: skip
    assert structure.titles.to_pylist() == [*[""] * 6, "Part", "1.1", "One"]
    assert citations(structure) == {("d1", "d3"), ("d1", "d0"), ("s1", "d2")}
    counts = report.structure
    assert counts is not None and counts.outside_citations == (2 if as_objects else 0)
    assert counts.edges == {
        "order": 3, "structural": 6, "internal": 2, "external": 1,
        "order_inverse": 3, "structural_inverse": 6, "internal_inverse": 2, "external_inverse": 1,
    }  # fmt: skip
    assert (counts.documents, counts.nodes, counts.sections_without_text) == (3, 9, 3)
    assert (counts.unlinked_passages, counts.tree_depth) == (1, 3)
    assert Dataset(tmp_path / "out").manifest.rows.items() >= {"nodes": 9, "documents": 3, "citations": 3}.items()


def row(**changes: Any) -> dict[str, Any]:
    return {"_id": "d9", "text": "t", "doc_id": "A", **changes}


BAD = {
    "dangling parent": (row(parent="zz"), Kind.DANGLING_PARENT, "'zz'"),
    "foreign parent": (row(parent="d3"), Kind.FOREIGN_PARENT, "'d3' is in 'B'"),
    "own parent": (row(parent="d9"), Kind.PARENT_CYCLE, "'d9'"),
    "unknown citation": (row(citations=["d1", "zz"]), Kind.UNKNOWN_CITATION, "'zz'"),
    "order of text": (row(order="3"), Kind.BAD_ROW, '"order" is not an integer'),
    "large order": (row(order=10**30), Kind.BAD_ROW, '"order" is not an integer'),
    "parent that is a list": (row(parent=["d1"]), Kind.BAD_ROW, '"parent" is not a text'),
    "document that is true": (row(doc_id=True), Kind.BAD_ROW, '"doc_id" is not a text'),
    "section that is a text": (row(section="1"), Kind.BAD_ROW, '"section" is not a list of texts'),
    "section with null": (row(section=["1", None]), Kind.BAD_ROW, '"section" is not a list of texts'),
    "titles of numbers": (row(section_titles=[1]), Kind.BAD_ROW, '"section_titles" is not a list of texts'),
    "citations that are a text": (row(citations="d1"), Kind.BAD_ROW, '"citations" is not a list'),
    "citation that is a list": (row(citations=[["d1"]]), Kind.BAD_ROW, '"citations" holds something other than ids'),
    "reserved character": (row(section=["a\x1fb"]), Kind.BAD_ROW, '"doc_id" or "section" has the character U+001F'),
    "half a surrogate pair": (row(section=["\ud800"]), Kind.ENCODING, "half a surrogate pair, U+D800"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("file", ["corpus.jsonl", "nodes.jsonl"])
def test_bad_structure_is_refused_with_file_and_row(tmp_path: Path, case: str, file: str) -> None:
    bad, kind, detail = BAD[case]
    rows, nodes = ([*ROWS, bad], NODES) if file == "corpus.jsonl" else (ROWS, [*NODES, bad])
    folder = write(tmp_path / "d", rows, nodes)
    (problem,) = check(Ingest(dataset=str(folder))).problems
    assert (problem.kind, problem.count) == (kind, 1)
    assert problem.places == [f"{file} line {7 if file == 'corpus.jsonl' else 3}: {detail}"]
    with pytest.raises(UserError, match=f"{file} line"):
        ingest(folder, tmp_path / "refused")
    structure, report = ingest(folder, tmp_path / "dropped", on_bad_rows="drop")
    assert structure is not None and report.metrics()[f"dropped_{kind.name.lower()}"] == 1
    row_dropped = kind in (Kind.BAD_ROW, Kind.ENCODING)
    assert ("d9" in node_ids(structure)) is not row_dropped  # else only the parent or the citation goes
    if not row_dropped:
        assert named(structure)["d9"][1] is None
        assert {pair for pair in citations(structure) if pair[0] == "d9"} <= {("d9", "d1")}


@pytest.mark.parametrize("with_plain", [False, True])
def test_rows_that_are_told_as_left_out_are_left_out_of_a_block_without_a_document(
    with_plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second block has bad rows alone, or such and one without a document."""
    bad = [row(_id="bad", order="first", more="x"), row(_id="worse", doc_id=True, more="x")]
    plain = {"_id": "plain", "text": "a plain text", "order": 3.5, "more": "y", "metadata": {"doc_id": "A"}}
    second = [*bad, plain] if with_plain else bad
    folder = write(tmp_path / "d", [*ROWS, *second])
    monkeypatch.setattr(lines_module, "BLOCK_BYTES", len(lines(ROWS).encode()))
    blocks = [len(block.numbers) for block in lines_module.read_blocks(folder / "corpus.jsonl", Problems())]
    assert blocks == [len(ROWS), len(second)], "control"
    (problem,) = check(Ingest(dataset=str(folder))).problems
    assert (problem.kind, problem.count) == (Kind.BAD_ROW, 2)
    structure, _ = ingest(folder, tmp_path / "out", on_bad_rows="drop")
    kept = [passage["_id"] for passage in ROWS] + ["plain"] * with_plain
    assert Dataset(tmp_path / "out").passages.ids().to_pylist() == kept
    assert structure is not None and not {"bad", "worse"} & set(node_ids(structure))


def test_a_cycle_is_refused_at_each_of_its_nodes_and_not_below_them(tmp_path: Path) -> None:
    rows = [*ROWS, row(_id="c1", parent="c3"), row(_id="c2", parent="c1"), row(_id="c3", parent="c2")]
    rows.append(row(_id="below", parent="c1"))
    folder = write(tmp_path / "d", rows)
    (problem,) = check(Ingest(dataset=str(folder))).problems
    assert (problem.kind, problem.count) == (Kind.PARENT_CYCLE, 3)
    assert problem.places == [f"corpus.jsonl line {line}: 'c{line - 6}'" for line in (7, 8, 9)]
    structure, _ = ingest(folder, tmp_path / "out", on_bad_rows="drop")
    assert structure is not None and named(structure)["below"][1] == "c1" and named(structure)["c1"][1] is None


def test_a_section_that_comes_twice_is_refused(tmp_path: Path) -> None:
    (problem,) = check(Ingest(dataset=str(write(tmp_path / "d", nodes=[*NODES, NODES[1]])))).problems
    assert (problem.kind, problem.places) == (Kind.DUPLICATE_SECTION, ["nodes.jsonl line 3: 's1'"])


def test_rows_that_are_left_out_do_not_shift_the_places_of_others(tmp_path: Path) -> None:
    rows = [row(_id="e", text=" "), ROWS[0], ROWS[0] | {"doc_id": "Z"}, *ROWS[1:]]
    structure, _ = ingest(write(tmp_path / "d", rows), tmp_path / "out", on_bad_rows="drop")
    plain, _ = ingest(write(tmp_path / "e"), tmp_path / "plain")
    assert structure and plain and named(structure) == named(plain) and citations(structure) == citations(plain)


def test_numbers_are_ids_and_gzip_is_read_and_changes_the_digest(tmp_path: Path) -> None:
    rows = [*ROWS, row(_id=9, doc_id=4, parent=None), row(_id="d8", doc_id="4", parent=9, citations=[9])]
    folder = write(tmp_path / "d", rows, None)
    before = Beir(folder).digest()
    (folder / "nodes.jsonl.gz").write_bytes(gzip.compress(lines(NODES).encode()))
    assert Beir(folder).digest() != before
    structure, _ = ingest(folder, tmp_path / "out")
    assert structure is not None and named(structure)["d8"] == ("4", "9", 1) and ("d8", "9") in citations(structure)


def test_without_order_the_rows_are_in_order_and_empty_sections_come_last(tmp_path: Path) -> None:
    rows = [row(_id=f"d{i}", text=f"text {i}", parent=f"s{i // 2}", order=9 - i if i else None) for i in range(6)]
    nodes = [{"_id": f"s{i}", "doc_id": "A", "order": 0} for i in (3, 2, 1, 0)]
    structure, _ = ingest(write(tmp_path / "d", rows, nodes), tmp_path / "out")
    assert structure is not None
    order = sorted(named(structure).items(), key=lambda item: item[1][2])
    assert [node for node, _ in order] == ["s0", "d0", "d1", "s1", "d2", "d3", "s2", "d4", "d5", "s3"]


@pytest.mark.parametrize(
    ("depth", "documents"),
    [
        (1, {"A > d0": "d0 s1 d1 d2", "B > 1": "d3 d4 p1 p2", "d5": "d5"}),
        (2, {"A > d0": "d0", "A > s1": "s1 d1 d2", "B > 1": "d4 p1", "B > 1 > 1.1": "d3 p2", "d5": "d5"}),
        (9, {"A > d0": "d0", "A > s1": "s1 d1 d2", "B > 1": "d4 p1", "B > 1 > 1.1": "d3 p2", "d5": "d5"}),
    ],
)
def test_documents_are_cut_at_a_depth(tmp_path: Path, depth: int, documents: dict[str, str]) -> None:
    structure, report = ingest(write(tmp_path / "d"), tmp_path / "out", document_depth=depth)
    assert structure is not None and report.structure is not None
    short = {"B > 1": "p1", "B > 1 > 1.1": "p2"}
    documents_of: dict[str, set[str]] = {}
    for node, (document, parent, _) in named(structure).items():
        documents_of.setdefault(document, set()).add(short.get(node, node))
        assert parent is None or named(structure)[parent][0] == document
    assert documents_of == {document: set(nodes.split()) for document, nodes in documents.items()}
    for document in range(len(documents)):
        assert sorted(structure.place[structure.document == document]) == list(
            range((structure.document == document).sum())
        )
    assert (report.structure.documents, report.structure.documents_before_cut) == (len(documents), 3)
    assert report.metrics()["documents"] == len(documents)


def test_ids_made_of_paths_are_no_other_nodes_ids(tmp_path: Path) -> None:
    rows = [
        row(_id="A > 1"), row(_id="b", section=["1"]), row(_id="c", section=["x > y"]),
        row(_id="d", section=["x", "y"]), row(_id="e", parent="1"), row(_id="f", parent="A > 1"),
    ]  # fmt: skip
    structure, _ = ingest(write(tmp_path / "d", [*ROWS, *rows], [{"_id": "1", "doc_id": "A"}]), tmp_path / "out",
                          on_bad_rows="drop")  # fmt: skip
    assert structure is not None
    ids = node_ids(structure)
    assert len(set(ids)) == len(ids) and named(structure)["f"][1] == "A > 1" and named(structure)["b"][1] == "A > 1~"
    assert named(structure)["c"][1] != named(structure)["d"][1]
    cut, _ = ingest(tmp_path / "d", tmp_path / "cut", on_bad_rows="drop", document_depth=1)
    assert cut is not None
    documents = cut.document_ids.to_pylist()
    assert len(set(documents)) == len(documents) and len({named(cut)[node][0] for node in "bef"}) == 3


def test_documents_of_pythons_documentation_are_cut_at_dotted_names(tmp_path: Path) -> None:
    (tmp_path / "pkg.py").write_text('class C:\n    """A class to test.\n\n    A body of more than five words."""\n')
    report = canonicalize(PythonDocs((), 0, 0, tmp_path), Ingest(document_depth=2))
    assert report.structure is not None and report.structure.documents == 2
    documents = Documents(source := PythonDocs((), 0, 0, tmp_path), Corpus(source, Problems(), None), 2, Problems())
    assert documents.document_ids.to_pylist() == ["pkg", "pkg.C"]


def test_many_bad_citations_and_parents_are_counted_quickly(tmp_path: Path) -> None:
    rows = [row(_id=f"e{i}", parent=f"x{i}", citations=[f"y{i}"] * 10) for i in range(30_000)]
    settings = Ingest(dataset=str(write(tmp_path / "d", [*ROWS, *rows])))
    described = []
    origin = Documents._origin
    Documents._origin = lambda self, node: described.append(node) or origin(self, node)  # type: ignore[method-assign]
    try:
        problems = check(settings).problems
    finally:
        Documents._origin = origin  # type: ignore[method-assign]
    assert [(p.kind, p.count) for p in problems] == [(Kind.DANGLING_PARENT, 30_000), (Kind.UNKNOWN_CITATION, 300_000)]
    assert problems[1].places == ["corpus.jsonl line 7: 'y0'"] * 3 and len(described) == 6


def test_the_size_of_blocks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def columns(size: int) -> tuple[list[Any], int]:
        monkeypatch.setattr(structure_places, "BLOCK", size)
        collected = Places()
        for i in range(7):  # the rows of every third block have no places
            ids = pa.array([f"{i}a", f"{i}b"], structure_places.TEXT)
            record = {"document": f"d{i // 2}", "section": ["s", str(i % 2)], "citations": ["0a", None]}
            rows = [dict.fromkeys(PLACES.names) | record, dict.fromkeys(PLACES.names)]
            collected.add(ids, None if i % 3 == 2 else pa.Table.from_pylist(rows, schema=PLACES))
        parts = vars(collected.columns())
        blocks = parts["outside"], parts["documents"].to_pylist(), parts["paths"].to_pylist()
        return [*blocks, *(parts[n].tolist() for n in ("document", "path", "citing"))], parts["order"].null_count

    assert columns(1) == columns(5) == columns(100)
    assert columns(1)[0][0] == 5 and columns(1)[1] == 14


def test_names_in_pythons_documentation_are_sections(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    body = "This body has more than five words in it"
    (tmp_path / "pkg" / "mod.py").write_text(
        f'class C:\n    """A class to test.\n\n    {body}."""\n'
        f'    def f(self):\n        """A method to test.\n\n        {body}."""\n'
        '    def g(self):\n        """Another method to test.\n\n        Its body is another one than the two."""\n'
    )
    source = PythonDocs((), 0, 0, tmp_path)
    problems = Problems()
    (rows,) = source.passages(problems)
    assert rows.titles == ["pkg.mod.C", "pkg.mod.C.g"]  # the passage of C.f is that of C, whose place counts
    assert rows.places is not None and rows.places.schema == PLACES
    assert rows.places["document"].to_pylist() == ["pkg", "pkg"]
    assert rows.places["parent"].to_pylist() == ["pkg.mod.C", "pkg.mod.C.g"]
    (sections,) = source.sections(problems)
    assert sections.ids.to_pylist() == ["pkg", "pkg.mod", "pkg.mod.C", "pkg.mod.C.g"]
    assert sections.titles.to_pylist() == ["pkg", "mod", "C", "g"]
    assert isinstance(rows.places, pa.Table)
    report = canonicalize(source, Ingest())
    assert report.structure is not None and report.structure.sections_without_text == 4
    assert report.structure.tree_depth == 5 and report.structure.edges["structural"] == 5


def test_data_check_prints_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("data", "check", str(write(tmp_path / "d")), "--document-depth", "1")
    printed = capsys.readouterr().out
    for line in (
        "documents  3; 3 levels of sections and passages",
        "nodes      9, 3 of them sections without text",
        "edges      order 3, structural 6, internal 2, external 1; as many inverse ones",
        "unlinked   1 passages without an edge other than order",
    ):
        assert line in printed.splitlines()
    assert "isolated" in printed and "queries    none" not in printed, "the control"


def test_data_check_of_documents_counts_no_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("five words are a passage")
    call("data", "check", str(tmp_path), "--format", "documents")
    printed = capsys.readouterr().out
    assert {"passages   1", "queries    none", "words      5.0 a passage"} <= {*printed.splitlines()}
    assert not any(f"\n{name}" in printed for name in ("train", "dev", "test", "recurring", "isolated", "forecast"))


def test_data_check_names_the_rows_of_bad_structure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [row(_id="c1", parent="c2"), row(_id="c2", parent="c1"), row(_id="e", parent="zz", citations=["yy"])]
    call("data", "check", str(write(tmp_path / "d", [*ROWS, *bad])))
    printed = capsys.readouterr()
    assert "has 3 kinds of problem" in printed.err
    for line in (
        "1 × parent that is no node (corpus.jsonl line 9: 'zz')",
        "2 × node that is part of itself (corpus.jsonl line 7: 'c1', corpus.jsonl line 8: 'c2')",
        "1 × citation of an unknown id (corpus.jsonl line 9: 'yy')",
    ):
        assert line in printed.out
