"""Each format comes out as the same canonical rows, plain or gzip, whatever the block size."""

import gzip
import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
from beir_folder import PASSAGES, QUERIES, check, ingested, write_beir
from layouts import write_dpr, write_msmarco

from gnn_encoder.artifacts import Dataset
from gnn_encoder.data import lines, open_source, source_digest
from gnn_encoder.data.rows import Label, Query
from gnn_encoder.data.validation import Kind, Problems
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest


def read(folder: Path, out: Path, **settings: str) -> tuple[Dataset, dict[str, dict[str, list[str]]]]:
    """The dataset, and split → query text → titles or texts of its positives."""
    data, _ = ingested(Ingest(dataset=str(folder), **settings), out)
    labels_of: dict[str, dict[str, list[str]]] = {}
    for row in data.queries.to_pylist():
        labels_of.setdefault(row["split"], {})[row["text"]] = []
    texts, splits = data.queries["text"].to_pylist(), data.queries["split"].to_pylist()
    labels = data.qrels.positive()
    passages = data.passages.take(labels.passage).texts
    for query, passage in zip(labels.query, passages, strict=True):
        labels_of[splits[query]][texts[query]].append(passage)
    return data, labels_of


def pack(folder: Path) -> None:
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


@pytest.mark.parametrize("packed", [False, True])
def test_beir(tmp_path: Path, packed: bool) -> None:
    folder = write_beir(tmp_path / "d")
    (folder / "qrels" / "test_multi.tsv").write_text("query-id\tcorpus-id\tscore\nq9\td9\t1\n")
    if packed:
        pack(folder)
    data, labels = read(folder, tmp_path / "out")
    assert labels == {
        "train": {"what is number 0": ["text of passage 0"], "what is number 1": ["text of passage 1"],
                  "what is number 2": []},
        "dev": {"what is number 3": ["text of passage 3"]},
        "test": {"what is number 4": ["text of passage 4"]},
    }  # fmt: skip
    assert next(data.passages.stream()).titles == [p["title"] for p in PASSAGES]
    assert data.qrels.relevance.tolist() == [1, 1, 0, 2, 1]
    assert any("test_multi.tsv" in remark for remark in open_source(Ingest(dataset=str(folder))).remarks)


def test_values_of_a_field_of_the_queries_are_kept_with_them(tmp_path: Path) -> None:
    more = ({"kind": "a "}, {"metadata": {"kind": 3}}, {"kind": ["b"]}, {"kind": "c"}, {"kind": None, "metadata": None})
    queries = "".join(json.dumps({**query, **of}) + "\n" for query, of in zip(QUERIES, more, strict=False))
    folder = write_beir(tmp_path / "d", queries=queries)
    data, _ = read(folder, tmp_path / "out", query_field="kind")
    ids = data.queries["query_id"].to_pylist()
    values = data.query_values(np.arange(len(ids)))
    assert dict(zip(ids, values, strict=True)) == {"q0": "a", "q1": "3", "q2": "", "q3": "c", "q4": ""}
    plain, _ = read(folder, tmp_path / "plain")
    assert plain.query_values(np.arange(2)) == ["", ""] and "query_values.parquet" not in plain.manifest.files
    with pytest.raises(
        UserError, match=r"ingest.query_field = 'color': no query of .* has a value of it; name a field"
    ):
        check(Ingest(dataset=str(folder), query_field="color"))
    (folder / "queries.jsonl").unlink()
    assert check(Ingest(dataset=str(folder), query_field="kind")) == check(Ingest(dataset=str(folder)))


def test_blocks_do_not_change_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_beir(tmp_path / "d")
    text = (folder / "corpus.jsonl").read_text()
    crlf = "\ufeff" + text.replace("\n", "\r\n").rstrip()
    (folder / "corpus.jsonl").write_bytes(crlf.replace("text of", "t\u00e9xt of").encode())
    whole = read(folder, tmp_path / "whole")[1]
    for size in (1, 7, 100):
        monkeypatch.setattr(lines, "BLOCK_BYTES", size)
        assert read(folder, tmp_path / f"out{size}")[1] == whole
    assert whole["test"]["what is number 4"] == ["t\u00e9xt of passage 4"]


@pytest.mark.parametrize("packed", [False, True])
def test_msmarco_dev_is_the_test_split_and_dev_comes_from_train(tmp_path: Path, packed: bool) -> None:
    folder = write_msmarco(tmp_path / "m")
    if packed:
        pack(folder)
    _, labels = read(folder, tmp_path / "out")
    assert labels["test"] == {f"query {q}": [f'passage "{q}"'] for q in range(30, 35)}
    assert 0 < len(labels["dev"]) < 10
    assert labels["train"] | labels["dev"] == {f"query {q}": [f'passage "{q}"'] for q in range(30)}


@pytest.mark.parametrize("packed", [False, True])
def test_dpr(tmp_path: Path, packed: bool) -> None:
    folder = write_dpr(tmp_path / "nq")
    if packed:
        pack(folder)
    data, labels = read(folder, tmp_path / "out")
    assert labels == {
        "train": {"who said one": ['It said "one" and two'], "what is plain": ["plain text"]},
        "dev": {"which is third": ["third"], "unlabelled one": []},
        "test": {"who is it": [], "what now": []},
    }
    assert next(data.passages.stream()).titles == ["First", 'A "B"', "C"]
    answers = dict(zip(data.queries["text"].to_pylist(), data.queries["answers"].to_pylist(), strict=True))
    assert answers["which is third"] == ["third", "3rd"]
    assert answers["who is it"] == ["Wilhelm Conrad", "O'Neill"] and answers["what now"] == ["now"]


@pytest.mark.parametrize("coding", ["latin-1", "utf-16", "gzip"])
def test_dpr_json_in_another_coding_is_unreadable(tmp_path: Path, coding: str) -> None:
    folder = write_dpr(tmp_path / "nq")
    path = folder / "biencoder-nq-train.json"
    text = path.read_text().replace("who said one", "who said \u00e9")
    if coding == "gzip":
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(gzip.compress(text.encode())))
        path.unlink()
    else:
        path.write_bytes(text.encode(coding))
    places_of = {p.kind: p.places for p in check(Ingest(dataset=str(folder))).problems}
    assert "line 1: not UTF-8: byte 0x" in places_of[Kind.UNREADABLE][0]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"answers": ["\ud800"]}, Kind.ENCODING),
        ({"question": "\ud800"}, Kind.ENCODING),
        ({"positive_ctxs": [{"psg_id": ["1"]}]}, Kind.BAD_ROW),
        ({"positive_ctxs": [{"passage_id": None, "psg_id": "1"}]}, Kind.BAD_ROW),
    ],
)
def test_dpr_training_rows_that_cannot_be_stored(tmp_path: Path, change: dict[str, object], kind: Kind) -> None:
    folder = write_dpr(tmp_path / "nq")
    path = folder / "biencoder-nq-train.json"
    one, two = json.loads(path.read_text())
    third = {**one, "question": "what is third", "answers": []}
    path.write_text(json.dumps([third, two, {**one, **change}]))
    report = check(Ingest(dataset=str(folder)))
    assert [p.kind for p in report.problems][:1] == [kind]


@pytest.mark.parametrize(
    "answers",
    ["-" * 90_000 + "1", "[" * 5000, "['a', ['b']]", "['a' * 9]", "[1]", "(1,)", "'a'", "['a' 'b']", "['\\x']", "['a'"],
)
def test_only_a_list_of_strings_is_parsed_as_python(tmp_path: Path, answers: str) -> None:
    folder = write_dpr(tmp_path / "nq")
    (folder / "qas" / "nq-test.qa.csv").write_text(f"who is it\t{answers}\n")
    (problem,) = check(Ingest(dataset=str(folder))).problems
    assert problem.kind is Kind.BAD_ROW and problem.places[0].startswith("nq-test.qa.csv line 1: not a question")


@pytest.mark.parametrize("strings", [[], ["a"], ["it's", 'a "b"', "c\\", "", "\u00e9\t\n\x00"], ["\\d", "a" * 9000]])
def test_answers_are_read_as_python_writes_them(tmp_path: Path, strings: list[str]) -> None:
    folder = write_dpr(tmp_path / "nq")
    (folder / "qas" / "nq-test.qa.csv").write_text("")
    (folder / "qas" / "nq-dev.qa.csv").write_text(f"unlabelled one\t{strings!r}\n")
    data, _ = read(folder, tmp_path / "out")
    answers = dict(zip(data.queries["text"].to_pylist(), data.queries["answers"].to_pylist(), strict=True))
    assert answers["unlabelled one"] == strings


def test_dpr_file_names_are_text(tmp_path: Path) -> None:
    for name in (b"nq\xff-test.json", b"nq\x1b[31m-test.json"):
        folder = write_dpr(tmp_path / str(len(name)))
        (folder / os.fsdecode(name)).write_text("[]")
        with pytest.raises(UserError, match="rename it") as caught:
            open_source(Ingest(dataset=str(folder)))
        assert str(caught.value).isprintable()


def test_dpr_with_two_question_sets_or_bad_rows_is_a_problem(tmp_path: Path) -> None:
    folder = write_dpr(tmp_path / "nq")
    (folder / "qas" / "nq-test.qa.csv").write_text("no list here\n")
    assert [p.kind for p in check(Ingest(dataset=str(folder))).problems] == [Kind.BAD_ROW]
    (folder / "qas" / "nq-test.qa.csv").write_bytes(b"a\rb\t['c']\n")  # no line for a CSV reader
    assert [p.kind for p in check(Ingest(dataset=str(folder))).problems] == [Kind.BAD_ROW]
    (folder / "qas" / "trivia-test.qa.csv").write_text("q\t['a']\n")
    report = check(Ingest(dataset=str(folder)))
    assert report.fatal and "nq, trivia" in str(report.problems[0])


def test_ir_datasets_reads_a_registered_set(tmp_path: Path) -> None:
    ir_datasets = pytest.importorskip("ir_datasets")
    from ir_datasets.formats import TrecQrels, TsvDocs, TsvQueries

    class Local:
        def __init__(self, text: str) -> None:
            self._path = tmp_path / f"{abs(hash(text))}"
            self._path.write_text(text)

        def path(self, force: bool = True) -> Path:
            return self._path

        def stream(self):
            return self._path.open("rb")

    docs = TsvDocs(Local("d0\tfirst text\nd1\tsecond text\n"))
    ir_datasets.registry.register("tiny", ir_datasets.Dataset(docs))
    for split in ("train", "test"):
        queries = TsvQueries(Local(f"{split}-q\t{split} question\n"))
        qrels = TrecQrels(Local(f"{split}-q 0 d1 1\n"), {1: "relevant"})
        ir_datasets.registry.register(f"tiny/{split}", ir_datasets.Dataset(docs, queries, qrels))
    source = open_source(Ingest(dataset="ir_datasets:tiny"))
    (passages,) = source.passages(Problems())
    assert (passages.ids, passages.texts) == (["d0", "d1"], ["first text", "second text"])
    rows = list(source.questions(Problems()))
    assert [row.text for row in rows if isinstance(row, Query)] == ["train question", "test question"]
    assert [(r.split, r.query_id, r.passage_id, r.relevance) for r in rows if isinstance(r, Label)] == [
        ("train", "train-q", "d1", 1), ("test", "test-q", "d1", 1),
    ]  # fmt: skip
    with pytest.raises(UserError, match="no data set"):
        open_source(Ingest(dataset="ir_datasets:no/such/set"))
    ir_datasets.registry.register(
        "high/train", ir_datasets.Dataset(docs, queries, TrecQrels(Local("test-q 0 d1 1001\n"), {}))
    )
    with pytest.raises(UserError, match="a label for train is above 1,000"):
        list(open_source(Ingest(dataset="ir_datasets:high/train")).questions(Problems()))


@pytest.mark.skipif(importlib.util.find_spec("ir_datasets") is not None, reason="ir_datasets is installed")
def test_without_ir_datasets_the_line_says_what_to_install() -> None:
    with pytest.raises(UserError, match="pip install"):
        open_source(Ingest(dataset="ir_datasets:beir/scifact"))


def test_detection_and_refusals(tmp_path: Path) -> None:
    assert open_source(Ingest(dataset=str(write_beir(tmp_path / "b")))).format == "beir"
    assert open_source(Ingest(dataset=str(write_msmarco(tmp_path / "m")))).format == "msmarco"
    assert open_source(Ingest(dataset=(write_dpr(tmp_path / "n")).as_uri())).format == "dpr"
    (tmp_path / "empty").mkdir()
    for name, words in (
        (str(tmp_path / "nowhere"), "does not exist"),
        (str(tmp_path / "b" / "corpus.jsonl"), "is a file"),
        (str(tmp_path / "empty"), "holds no data set"),
        ("~nobody-of-this-name/data", "there is no such user"),
        ("gs://bucket/data", "read from folders and s3:// addresses"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            open_source(Ingest(dataset=name))
        assert "\n" not in str(caught.value)


def test_the_digest_follows_the_files_that_are_read(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d")
    settings = Ingest(dataset=str(folder))
    before = source_digest(settings)
    (folder / "notes.txt").write_text("not data")
    assert source_digest(settings) == before
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq4\td5\t1\n")
    assert source_digest(settings) != before
