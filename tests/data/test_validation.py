"""Everything that can be wrong with a data set is found, placed, and counted; nothing else is."""

from pathlib import Path

import pytest
from beir_folder import PASSAGES, QRELS, QUERIES, lines, write_beir

from gnn_encoder.data import check
from gnn_encoder.data.validation import Kind, Problems, refusal
from gnn_encoder.settings import Ingest


def problems_of(folder: Path) -> dict[Kind, tuple[int, list[str]]]:
    return {p.kind: (p.count, p.places) for p in check(Ingest(dataset=str(folder))).problems}


def test_a_sound_folder_has_none(tmp_path: Path) -> None:
    report = check(Ingest(dataset=str(write_beir(tmp_path / "d"))))
    assert report.problems == [] and not report.fatal
    assert report.queries == {"train": 3, "dev": 1, "test": 1}
    assert report.labels == {"train": 3, "dev": 1, "test": 1}
    assert report.without_positive == {"train": 1, "dev": 0, "test": 0}
    assert report.isolated_passages == 2
    assert report.passage_words == 4.0 and report.query_words == 4.0
    assert report.remarks == ["1 queries stand in no qrels and were left out"]


CORPUS = lines(PASSAGES)
CASES = {
    "duplicate passage": (
        {"corpus": CORPUS + '{"_id": "d1", "text": "again"}\n'}, Kind.DUPLICATE_PASSAGE, "corpus.jsonl line 7: 'd1'",
    ),
    "empty passage": (
        {"corpus": CORPUS + '\n{"_id": "d7", "text": " \\n"}\n'}, Kind.EMPTY_PASSAGE, "corpus.jsonl line 8: 'd7'",
    ),
    "bad JSON": (
        {"corpus": CORPUS + '{"_id": "d7", "text"\n'}, Kind.BAD_JSON,
        "corpus.jsonl line 7: Expecting ':' delimiter: line 1 column 21 (char 20)",
    ),
    "no object": ({"corpus": CORPUS + "[]\n"}, Kind.BAD_ROW, "corpus.jsonl line 7: not a JSON object"),
    "no text": (
        {"corpus": CORPUS + '{"_id": "d7"}'}, Kind.BAD_ROW, 'corpus.jsonl line 7: "text" is missing or not a string',
    ),
    "half a surrogate pair": (
        {"corpus": CORPUS + '{"_id": "d7", "text": "\\ud800"}'}, Kind.ENCODING,
        "corpus.jsonl line 7: half a surrogate pair, U+D800",
    ),
    "duplicate query": (
        {"queries": lines([*QUERIES, QUERIES[0]])}, Kind.DUPLICATE_QUERY, "queries.jsonl line 7: 'q0'",
    ),
    "empty query": (
        {"queries": lines([*QUERIES, {"_id": "q7", "text": ""}])}, Kind.EMPTY_QUERY, "queries.jsonl line 7: 'q7'",
    ),
    "unknown query": (
        {"qrels": {**QRELS, "dev": [("q99", "d1", 1)]}}, Kind.UNKNOWN_QUERY, "qrels/dev.tsv line 2: 'q99'",
    ),
    "unknown passage": (
        {"qrels": {**QRELS, "dev": [("q3", "d99", 1)]}}, Kind.UNKNOWN_PASSAGE, "qrels/dev.tsv line 2: 'd99'",
    ),
    "relevance": (
        {"qrels": {**QRELS, "dev": [("q3", "d3", "0.5")]}}, Kind.BAD_RELEVANCE, "qrels/dev.tsv line 2: '0.5'",
    ),
    "columns": (
        {"qrels": {**QRELS, "dev": [("q3", "d3")]}}, Kind.BAD_ROW, "qrels/dev.tsv line 2: 2 columns instead of 3",
    ),
    "shared query": (
        {"qrels": {**QRELS, "train": [*QRELS["train"], ("q4", "d1", 1)]}}, Kind.SHARED_QUERY,
        "qrels/train.tsv line 5: 'q4'",
    ),
    "empty corpus": ({"corpus": ""}, Kind.EMPTY_CORPUS, None),
    "no training": ({"qrels": {"test": QRELS["test"]}}, Kind.NO_TRAINING, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_found_where_it_is(tmp_path: Path, name: str) -> None:
    spoilt, kind, place = CASES[name]
    found = problems_of(write_beir(tmp_path / "d", **spoilt))
    if place is not None:
        assert found == {kind: (1, [place])}
    else:
        assert kind in found


def test_bytes_that_are_not_utf8_name_their_line(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d")
    data = (folder / "corpus.jsonl").read_bytes() + b'{"_id": "d7", "text": "caf\xe9"}\n'
    (folder / "corpus.jsonl").write_bytes(data)
    assert problems_of(folder) == {Kind.ENCODING: (1, ["corpus.jsonl line 7: byte 0xe9 at 27"])}


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels/train.tsv"])
def test_a_missing_file_is_fatal_and_the_only_complaint(tmp_path: Path, name: str) -> None:
    folder = write_beir(tmp_path / "d", qrels={"train": QRELS["train"]})
    (folder / name).unlink()
    report = check(Ingest(dataset=str(folder)))
    assert report.fatal
    assert [p.kind for p in report.problems] == [Kind.MISSING_FILE]
    assert str(folder / name) in report.problems[0].places[0]


def test_a_damaged_gzip_is_fatal(tmp_path: Path) -> None:
    import gzip

    folder = write_beir(tmp_path / "d")
    text = (folder / "corpus.jsonl").read_bytes()
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(text)[:-20])
    assert Kind.UNREADABLE in problems_of(folder)


def test_the_same_words_in_train_and_test_cost_the_training_query(tmp_path: Path) -> None:
    queries = [*QUERIES, {"_id": "q7", "text": " What IS number 4"}]
    folder = write_beir(
        tmp_path / "d", queries=lines(queries), qrels={**QRELS, "train": [*QRELS["train"], ("q7", "d5", 1)]}
    )
    report = check(Ingest(dataset=str(folder)))
    assert report.problems == []
    assert report.queries == {"train": 3, "dev": 1, "test": 1}
    assert report.labels == {"train": 3, "dev": 1, "test": 1}
    assert any(remark.startswith("1 queries have the words of one in a later split") for remark in report.remarks)


def test_only_the_first_places_are_kept_and_all_are_counted() -> None:
    problems = Problems()
    for line in range(1, 1001):
        problems.add(Kind.EMPTY_PASSAGE, "corpus.jsonl", line, "a\nb" * 100)
    problems.add(Kind.BAD_JSON, "queries.jsonl", 3)
    text = refusal("my data", problems.all())
    assert "1,000 × empty passage text (corpus.jsonl line 1: a b" in text and "line 4" not in text
    assert "1 × bad JSON (queries.jsonl line 3)" in text and "on_bad_rows=drop" in text
    assert "\n" not in text and len(text) < 600
    problems.add(Kind.MISSING_FILE, "corpus.jsonl")
    assert "on_bad_rows" not in refusal("my data", problems.all())
