"""A source without forgotten texts is read as the same data written without them."""

import json
from pathlib import Path
from typing import Any

import pytest
from beir_folder import QRELS, QUERIES, ingested, lines, write_beir

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.added_labels import AddedLabel, new_query_id, write_labels
from gnn_encoder.data import open_source
from gnn_encoder.data.forgotten import Forgotten
from gnn_encoder.data.validation import DataReport
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest

ROWS: list[dict[str, Any]] = [
    {"_id": "d0", "title": "Head", "text": "ing", "doc_id": "A", "order": 0, "parent": None, "product": "gone"},
    {"_id": "d1", "title": "", "text": "first", "doc_id": "A", "order": 2, "parent": "d0", "citations": ["d3", "d0"]},
    {"_id": "d2", "title": "", "text": "second", "doc_id": "A", "order": 3, "parent": "s1", "citations": ["d1"]},
    {"_id": "d3", "title": "", "text": "other", "doc_id": "B", "order": 7},
    {"_id": "d4", "title": "", "text": "more", "doc_id": "B", "order": 5},
    {"_id": "d5", "title": "Other", "text": "other", "doc_id": "C", "product": "press", "tags": ["a"]},
]
NODES = [{"_id": "s1", "title": "Part", "doc_id": "A", "order": 1, "parent": "d0", "citations": ["d0", "d3"]}]
POOL = [("q0", "d0", 1), ("q0", "d2", 1), ("q1", "d3", 1), ("q3", "d3", 1)]
LABELS = {**QRELS, "train": [*QRELS["train"], ("q0", "d4", 1), ("q2", "d3", 1)]}
TEXTS = {"passages": ["HEAD  ing"], "queries": ["What is number 1"]}


def write(folder: Path, passages: tuple[str, ...] = (), queries: tuple[str, ...] = ()) -> Path:
    """The data without some ids, and with nothing that names them."""

    def without(row: dict[str, Any]) -> dict[str, Any]:
        cited = [name for name in row.get("citations", []) if name not in passages]
        return {**row, "citations": cited, "parent": None if row.get("parent") in passages else row.get("parent")}

    def kept(rows: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
        return [row for row in rows if row[0] not in queries and row[1] not in passages]

    corpus = lines([without(row) for row in ROWS if row["_id"] not in passages])
    queries_left = lines([query for query in QUERIES if query["_id"] not in queries])
    write_beir(folder, corpus, queries_left, {split: kept(rows) for split, rows in LABELS.items()})
    (folder / "nodes.jsonl").write_text(lines([without(row) for row in NODES]), encoding="utf-8")
    (folder / "candidates").mkdir()
    pool = "".join("\t".join(map(str, row)) + "\n" for row in kept(POOL))
    (folder / "candidates" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + pool, encoding="utf-8")
    return folder


def digests(folder: Path, texts: dict[str, list[str]]) -> str:
    """A file with the digests of texts."""
    forgotten = Forgotten()
    for kind, names in texts.items():
        getattr(forgotten, kind).update(map(forgotten.digest, names))
    forgotten.write(folder / "forgotten" / "digests.json")
    return str(folder / "forgotten" / "digests.json")


def read(folder: Path, out: Path, **settings: Any) -> tuple[Dataset, DataReport]:
    return ingested(Ingest(dataset=str(folder), **settings), out)


def test_the_dataset_is_that_of_data_written_without_them(tmp_path: Path) -> None:
    whole, without = write(tmp_path / "whole"), write(tmp_path / "without", ("d0",), ("q1",))
    left, report = read(whole, tmp_path / "left", forgotten=digests(tmp_path, TEXTS))
    expected, other = read(without, tmp_path / "expected")
    assert left.manifest.files == expected.manifest.files and left.structure is not None and left.pool is not None
    assert "fields.arrow" in left.manifest.files
    said = f"{whole} still has 1 passages and 1 queries that are left out: delete them there"
    assert report.facts == {**other.facts, "forgotten": said} and report.remarks == other.remarks
    assert read(whole, tmp_path / "control")[0].manifest.files != expected.manifest.files
    again, report = read(without, tmp_path / "again", forgotten=digests(tmp_path, TEXTS))
    assert again.manifest.files == expected.manifest.files and report.facts == other.facts


def test_a_text_with_another_title_stays_and_a_file_has_no_text(tmp_path: Path) -> None:
    file = digests(tmp_path, {"passages": ["other"]})
    left, _ = read(write(tmp_path / "data"), tmp_path / "left", forgotten=file)
    assert left.passages.ids().to_pylist() == ["d0", "d1", "d2", "d4", "d5"]
    content = Path(file).read_text()
    assert (
        "other" not in content
        and json.loads(content)["passages"]
        != json.loads(Path(digests(tmp_path, {"passages": ["other"]})).read_text())["passages"]
    ), "the digests of another file are others"


def test_queries_of_logs_and_of_added_labels_are_left_out(tmp_path: Path) -> None:
    data, log, labels = write(tmp_path / "data"), tmp_path / "log.csv", tmp_path / "labels.jsonl"
    log.write_text("query,passage,count\nan old need,d3,9\nanother,d4,9\n", encoding="utf-8")
    write_labels(labels, [AddedLabel(new_query_id(text), text, "d1") for text in ("a new need", "a newer need")])
    named = {"log": str(log), "labels": str(labels), "log_chance": 1.0}

    def texts(out: str, **settings: Any) -> set[str]:
        return set(read(data, tmp_path / out, **named, **settings)[0].queries["text"].to_pylist())

    gone = {"an old need", "a new need"}
    assert texts("all") - texts("left", forgotten=digests(tmp_path, {"queries": sorted(gone)})) == gone


@pytest.mark.parametrize("content", ["", "{}", '{"salt": 1}'])
def test_a_damaged_file_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "digests.json").write_text(content)
    with pytest.raises(UserError, match=r"digests\.json has no digests of forgotten texts"):
        open_source(Ingest(dataset=str(write(tmp_path / "data")), forgotten=str(tmp_path / "digests.json")))
