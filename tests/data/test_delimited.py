"""DPR's and BEIR's files are read as `csv.reader` reads them, MS MARCO's as lines of fields; headers name columns.

What may be read in two ways is refused with file and line.
"""

import csv
import io
from pathlib import Path

import pytest
from beir_folder import check, write_beir
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.data import lines, open_source
from gnn_encoder.data.delimited import quoted_rows
from gnn_encoder.data.rows import Label, Query
from gnn_encoder.data.validation import Kind, Problems
from gnn_encoder.settings.foundation import Ingest

FIELDS = st.text('"\t\n é a', max_size=8)


def rows_of(path: Path, width: int, problems: Problems, block: int) -> list[tuple[int, list[str]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        parts = list(quoted_rows(path, range(width, width + 1), problems, "file"))
    return [
        (line, list(fields))
        for part in parts
        for line, *fields in zip(part.lines, *(column.to_pylist() for column in part.columns), strict=True)
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(FIELDS, FIELDS, FIELDS), max_size=6), st.sampled_from([1, 5, 40, 1 << 20]))
def test_what_csv_writes_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list, block: int) -> None:
    """Except a row in which each line has all columns, which lines of MS MARCO's kind would have as well."""
    path, out = tmp_path_factory.mktemp("csv") / "file.tsv", io.StringIO()
    csv.writer(out, delimiter="\t", lineterminator="\n").writerows(rows)
    path.write_text(out.getvalue(), encoding="utf-8")
    problems, expected, line = Problems(), [], 1
    for row in rows:
        part = io.StringIO()
        csv.writer(part, delimiter="\t", lineterminator="\n").writerow(row)
        written = part.getvalue()[:-1].split("\n")
        if len(written) == 1 or any(fields.count("\t") != 2 for fields in written):
            expected.append((line, list(row)))
        line += len(written)
    assert rows_of(path, 3, problems, block) == expected
    assert problems.count(Kind.BAD_ROW) == len(rows) - len(expected)


@settings(max_examples=300, deadline=None)
@given(st.text('""\t\n a', max_size=40), st.sampled_from([1, 7, 1 << 20]))
def test_any_text_is_read_as_csv_reads_it_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int
) -> None:
    path, problems = tmp_path_factory.mktemp("csv") / "file.tsv", Problems()
    path.write_text(text, encoding="utf-8")
    rows_read = [fields for _, fields in rows_of(path, 2, problems, block)]
    read = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter="\t") if len(row) == 2]
    assert rows_read == read or problems.all()
    assert all(fields in read for fields in rows_read)


@pytest.mark.parametrize("block", [1, 30, 1 << 20])
def test_lines_of_quoted_rows_and_what_is_refused(tmp_path: Path, block: int) -> None:
    text = (
        'one\t"two\nlines"\r\n\n'  # lines 1 to 2, and a blank line
        'three\t"a ""b"" c"\n'  # 4
        'four\t5" wide\n'  # 5: a quote within a field is text
        'six\t"x" and more\n'  # 6: on one line, as csv.reader reads it
        'seven\t"open\neight\tclosed"\n'  # 7: two rows of lines, or one of CSV
        'nine\t"open\nten\ttext"more\n'  # 9: what follows the quote says that it was text
        "ele\rven\tx\n"  # 11
        "twelve\n"  # 12
        'last\t"never closed\n'  # 13
    )
    path, problems = tmp_path / "file.tsv", Problems()
    path.write_bytes(text.encode() + b"caf\xe9\t\n")
    assert rows_of(path, 2, problems, block) == [
        (1, ["one", "two\nlines"]), (4, ["three", 'a "b" c']), (5, ["four", '5" wide']), (6, ["six", "x and more"]),
    ]  # fmt: skip
    places = {problem.kind: problem.places for problem in problems.all()}
    assert places[Kind.BAD_ROW] == [
        "file line 7: a field begins with a quote that is closed in line 8: double it if it is text",
        "file line 9: a field begins with a quote that is closed in line 10: double it if it is text",
        "file line 11: a carriage return within the line",
    ]
    assert problems.count(Kind.BAD_ROW) == 4
    assert places[Kind.UNREADABLE] == [
        "file line 13: a field begins with a quote that nothing closes: close or double it"
    ]
    path.write_bytes(b'a\t"b\nc \xe9"\nd\te\n')
    problems = Problems()
    assert rows_of(path, 2, problems, block) == [(3, ["d", "e"])]
    assert problems.all()[0].places == ["file line 2: byte 0xe9 at 3"]


def write_dpr(folder: Path, passages: str, answers: str = "") -> Path:
    folder.mkdir()
    (folder / "psgs_w100.tsv").write_text(passages, encoding="utf-8")
    (folder / "nq-train.qa.csv").write_text(answers, encoding="utf-8")
    return folder


def passages_of(folder: Path) -> tuple[list[tuple[str, str, str]], dict[Kind, list[str]]]:
    """(id, title, text) of the passages, and the places of the problems."""
    problems, passages = Problems(), []
    for rows in open_source(Ingest(dataset=str(folder))).passages(problems):
        columns = [c if isinstance(c, list) else c.to_pylist() for c in (rows.ids, rows.titles, rows.texts)]
        passages += zip(*columns, strict=True)
    return passages, {problem.kind: problem.places for problem in problems.all()}


@pytest.mark.parametrize(
    "header", ["id\ttext\ttitle", "id\ttitle\ttext", "Title\tpassage\tPsg-ID", "title\tn\tid\ttext"]
)
def test_the_header_of_a_dpr_file_names_its_columns(tmp_path: Path, header: str) -> None:
    text = ""
    for i in ("1", "2"):  # two files in one, each with its header
        values = {"id": i, "psg-id": i, "text": f"text {i}", "passage": f"text {i}", "title": f"title {i}", "n": "0"}
        text += header + "\n" + "\t".join(values[name.lower()] for name in header.split("\t")) + "\n"
    assert passages_of(write_dpr(tmp_path / "d", text)) == (
        [("1", "title 1", "text 1"), ("2", "title 2", "text 2")], {},
    )  # fmt: skip


def test_a_dpr_file_without_a_header_has_dprs_order_and_an_unknown_header_is_refused(tmp_path: Path) -> None:
    text = '1\t"a ""quoted"" text\nof two\tlines"\t"The ""title"""\n2\ttext\ttitle\n'
    assert passages_of(write_dpr(tmp_path / "none", text)) == (
        [("1", 'The "title"', 'a "quoted" text\nof two\tlines'), ("2", "title", "text")], {},
    )  # fmt: skip
    for header in (
        "id\tsummary\ttitle", "id\ttext\ttext", "docid\turl\ttitle", "docno\tbody\tname", "nr\ttext\ttitle",
        "title\ttext\tkey", "id\ttext\theading", "id\ttext\ttitle\ttitle",
    ):  # fmt: skip
        folder = write_dpr(tmp_path / header.replace("\t", "-"), f"{header}\n1\ta\tb\n")
        problem = f"psgs_w100.tsv line 1: name the columns id, text and title, in their order, not {header}"
        assert passages_of(folder) == ([], {Kind.UNREADABLE: [problem.replace("\t", ", ")]})
    assert passages_of(write_dpr(tmp_path / "width", "1\ttext\n\tx\ty\n")) == (
        [], {Kind.BAD_ROW: ["psgs_w100.tsv line 1: 2 columns instead of 3", "psgs_w100.tsv line 2: an empty id"]},
    )  # fmt: skip


def test_questions_and_answers_of_dpr_are_csv(tmp_path: Path) -> None:
    answers = 'question\tanswers\n"who\nis it"\t"[""it\'s""]"\twhere\nwhat now\t[]\n'
    source, problems = open_source(Ingest(dataset=str(write_dpr(tmp_path / "d", "", answers)))), Problems()
    queries = [row for row in source.questions(problems) if isinstance(row, Query)]
    assert [(q.text, q.answers, q.line) for q in queries] == [("who\nis it", ["it's"], 2), ("what now", [], 4)]
    assert not problems.all()


@pytest.mark.parametrize(
    "text",
    ["answers\tquestion\n['a', 'b']\twho\n", "id\tquestion\tanswers\n7\twho\t['a', 'b']\n",
     "who\t['a', 'b']\tx\ty\tz\n", "\ufeffQuestions\tn\tAnswer\nwho\t7\t['a', 'b']\n"],
)  # fmt: skip
def test_questions_and_answers_follow_their_header_and_further_columns_are_left_out(tmp_path: Path, text: str) -> None:
    source, problems = open_source(Ingest(dataset=str(write_dpr(tmp_path / "d", "", text)))), Problems()
    queries = [row for row in source.questions(problems) if isinstance(row, Query)]
    assert [(q.text, q.answers) for q in queries] == [("who", ["a", "b"])]
    assert not problems.all()


def write_msmarco(folder: Path, collection: str, **files: str) -> Path:
    folder.mkdir()
    (folder / "collection.tsv").write_text(collection, encoding="utf-8")
    for name, text in files.items():
        (folder / f"{name.replace('_', '.')}.tsv").write_text(text, encoding="utf-8")
    return folder


def test_a_tab_in_a_text_of_msmarco_is_no_title(tmp_path: Path) -> None:
    rows, problems = passages_of(write_msmarco(tmp_path / "m", '1\t"quoted" text\n2\ta text\twith a tab\n3\t"open\n'))
    assert rows == [("1", "", '"quoted" text'), ("3", "", '"open')]
    problem = "collection.tsv line 2: 3 columns instead of 2: a tab in a text, or a title without a header line"
    assert problems == {Kind.BAD_ROW: [problem]}


@pytest.mark.parametrize("header", ["id\ttext\ttitle", "pid\ttitle\tpassage"])
def test_titles_of_msmarco_need_a_header(tmp_path: Path, header: str) -> None:
    texts = {"id": "7", "pid": "7", "text": "a text", "passage": "a text", "title": "a title"}
    row = "\t".join(texts[name] for name in header.split("\t"))
    assert passages_of(write_msmarco(tmp_path / "m", f"{header}\n{row}\n")) == ([("7", "a title", "a text")], {})
    rows, problems = passages_of(write_msmarco(tmp_path / "bare", f"{row}\n"))
    assert rows == [] and problems.keys() == {Kind.BAD_ROW}


@pytest.mark.parametrize("header", ["docno\ttext", "nr\ttext", "id\tarticle", "number\tname\tpassage\ttitle"])
def test_a_header_of_a_collection_that_names_no_id_or_no_text_is_refused(tmp_path: Path, header: str) -> None:
    row = "\t".join("7" for _ in header.split("\t"))
    rows, problems = passages_of(write_msmarco(tmp_path / "m", f"{header}\n{row}\n"))
    if header == "docno\ttext":  # as MS MARCO's files, so the header alone is a problem
        assert rows == [("7", "", "7")] and problems.keys() == {Kind.BAD_ROW}
    else:
        assert not rows and problems.keys() == {Kind.UNREADABLE}


@pytest.mark.parametrize("header", ["query-id\ttext", "ID\tquery", "_id\tbody", "qid\tquery"])
def test_a_header_above_queries_of_msmarco_is_no_query(tmp_path: Path, header: str) -> None:
    folder = write_msmarco(
        tmp_path / "m", "p1\ttext\n", queries_train=f"{header}\nq1\tone\nid\ttwo\n", qrels_train="q1 0 p1 1\n"
    )
    problems = Problems()
    rows = list(open_source(Ingest(dataset=str(folder))).questions(problems))
    assert [row.id for row in rows if isinstance(row, Query)] == ["q1", "id"]
    line = "queries.train.tsv line 1: a header line, which MS MARCO's files do not have"
    assert {problem.kind: problem.places for problem in problems.all()} == {Kind.BAD_ROW: [line]}


def test_labels_and_queries_of_msmarco_have_no_header_and_may_have_blanks_between_fields(tmp_path: Path) -> None:
    folder = write_msmarco(
        tmp_path / "m", "p1\ttext\n", queries_train="qid\tquery\nq1\tone\n\tnone\n",
        qrels_train="query_id\titer\tdoc_id\trel\nq1 0 p1  1\nq1\t0\tp 1\t1\nq1\t0\tp1\thigh\n",
    )  # fmt: skip
    problems = Problems()
    rows = list(open_source(Ingest(dataset=str(folder))).questions(problems))
    assert [row.id for row in rows if isinstance(row, Query)] == ["q1"]
    assert [(row.passage_id, row.line) for row in rows if isinstance(row, Label)] == [("p1", 2), ("p 1", 3)]
    assert {problem.kind: problem.places for problem in problems.all()} == {
        Kind.BAD_ROW: [
            "queries.train.tsv line 1: a header line, which MS MARCO's files do not have",
            "queries.train.tsv line 3: an empty id",
            "qrels.train.tsv line 1: a header line, which MS MARCO's files do not have",
        ],
        Kind.BAD_RELEVANCE: ["qrels.train.tsv line 4: 'high'"],
    }


def labels_of(folder: Path, qrels: str) -> tuple[list[tuple[str, str, int, int]], dict[Kind, list[str]], list[str]]:
    (folder / "qrels" / "test.tsv").write_text(qrels, encoding="utf-8")
    problems, source = Problems(), open_source(Ingest(dataset=str(folder)))
    rows = [row for row in source.questions(problems) if isinstance(row, Label) and row.split == "test"]
    labels = [(row.query_id, row.passage_id, row.relevance, row.line) for row in rows]
    return labels, {problem.kind: problem.places for problem in problems.all()}, source.remarks


@pytest.mark.parametrize(
    "header",
    ["query-id\tcorpus-id\tscore", '"query-id"\t"corpus-id"\t"score"', "query_id\tcorpus_id\tscore", "qid\tdocid\trel",
     "QueryID\tDocument\tJudgement", "topic\tdoc\tlabel"],
)  # fmt: skip
def test_a_header_of_beirs_labels_may_say_anything(tmp_path: Path, header: str) -> None:
    rows = 'q4\td4\t1\n"q4"\t"d ""5"""\t"0"\nq4\ta "b"\t2\r\n'
    labels, problems, remarks = labels_of(write_beir(tmp_path / "d"), f"\ufeff{header}\n{rows}")
    assert labels == [("q4", "d4", 1, 2), ("q4", 'd "5"', 0, 3), ("q4", 'a "b"', 2, 4)]
    assert not problems and not remarks


def test_a_header_of_labels_in_another_order_is_followed_and_half_of_one_refused(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d")
    assert labels_of(folder, "corpus-id\tscore\tquery-id\nd4\t1\tq4\n")[:2] == ([("q4", "d4", 1, 2)], {})
    assert labels_of(folder, "qid\titeration\tdocid\trel\nq4\t0\td4\t1\n")[:2] == ([("q4", "d4", 1, 2)], {})
    labels, problems, _ = labels_of(folder, "corpus-id\tquery-id\tjudgement\nd4\tq4\t1\n")
    assert not labels and problems.keys() == {Kind.UNREADABLE}
    assert "name the columns query-id, corpus-id and score, in their order" in problems[Kind.UNREADABLE][0]
    for header in ("query-id\tcorpus-id", "qid\tpid\tscore\tlabel", "query-id\tcorpus-id\tdoc-id\tscore"):
        labels, problems, remarks = labels_of(folder, f"{header}\nq4\td4\t1\n")
        assert not labels and not remarks and problems.keys() == {Kind.UNREADABLE}
    for header in ("query-id corpus-id score", "query-id,corpus-id,score"):
        labels, problems, remarks = labels_of(folder, f"{header}\nq4\td4\t1\n")
        assert len(labels) == 1 and not remarks
        assert problems == {Kind.BAD_ROW: ["qrels/test.tsv line 1: 1 columns instead of 3"]}


def test_labels_and_candidates_may_be_joined_with_their_headers(tmp_path: Path) -> None:
    header, folder = "query-id\tcorpus-id\tscore\n", write_beir(tmp_path / "d")
    labels, problems, _ = labels_of(folder, f"{header}q4\td4\t1\n\ufeff{header}q4\td5\t2\n")
    assert labels == [("q4", "d4", 1, 2), ("q4", "d5", 2, 4)] and not problems
    (folder / "candidates").mkdir()
    (folder / "candidates" / "test.tsv").write_text(2 * "query_id\tpassage_id\nq4\td4\n")
    (rows,) = open_source(Ingest(dataset=str(folder))).candidates(Problems())
    assert (rows.query_ids.to_pylist(), rows.passage_ids.to_pylist()) == (["q4", "q4"], ["d4", "d4"])
    assert list(rows.lines) == [2, 4]


def test_labels_without_a_header_are_read_and_those_of_trec_or_with_fractions_refused(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d")
    labels, problems, remarks = labels_of(folder, "q4\td4\t1\nq4\td5\t1\n")
    assert len(labels) == 2 and not problems
    assert remarks == [
        "qrels/test.tsv has no header line: its first line is a label here, and none to BEIR's own reader"
    ]
    assert labels_of(folder, "q4\td4\t1.0\n")[1] == {Kind.BAD_RELEVANCE: ["qrels/test.tsv line 1: '1.0'"]}
    labels, problems, _ = labels_of(folder, "q4\t0\t7\t1\n")
    assert not labels and problems == {Kind.BAD_ROW: ["qrels/test.tsv line 1: 4 columns instead of 3"]}


def test_candidates_follow_their_header(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d")
    (folder / "candidates").mkdir()
    path = folder / "candidates" / "test.tsv"
    for text in ("q4\td4\t1\n", '"query_id"\t"passage_id"\n"q4"\td4\n', "rank\tcorpus-id\tqid\n1\td4\tq4\n"):
        path.write_text(text)
        (rows,) = open_source(Ingest(dataset=str(folder))).candidates(Problems())
        assert (rows.query_ids.to_pylist(), rows.passage_ids.to_pylist()) == (["q4"], ["d4"])
    path.write_text("a\tb\tc\td\tquery-id\tcorpus-id\n1\t2\t3\t4\tq4\td4\n1\tq4\td4\n")
    problems = Problems()
    (rows,) = open_source(Ingest(dataset=str(folder))).candidates(problems)
    assert (rows.query_ids.to_pylist(), rows.passage_ids.to_pylist()) == (["q4"], ["d4"])
    assert problems.all()[0].places == ["candidates/test.tsv line 3: 3 columns instead of 6"]
    path.write_text("query-id\tother\nq4\td4\n")
    assert [problem.kind for problem in check(Ingest(dataset=str(folder))).problems] == [Kind.UNREADABLE]
