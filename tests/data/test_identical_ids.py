"""Queries that have the id of a passage: which passage is left out of their hits, and what becomes of their labels."""

import json
from pathlib import Path

import numpy as np
from beir_folder import PASSAGES, check, ingested, lines, write_beir

from gnn_encoder.artifacts import Dataset
from gnn_encoder.settings.foundation import Ingest

REMARK = (
    "queries have the id of a passage, which is left out of their hits, as by BEIR's ignore_identical_ids: set "
    "ingest.ignore_identical_ids=false if the ids are equal by chance"
)


def written(folder: Path, **settings: object) -> tuple[Dataset, list[str]]:
    data, report = ingested(Ingest(dataset=str(folder), **settings), folder / "written")  # type: ignore[arg-type]
    return data, report.remarks


def pairs(data: Dataset) -> dict[str, str]:
    ids, names = data.queries.column("query_id").to_pylist(), data.passages.ids().to_pylist()
    return {ids[query]: names[row] for query, row in enumerate(data.identical.tolist()) if row >= 0}


def folder_of(path: Path, texts: dict[str, str], qrels: dict[str, list[tuple]]) -> Path:
    """Six passages d0 to d5, and queries with the given ids and texts."""
    queries = [{"_id": name, "text": text} for name, text in texts.items()]
    return write_beir(path, queries=lines(queries), qrels=qrels)


QRELS = {
    "train": [("d0", "d1", 1), ("d1", "d2", 1), ("q2", "d2", 1)],
    "dev": [("d3", "d4", 1)],
    "test": [("d5", "d0", 1)],
}
TEXTS = {name: f"question of {name}" for name in ("d0", "d1", "q2", "d3", "d5")}


def test_every_passage_with_the_id_of_a_query_is_left_out_and_counted(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", TEXTS, QRELS)
    data, remarks = written(folder)
    assert pairs(data) == {name: name for name in ("d0", "d1", "d3", "d5")}
    assert f"4 {REMARK}" in remarks == check(Ingest(dataset=str(folder))).remarks
    assert (data.path / "identical.parquet").is_file()


def test_the_rule_can_be_switched_off(tmp_path: Path) -> None:
    data, remarks = written(folder_of(tmp_path / "a", TEXTS, QRELS), ignore_identical_ids=False)
    assert pairs(data) == {} and not (data.path / "identical.parquet").exists()
    assert "4 queries have the id of a passage, which may be among their hits" in remarks


def test_data_without_equal_ids_are_as_before(tmp_path: Path) -> None:
    data, remarks = written(write_beir(tmp_path / "a"))
    assert (data.identical == -1).all() and len(data.identical) == len(data.queries)
    assert not any("id of a passage" in remark for remark in remarks)
    assert not (data.path / "identical.parquet").exists() and not (data.path / "missing.parquet").exists()


def test_queries_and_passages_that_are_both_numbered_keep_their_labelled_passages(tmp_path: Path) -> None:
    """Query d3 is answered by passage d3, a text of its own: BEIR's rule would hide the right hit."""
    qrels = {
        **QRELS,
        "train": [("d0", "d0", 1), ("d1", "d2", 1), ("q2", "d2", 1)],
        "dev": [("d3", "d3", 1), ("d3", "d4", 1)],
    }
    data, remarks = written(folder_of(tmp_path / "a", TEXTS, qrels))
    assert pairs(data) == {"d1": "d1", "d5": "d5"}
    assert f"2 {REMARK}" in remarks
    assert "2 labels name the passage with the query's id and other words: it stays a hit" in remarks
    assert len(data.split_qrels("dev").query) == 2 == len(data.judged("dev").query)


def test_a_query_that_is_labelled_with_itself_does_not_find_itself(tmp_path: Path) -> None:
    """d3 has the text, d5 title and text of its passage, in other case and with an invisible character."""
    texts = TEXTS | {"d0": PASSAGES[0]["text"], "d3": "TEXT of pass\u00adage 3", "d5": "title 5 text of  passage 5"}
    qrels = {
        "train": [("d0", "d0", 1), ("d0", "d1", 1), ("d1", "d2", 1), ("q2", "d2", 1)],
        "dev": [("d3", "d3", 2), ("d3", "d4", 1)],
        "test": [("d5", "d5", 1)],
    }
    data, remarks = written(folder_of(tmp_path / "a", texts, qrels))
    assert pairs(data) == {name: name for name in ("d0", "d1", "d3", "d5")}
    assert "2 labels of dev or test name the query itself: they count as missed" in remarks
    assert "1 labels of train name the query itself and were left out" in remarks
    names = data.judged_ids().to_pylist()
    assert names[:6] == [f"d{i}" for i in range(6)] and sorted(names[6:]) == ["d3", "d5"]
    for split, identical, others in (
        ("train", [], ["d1", "d2", "d2"]),
        ("dev", [("d3", 2)], ["d4"]),
        ("test", [("d5", 1)], []),
    ):
        judged, m = data.judged(split), len(data.passages)
        assert [names[row] for row in judged.passage if row < m] == others
        assert [(names[p], r) for p, r in zip(judged.passage, judged.relevance, strict=True) if p >= m] == identical
        assert np.isin(data.split_qrels(split).passage, np.arange(m)).all()


def test_a_label_of_relevance_0_does_not_keep_the_passage(tmp_path: Path) -> None:
    qrels = {**QRELS, "dev": [("d3", "d3", 0), ("d3", "d4", 1)]}
    assert "d3" in pairs(written(folder_of(tmp_path / "a", TEXTS, qrels))[0])


def test_only_queries_that_are_kept_count(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", {**TEXTS, "d4": "in no qrels"}, QRELS)
    data, remarks = written(folder)
    assert f"4 {REMARK}" in remarks and "d4" not in pairs(data)
    assert json.loads((folder / "queries.jsonl").read_text().splitlines()[-1])["_id"] == "d4", "the control"


def write_numbered(folder: Path, texts: dict[str, str]) -> Path:
    """MS MARCO's layout, whose passages and queries are both numbered; `texts`: of queries."""
    folder.mkdir()
    (folder / "collection.tsv").write_text("".join(f"{i}\ttext of passage {i}\n" for i in range(8)))
    for split, numbers in {"train": "123", "dev": "45", "test": "6"}.items():
        (folder / f"queries.{split}.tsv").write_text("".join(f"{i}\t{texts.get(i, f'what is {i}')}\n" for i in numbers))
        (folder / f"qrels.{split}.tsv").write_text("".join(f"{i} 0 {int(i) + 1} 1\n" for i in numbers))
    return folder


def test_outside_beir_the_words_must_be_equal_too(tmp_path: Path) -> None:
    data, remarks = written(write_numbered(tmp_path / "numbers", {}))
    assert pairs(data) == {} and not any("id of a passage" in remark for remark in remarks)
    same = {"2": "Text of  passage 2", "6": "text of passage\u200b 6", "3": "text of passage 4"}
    data, remarks = written(write_numbered(tmp_path / "same", same))
    assert pairs(data) == {"2": "2", "6": "6"}
    assert f"2 {REMARK}" in remarks
