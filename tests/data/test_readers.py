"""Each format comes out as the same canonical rows, plain or gzip, whatever the block size."""

import gzip
import importlib.util
import json
from pathlib import Path

import pytest
from beir_folder import PASSAGES, write_beir

from gnn_encoder.artifacts import Dataset, drafting
from gnn_encoder.data import canonicalize, check, lines, open_source, source_digest
from gnn_encoder.data.rows import LabelRows, QueryRows
from gnn_encoder.data.validation import Kind, Problems
from gnn_encoder.errors import UserError
from gnn_encoder.settings import Ingest


def read(folder: Path, out: Path, **settings: str) -> tuple[Dataset, dict[str, dict[str, list[str]]]]:
    """The dataset, and split → query text → titles or texts of its positives."""
    with drafting(out, "dataset") as draft:
        asked = Ingest(dataset=str(folder), **settings)
        canonicalize(open_source(asked), asked, draft=draft)
    data = Dataset(out)
    found: dict[str, dict[str, list[str]]] = {}
    for row in data.queries.to_pylist():
        found.setdefault(row["split"], {})[row["text"]] = []
    texts, splits = data.queries["text"].to_pylist(), data.queries["split"].to_pylist()
    labels = data.qrels.positive()
    passages = data.passages.take(labels.passage).texts
    for query, passage in zip(labels.query, passages, strict=True):
        found[splits[query]][texts[query]].append(passage)
    return data, found


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
    data, found = read(folder, tmp_path / "out")
    assert found == {
        "train": {"what is number 0": ["text of passage 0"], "what is number 1": ["text of passage 1"],
                  "what is number 2": []},
        "dev": {"what is number 3": ["text of passage 3"]},
        "test": {"what is number 4": ["text of passage 4"]},
    }  # fmt: skip
    assert next(data.passages.stream()).titles == [p["title"] for p in PASSAGES]
    assert data.qrels.relevance.tolist() == [1, 1, 0, 2, 1]
    assert any("test_multi.tsv" in remark for remark in open_source(Ingest(dataset=str(folder))).remarks)


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


def write_msmarco(folder: Path) -> Path:
    folder.mkdir()
    (folder / "collection.tsv").write_text("".join(f'{i}\tpassage "{i}"\n' for i in range(40)))
    for name, numbers in (("train", range(30)), ("dev", range(30, 38)), ("dev.small", range(30, 35))):
        (folder / f"queries.{name}.tsv").write_text("".join(f"{q}\tquery {q}\n" for q in numbers))
        (folder / f"qrels.{name}.tsv").write_text("".join(f"{q}\t0\t{q}\t1\n" for q in numbers))
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_msmarco_dev_is_the_test_split_and_dev_comes_from_train(tmp_path: Path, packed: bool) -> None:
    folder = write_msmarco(tmp_path / "m")
    if packed:
        pack(folder)
    _, found = read(folder, tmp_path / "out")
    assert found["test"] == {f"query {q}": [f'passage "{q}"'] for q in range(30, 35)}
    assert 0 < len(found["dev"]) < 10
    assert found["train"] | found["dev"] == {f"query {q}": [f'passage "{q}"'] for q in range(30)}


def write_dpr(folder: Path) -> Path:
    (folder / "qas").mkdir(parents=True)
    (folder / "psgs_w100.tsv").write_text(
        'id\ttext\ttitle\n1\t"It said ""one"" and two"\tFirst\n2\tplain text\t"A ""B"""\n3\tthird\tC\n'
    )
    context = {"title": "First", "text": "…", "score": 1000}
    training = [
        {"question": "who said one", "answers": ["one"], "positive_ctxs": [{**context, "passage_id": "1"}],
         "negative_ctxs": [{**context, "passage_id": "3"}], "hard_negative_ctxs": []},
        {"question": "what is plain", "answers": ["text"], "positive_ctxs": [{**context, "psg_id": 2}],
         "negative_ctxs": [], "hard_negative_ctxs": [{**context, "psg_id": 1}]},
    ]  # fmt: skip
    (folder / "biencoder-nq-train.json").write_text(json.dumps(training, indent=2))
    (folder / "biencoder-nq-dev.json").write_text(
        json.dumps([{"question": "which is third", "answers": [], "positive_ctxs": [{"psg_id": "3"}]}])
    )
    (folder / "qas" / "nq-dev.qa.csv").write_text("which is third\t['third', '3rd']\nunlabelled one\t['x']\n")
    (folder / "qas" / "nq-test.qa.csv").write_text(
        """who is it\t['Wilhelm Conrad', "O'Neill"]\nwhat now\t"[""now""]"\n"""
    )
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_dpr(tmp_path: Path, packed: bool) -> None:
    folder = write_dpr(tmp_path / "nq")
    if packed:
        pack(folder)
    data, found = read(folder, tmp_path / "out")
    assert found == {
        "train": {"who said one": ['It said "one" and two'], "what is plain": ["plain text"]},
        "dev": {"which is third": ["third"], "unlabelled one": []},
        "test": {"who is it": [], "what now": []},
    }
    assert next(data.passages.stream()).titles == ["First", 'A "B"', "C"]
    answers = dict(zip(data.queries["text"].to_pylist(), data.queries["answers"].to_pylist(), strict=True))
    assert answers["which is third"] == ["third", "3rd"]
    assert answers["who is it"] == ["Wilhelm Conrad", "O'Neill"] and answers["what now"] == ["now"]


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
    assert [row.texts for row in rows if isinstance(row, QueryRows)] == [["train question"], ["test question"]]
    assert [(r.split, r.query_ids, r.passage_ids, r.relevance) for r in rows if isinstance(r, LabelRows)] == [
        ("train", ["train-q"], ["d1"], [1]), ("test", ["test-q"], ["d1"], [1]),
    ]  # fmt: skip
    with pytest.raises(UserError, match="no data set"):
        open_source(Ingest(dataset="ir_datasets:no/such/set"))


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
