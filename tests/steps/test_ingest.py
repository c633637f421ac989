"""The step writes a canonical dataset or nothing."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from beir_folder import PASSAGES, QRELS, QUERIES, lines, write_beir

from gnn_encoder.artifacts import Dataset, read_manifest
from gnn_encoder.artifacts.added_labels import AddedLabel, write_labels
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.steps.ingest import ingest

SPOILT = {
    "corpus": lines([PASSAGES[0], {"_id": "d9", "text": ""}, PASSAGES[0], *PASSAGES[1:]]) + "{\n",
    "queries": lines([*QUERIES, QUERIES[1]]),
    "qrels": {**QRELS, "train": [*QRELS["train"], ("q1", "d77", 1), ("q1", "d5", "high"), ("q4", "d0", 1)]},
}


def test_counts_stand_in_the_manifest(tmp_path: Path) -> None:
    ingest(Ingest(dataset=str(write_beir(tmp_path / "d"))), dataset=tmp_path / "out")
    manifest = read_manifest(tmp_path / "out", "dataset")
    assert manifest.rows == {"corpus": 6, "queries": 5, "qrels": 5}
    assert manifest.metrics["headline"] == "6 passages · 3/1/1 queries · remarks in the log: 1"
    assert manifest.metrics["labels_train"] == 3 and manifest.metrics["isolated_passages"] == 2


def test_bad_rows_are_refused_in_one_line_and_nothing_is_left(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d", **SPOILT)
    with pytest.raises(UserError) as caught:
        ingest(Ingest(dataset=str(folder)), dataset=tmp_path / "out" / "dataset")
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        "1 × bad JSON (corpus.jsonl line 9",
        "1 × passage without title and text (corpus.jsonl line 2", "(corpus.jsonl line 3: 'd0')",
        "1 × duplicate query id", "'d77'", "'high'", "1 × query in two splits (qrels/train.tsv line 7: 'q4')", "drop",
    ):  # fmt: skip
        assert part in message
    assert list((tmp_path / "out").iterdir()) == []


def test_dropping_gives_what_the_sound_rows_alone_would(tmp_path: Path) -> None:
    ingest(Ingest(dataset=str(write_beir(tmp_path / "sound"))), dataset=tmp_path / "a")
    folder = write_beir(tmp_path / "spoilt", **SPOILT)
    ingest(Ingest(dataset=str(folder), on_bad_rows="drop"), dataset=tmp_path / "b")
    sound, mended = Dataset(tmp_path / "a"), Dataset(tmp_path / "b")
    assert mended.queries.equals(sound.queries)
    assert mended.passages.take(np.arange(6)) == sound.passages.take(np.arange(6))
    assert len(mended.passages) == 6
    for name in ("query", "passage", "relevance"):
        assert np.array_equal(getattr(mended.qrels, name), getattr(sound.qrels, name))
    dropped = {k: v for k, v in mended.manifest.metrics.items() if k.startswith("dropped_")}
    assert dropped == dict.fromkeys(
        ("dropped_bad_json", "dropped_empty_passage", "dropped_duplicate_passage", "dropped_duplicate_query",
         "dropped_unknown_passage", "dropped_bad_relevance", "dropped_shared_query"), 1,
    )  # fmt: skip


def test_what_dropping_cannot_mend_is_refused_all_the_same(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d", corpus="")
    with pytest.raises(UserError, match="empty corpus"):
        ingest(Ingest(dataset=str(folder), on_bad_rows="drop"), dataset=tmp_path / "out" / "dataset")
    assert list((tmp_path / "out").iterdir()) == []


def large(folder: Path, dev: bool) -> Path:
    """60 training queries with two labels each, dev queries if asked for, 5 test queries."""
    parts = {"train": range(60), "test": range(60, 65), **({"dev": range(65, 75)} if dev else {})}
    return write_beir(
        folder,
        queries=lines([{"_id": f"q{i}", "text": f"what is number {i}"} for i in range(75)]),
        qrels={split: [(f"q{i}", f"d{(i + k) % 6}", 1) for i in rows for k in (0, 1)] for split, rows in parts.items()},
    )


def labelled(dataset: Path, *splits: str) -> dict[str, set[str]]:
    """Query id → ids of its passages; the row numbers in the file of labels must say the same."""
    data = Dataset(dataset)
    table, queries, passages = pq.read_table(dataset / "qrels.parquet"), data.queries["query_id"], data.passages.ids()
    assert table["query_id"].to_pylist() == queries.take(table["query"]).to_pylist()
    assert table["passage_id"].to_pylist() == passages.take(table["passage"]).to_pylist()
    passages_of: dict[str, set[str]] = {}
    for query, passage in zip(table["query_id"].to_pylist(), table["passage_id"].to_pylist(), strict=True):
        passages_of.setdefault(query, set()).add(passage)
    split_of = dict(zip(queries.to_pylist(), data.queries["split"].to_pylist(), strict=True))
    assert set(passages_of) == set(split_of)
    return {query: labels for query, labels in passages_of.items() if split_of[query] in splits}


@pytest.mark.parametrize("dev", [True, False])
def test_a_draw_keeps_so_many_training_queries_with_their_labels_and_dev_and_test(tmp_path: Path, dev: bool) -> None:
    settings = Ingest(dataset=str(large(tmp_path / "d", dev)))
    draws = {"all": {}, "drawn": {}, "again": {}, "other": {"seed": 1}}
    for name, more in draws.items():
        most = 0 if name == "all" else 20
        ingest(settings.model_copy(update={"max_train_queries": most, **more}), dataset=tmp_path / name)
    train = {name: labelled(tmp_path / name, "train") for name in draws}
    assert len(train["drawn"]) == 20 and train["drawn"].items() <= train["all"].items()
    assert train["other"].keys() != train["drawn"].keys() and len(train["other"]) == 20
    rest = [labelled(tmp_path / name, "dev", "test") for name in draws]
    assert rest[0] == rest[1] == rest[3] and len(rest[0]) > 5
    digests = {name: read_manifest(tmp_path / name).digest for name in draws}
    assert digests["drawn"] == digests["again"] and len(set(digests.values())) == 3
    metrics = {name: read_manifest(tmp_path / name).metrics for name in draws}
    before = metrics["all"]["queries_train"]
    assert metrics["drawn"]["queries_train_before_draw"] == before == metrics["all"]["queries_train_before_draw"]
    drawn = f" queries, drawn 20 of {before} for train"
    remarks = "" if dev else " · remarks in the log: 2"
    assert metrics["drawn"]["headline"].endswith(drawn + remarks)
    assert metrics["all"]["headline"].endswith(" queries" + remarks)


def test_a_draw_of_dev_queries_leaves_train_and_test_as_they_are(tmp_path: Path) -> None:
    settings = Ingest(dataset=str(large(tmp_path / "d", dev=True)))
    for name, most in (("all", 0), ("drawn", 4)):
        ingest(settings.model_copy(update={"max_dev_queries": most}), dataset=tmp_path / name)
    assert labelled(tmp_path / "all", "train", "test") == labelled(tmp_path / "drawn", "train", "test")
    every, some = (labelled(tmp_path / name, "dev") for name in ("all", "drawn"))
    assert len(every) == 10 and len(some) == 4 and some.items() <= every.items()
    metrics = read_manifest(tmp_path / "drawn").metrics
    assert metrics["queries_dev_before_draw"] == 10 and metrics["headline"].endswith(" queries, drawn 4 of 10 for dev")


def test_a_corpus_of_several_row_groups_keeps_its_order(tmp_path: Path) -> None:
    corpus = lines([{"_id": f"d{i}", "text": f"text {i}"} for i in range(25_003)])
    ingest(Ingest(dataset=str(write_beir(tmp_path / "d", corpus=corpus))), dataset=tmp_path / "out")
    passages = Dataset(tmp_path / "out").passages
    assert [len(group.ids) for group in passages.stream()] == [10_000, 10_000, 5_003]
    assert passages.take(np.array([25_002, 9_999, 10_000])).texts == ["text 25002", "text 9999", "text 10000"]


def test_a_setting_that_chooses_by_dev_queries_needs_some(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d", qrels={**QRELS, "dev": [("q3", "d3", 0)]})
    with pytest.raises(
        UserError, match=r"no dev query with a relevant passage in the corpus, and train_gnn\.keep = best chooses"
    ):
        ingest(Ingest(dataset=str(folder), chosen_on_dev=("train_gnn.keep",)), dataset=tmp_path / "out" / "dataset")
    assert list((tmp_path / "out").iterdir()) == []
    ingest(Ingest(dataset=str(folder)), dataset=tmp_path / "without")
    ingest(
        Ingest(dataset=str(write_beir(tmp_path / "with")), chosen_on_dev=("train_gnn.keep",)), dataset=tmp_path / "dev"
    )


def test_added_queries_are_trained_on_besides_the_draw(tmp_path: Path) -> None:
    label = AddedLabel("new", "quite another need", "d0")
    write_labels(tmp_path / "labels.jsonl", [label])
    settings = Ingest(dataset=str(large(tmp_path / "d", dev=True)), max_trained_queries=20)
    ingest(settings.model_copy(update={"labels": str(tmp_path / "labels.jsonl")}), dataset=tmp_path / "out")
    data = Dataset(tmp_path / "out")
    assert len(data.trained) == 21 and len(data.query_rows("train")) == 61
    assert "new" in data.queries["query_id"].take(data.trained).to_pylist()


def test_a_draw_of_one_cannot_train(tmp_path: Path) -> None:
    settings = Ingest(dataset=str(large(tmp_path / "d", dev=True)), max_trained_queries=1)
    with pytest.raises(UserError, match="max_trained_queries leaves 1 different training queries"):
        ingest(settings, dataset=tmp_path / "out")


def test_dev_labels_of_missing_passages_choose_no_epoch(tmp_path: Path) -> None:
    qrels = {**QRELS, "dev": [("q3", "gone", 1)]}
    folder = str(write_beir(tmp_path / "d", qrels=qrels))
    settings = Ingest(dataset=folder, chosen_on_dev=("train_gnn.keep",), on_bad_rows="drop")
    with pytest.raises(UserError, match="no dev query with a relevant passage in the corpus"):
        ingest(settings, dataset=tmp_path / "out")
    ingest(settings.model_copy(update={"chosen_on_dev": ()}), dataset=tmp_path / "control")
