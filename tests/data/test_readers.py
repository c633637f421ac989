"""Each format comes out as the same canonical rows, plain or gzip, whatever the block size.

Odd bytes in a file are read or refused in one line, never by another error.
"""

import gzip
import importlib.util
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from beir_folder import PASSAGES, QUERIES, check, write_beir

from gnn_encoder.artifacts import Dataset, drafting
from gnn_encoder.data import canonicalize, lines, open_source, source_digest
from gnn_encoder.data.rows import Label, Query
from gnn_encoder.data.validation import DataReport, Kind, Problems
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest


def read(folder: Path, out: Path, **settings: str) -> tuple[Dataset, dict[str, dict[str, list[str]]]]:
    """The dataset, and split → query text → titles or texts of its positives."""
    with drafting(out, "dataset") as draft:
        ingest_settings = Ingest(dataset=str(folder), **settings)
        canonicalize(open_source(ingest_settings), ingest_settings, draft=draft)
    data = Dataset(out)
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
    _, labels = read(folder, tmp_path / "out")
    assert labels["test"] == {f"query {q}": [f'passage "{q}"'] for q in range(30, 35)}
    assert 0 < len(labels["dev"]) < 10
    assert labels["train"] | labels["dev"] == {f"query {q}": [f'passage "{q}"'] for q in range(30)}


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


ODD = [
    b"null", b"\nnull\n", b"[" * 3000, b'{"a":' * 3000, b"9" * 6000, b"-" * 90_000, b"\\ud800", b"\xed\xa0\x80",
    b"\xff\xfe", b"\xef\xbb\xbf", b"\n\xef\xbb\xbf", b"\0", b"\r", b"\n", b"\n\n", b"\t", b'"', b"'", b"\\",
    b"NaN", b"1_0", b"\x1b[31m", b"\xe2\x80\x8b", b"2147483647", b"{}", b"[]", b",", b"id\ttext\n", b"\x1f\x8b\x08\0",
]  # fmt: skip
CODINGS = ["latin-1", "utf-16", "utf-32", "utf-8-sig", "cp1252"]


def spoil(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    for _ in range(draw.randrange(1, 3)):
        # Half of them at the start of a line, where most readers look first.
        starts = [0, *(i + 1 for i, byte in enumerate(data) if byte == ord("\n"))]
        at = draw.choice([draw.choice(starts), draw.randrange(len(data) + 1)])
        data = data[:at] + draw.choice(ODD) + data[at + draw.choice([0, 0, 1, 20]) :]
    if draw.random() < 0.15:
        data = data.decode("utf-8", "replace").encode(draw.choice(CODINGS), "replace")
    if draw.random() < 0.3:
        path.unlink()
        path = path.with_name(path.name + ".gz")
        data = gzip.compress(data, 1)
        data = draw.choice([data, data, gzip.compress(data, 1), data[: draw.randrange(len(data))], data + data])
    path.write_bytes(data)


def outcome(read: Callable[[], DataReport]) -> DataReport | str:
    """The report, or the line that refuses the data set."""
    try:
        report = read()
    except UserError as error:
        return str(error)
    for line in (*report.problems, *report.remarks):
        assert "\n" not in str(line)
        str(line).encode()
    return report


@pytest.mark.parametrize("write", [write_beir, write_msmarco, write_dpr])
def test_odd_bytes_are_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Path]
) -> None:
    ways = dict.fromkeys(("sound", "mended by drop", "refused"), 0)
    for seed in range(20):
        draw = random.Random(seed)
        monkeypatch.setattr("gnn_encoder.data.lines.BLOCK_BYTES", draw.choice([100, 1 << 22]))
        folder = write(tmp_path / str(seed))
        spoil(draw.choice(sorted(path for path in folder.rglob("*") if path.is_file())), draw)

        def kept(rows: str, folder: Path = folder) -> DataReport | str:
            settings = Ingest(dataset=str(folder), on_bad_rows=rows)
            with drafting(folder / rows, "dataset") as draft:
                return canonicalize(open_source(settings), settings, draft=draft)

        seen = outcome(lambda folder=folder: check(Ingest(dataset=str(folder))))
        refused, dropped = outcome(lambda: kept("refuse")), outcome(lambda: kept("drop"))
        if isinstance(seen, str) or seen.fatal:
            ways["refused"] += 1
            assert isinstance(refused, str) and isinstance(dropped, str) and "\n" not in refused + dropped
        else:
            ways["mended by drop" if seen.problems else "sound"] += 1
            assert dropped == seen, seed
            assert isinstance(refused, str) if seen.problems else refused == seen
    assert all(ways.values()), ways
