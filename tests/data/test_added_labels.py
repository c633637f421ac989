"""`ingest.labels`: added labels are training labels, and change no draw of the other queries."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from beir_folder import QRELS, ingested, write_beir

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.added_labels import AddedLabel, new_query_id, read_labels, write_labels
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest

NEW = "a new need"


def new(text: str, passage: str) -> AddedLabel:
    return AddedLabel(new_query_id(text), text, passage, "2026-01-01T00:00:00Z")


def read(folder: Path, labels: Sequence[AddedLabel], out: Path, **settings: object) -> tuple[Dataset, list[str]]:
    """The dataset, and the remarks."""
    write_labels(out.with_suffix(".jsonl"), labels)
    values = {"dataset": str(folder), "labels": str(out.with_suffix(".jsonl")), **settings}
    data, report = ingested(Ingest.model_validate(values), out)
    return data, report.remarks


def pairs(data: Dataset, split: str) -> set[tuple[str, str]]:
    labels, ids = data.split_qrels(split).positive(), data.queries["query_id"].to_pylist()
    return {(ids[q], p) for q, p in zip(labels.query, data.passages.take(labels.passage).ids, strict=True)}


def test_they_train(tmp_path: Path) -> None:
    labels = [
        new(NEW, "d5"),
        AddedLabel("q0", "what is number 0", "d4"),
        new(NEW, "d4"),
        AddedLabel("q0", "what is number 0", "d0"),  # the data have this one
        AddedLabel("q3", "what is number 3", "d0"),  # a dev query now
        new("\ufeffWHAT IS num\u00adber 4", "d0"),  # the words of a test query
        new("of what is gone", "gone"),
    ]
    data, remarks = read(write_beir(tmp_path / "d"), labels, tmp_path / "out")
    mine = new_query_id(NEW)
    assert pairs(data, "train") == {("q0", "d0"), ("q0", "d4"), ("q1", "d1"), (mine, "d5"), (mine, "d4")}
    assert pairs(data, "dev") == {("q3", "d3")} and pairs(data, "test") == {("q4", "d4")}
    assert data.added == labels[:3]
    text = " ".join(remarks)
    for words in (
        "1 added labels name a passage",
        "1 added labels are of a dev or test query",
        "1 queries have the words",
    ):
        assert words in text


def test_no_draw_changes(tmp_path: Path) -> None:
    """With dev and training queries drawn by a hash of their texts, added queries change none of the others."""
    rows = [(f"q{i}", f"d{i}", 1) for i in range(6)]
    folder = write_beir(tmp_path / "d", qrels={"train": rows})
    drawn = {"dev_fraction": 0.3, "max_train_queries": 2, "max_dev_queries": 1}
    before, _ = read(folder, [], tmp_path / "before", **drawn)
    labels = [new(f"need {i}", "d0") for i in range(20)]
    after, _ = read(folder, labels, tmp_path / "after", **drawn)
    for split in ("dev", "test"):
        assert pairs(after, split) == pairs(before, split)
    assert pairs(after, "train") == pairs(before, "train") | {(label.query_id, "d0") for label in labels}
    assert after.added == labels and before.added == []


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    labels = [new("see\u2028two\x85lines", "d1"), new("b", "d2")]
    write_labels(tmp_path / "labels.jsonl", labels)
    text = (tmp_path / "labels.jsonl").read_text(encoding="utf-8").replace("\n", "\r\n")
    (tmp_path / "labels.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_labels(tmp_path / "labels.jsonl") == labels


def test_a_label_that_contradicts_the_data_is_refused_or_neither_is_used(tmp_path: Path) -> None:
    qrels = {**QRELS, "train": [("q0", "d0", 2), ("q1", "d1", 1), ("q2", "d2", 0), ("q2", "d3", 1)]}
    folder = write_beir(tmp_path / "d", qrels=qrels)
    labels = [AddedLabel(f"q{i}", f"what is number {i}", f"d{i}") for i in (0, 2, 3)]  # q3 is of dev: left out
    with pytest.raises(UserError, match=r"added labels line 2: 1, but 0 in qrels/train.tsv line 4: 'q2', 'd2'"):
        read(folder, labels, tmp_path / "out")
    data, remarks = read(folder, labels, tmp_path / "dropped", on_bad_rows="drop")
    assert pairs(data, "train") == {("q0", "d0"), ("q1", "d1"), ("q2", "d3")} and data.added == []
    assert any(remark.startswith("1 labels repeat") for remark in remarks)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (
        b"no label\n",
        b'{"query": "a"}\n',
        b'{"query_id": "a", "query": 1, "passage_id": "d0"}\n',
        b"\xff",
    ):
        (tmp_path / "labels.jsonl").write_bytes(content)
        with pytest.raises(UserError, match=r"labels\.jsonl"):
            read_labels(tmp_path / "labels.jsonl")
