"""Everything that can be wrong with a data set is found, placed, and counted; nothing else is."""

import gzip
import os
from pathlib import Path

import pytest
from beir_folder import PASSAGES, QRELS, QUERIES, check, ingested, lines, write_beir

from gnn_encoder.data.validation import Kind, Problems, refusal
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest


def problems_of(folder: Path, needs: str = "labels") -> dict[Kind, tuple[int, list[str]]]:
    return {p.kind: (p.count, p.places) for p in check(Ingest(dataset=str(folder), needs=needs)).problems}


def test_a_sound_folder_has_none(tmp_path: Path) -> None:
    report = check(Ingest(dataset=str(write_beir(tmp_path / "d"))))
    assert report.problems == [] and not report.fatal
    assert report.queries == {"train": 3, "dev": 1, "test": 1}
    assert report.labels == {"train": 3, "dev": 1, "test": 1}
    assert report.without_positive == {"train": 1, "dev": 0, "test": 0}
    assert report.isolated_passages == 2
    assert report.shared_labels == {"train": 0.0, "dev": 0.0, "test": 0.0}
    assert report.passage_words == 4.0 and report.query_words == 4.0
    assert report.remarks == ["1 queries are in no qrels and were left out"]


def test_words_of_scripts_without_spaces_are_counted(tmp_path: Path) -> None:
    corpus = [{"_id": f"d{i}", "text": "河流是自然形成的水流"} for i in range(6)]
    queries = [{"_id": f"q{i}", "text": f"什么是河流{i}"} for i in range(6)]
    report = check(Ingest(dataset=str(write_beir(tmp_path / "d", lines(corpus), lines(queries)))))
    assert report.passage_words == 6.0 and report.query_words == 3.0  # a run of characters, and each two of them


def test_labels_that_the_graph_can_help_with_are_counted(tmp_path: Path) -> None:
    qrels = {
        "train": [("q0", "d0", 1), ("q1", "d1", 0), ("q1", "d2", 1), ("q2", "d2", 1)],
        "dev": [("q3", "d0", 1), ("q3", "d2", 0)],  # the second is no positive
        "test": [("q4", "d0", 2), ("q4", "d1", 1), ("q4", "d2", 1), ("q4", "d3", 1)],  # d1 is negative in train
    }
    report = check(Ingest(dataset=str(write_beir(tmp_path / "d", qrels=qrels))))
    assert report.shared_labels == {"train": 2 / 3, "dev": 1.0, "test": 0.5}


def test_a_label_that_only_a_twin_shares_is_not_counted(tmp_path: Path) -> None:
    """q1 and q2 leave the graph together, so none of them finds the other at their passage; q3 of dev finds both."""
    qrels = {"train": [("q0", "d0", 1), ("q1", "d2", 1), ("q2", "d2", 1)], "dev": [("q3", "d2", 1)]}
    for second, share in (("What is number  1", 0.0), ("what is number 2", 2 / 3)):
        queries = [{**query, "text": second} if query["_id"] == "q2" else query for query in QUERIES]
        folder = write_beir(tmp_path / str(share), queries=lines(queries), qrels={**qrels, "test": [("q4", "d0", 1)]})
        report = check(Ingest(dataset=str(folder)))
        assert report.shared_labels == {"train": share, "dev": 1.0, "test": 1.0}


def test_twins_alone_cannot_train(tmp_path: Path) -> None:
    queries = [{**query, "text": "what is number 0"} if query["_id"] == "q1" else query for query in QUERIES]
    assert Kind.NO_TRAINING in problems_of(write_beir(tmp_path / "twins", queries=lines(queries)))
    assert Kind.NO_TRAINING not in problems_of(write_beir(tmp_path / "control"))


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
    "null first": ({"corpus": "null\n" + CORPUS}, Kind.BAD_ROW, "corpus.jsonl line 1: not a JSON object"),
    "deep passage": (
        {"corpus": CORPUS + "[" * 5000}, Kind.BAD_JSON,
        "corpus.jsonl line 7: maximum recursion depth exceeded while decoding a JSON array from a unicode stri",
    ),
    "deep query": (
        {"queries": lines(QUERIES) + '{"a":' * 5000}, Kind.BAD_JSON,
        "queries.jsonl line 7: maximum recursion depth exceeded while decoding a JSON object from a unicode str",
    ),
    "long integer": (
        {"queries": lines(QUERIES) + "9" * 6000}, Kind.BAD_JSON,
        "queries.jsonl line 7: Exceeds the limit (4300 digits) for integer string conversion: value has 6000 di",
    ),
    "no text": (
        {"corpus": CORPUS + '{"_id": "d7"}'}, Kind.BAD_ROW, 'corpus.jsonl line 7: "text" is missing or not a string',
    ),
    "invisible passage": (
        {"corpus": CORPUS + '{"_id": "d7", "text": "\u200b \ufeff\u2060"}\n'}, Kind.EMPTY_PASSAGE,
        "corpus.jsonl line 7: 'd7'",
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
    "high relevance": (
        {"qrels": {**QRELS, "dev": [("q3", "d3", 1001)]}}, Kind.BAD_RELEVANCE, "qrels/dev.tsv line 2: '1001'",
    ),
    "low relevance": (
        {"qrels": {**QRELS, "dev": [("q3", "d3", -1001)]}}, Kind.BAD_RELEVANCE, "qrels/dev.tsv line 2: '-1001'",
    ),
    "relevance of more than 32 bits": (
        {"qrels": {**QRELS, "dev": [("q3", "d3", "9" * 5000)]}}, Kind.BAD_RELEVANCE,
        f"qrels/dev.tsv line 2: '{'9' * 79}",
    ),
    "relevance with an underscore": (
        {"qrels": {**QRELS, "dev": [("q3", "d3", "1_0")]}}, Kind.BAD_RELEVANCE, "qrels/dev.tsv line 2: '1_0'",
    ),
    "relevance in other digits": (
        {"qrels": {**QRELS, "dev": [("q3", "d3", "\u0661")]}}, Kind.BAD_RELEVANCE, "qrels/dev.tsv line 2: '\u0661'",
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
    "one training query": ({"qrels": {**QRELS, "train": [("q0", "d0", 1), ("q0", "d1", 1)]}}, Kind.NO_TRAINING, None),
}  # fmt: skip


CONTRADICTING = {
    "same file": ({**QRELS, "test": [("q4", "d4", 0), ("q4", "d4", 2)]}, "test", 3, "2, but 0 in line 2"),
    "both relevant": ({**QRELS, "dev": [("q3", "d3", 1), ("q3", "d3", 3)]}, "dev", 3, "3, but 1 in line 2"),
}


@pytest.mark.parametrize("name", CONTRADICTING)
def test_labels_that_contradict_are_refused_or_none_of_them_used(tmp_path: Path, name: str) -> None:
    qrels, split, line, detail = CONTRADICTING[name]
    query, passage, _ = qrels[split][0]
    folder = write_beir(tmp_path / "d", qrels=qrels)
    described = f"qrels/{split}.tsv line {line}: {detail}: {query!r}, {passage!r}"
    assert problems_of(folder) == {Kind.CONTRADICTION: (1, [described])}
    report = check(Ingest(dataset=str(folder), on_bad_rows="drop"))
    assert report.labels[split] == 0 and report.queries[split] == report.without_positive[split] == 1


def test_of_a_pair_with_three_labels_each_other_one_is_named(tmp_path: Path) -> None:
    rows = [("q4", "d4", 0), ("q4", "d4", 2), ("q4", "d4", 0), ("q4", "d4", 1), ("q4", "d5", 1), ("q4", "d5", 1)]
    report = check(Ingest(dataset=str(write_beir(tmp_path / "d", qrels={**QRELS, "test": rows}))))
    (problem,) = report.problems
    assert (problem.kind, problem.count) == (Kind.CONTRADICTION, 2)
    assert [line.partition(":")[0] for line in problem.places] == ["qrels/test.tsv line 3", "qrels/test.tsv line 5"]
    assert report.labels["test"] == 1  # d5 is labelled twice alike, which is no problem
    assert "1 labels repeat an earlier one of the same query and passage and were left out" in report.remarks


def test_labels_that_contradict_in_two_splits_do_not_make_a_test_query_train(tmp_path: Path) -> None:
    qrels = {**QRELS, "train": [*QRELS["train"], ("q4", "d4", 0), ("q4", "d5", 1)]}
    folder = write_beir(tmp_path / "d", qrels=qrels)
    assert problems_of(folder) == {
        Kind.CONTRADICTION: (1, ["qrels/test.tsv line 2: 1, but 0 in qrels/train.tsv line 5: 'q4', 'd4'"]),
        Kind.SHARED_QUERY: (1, ["qrels/train.tsv line 5: 'q4'"]),
    }
    report = check(Ingest(dataset=str(folder), on_bad_rows="drop"))
    assert report.queries == {"train": 3, "dev": 1, "test": 1} and report.labels["train"] == 3


@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_found_where_it_is(tmp_path: Path, name: str) -> None:
    spoilt, kind, described = CASES[name]
    problems = problems_of(write_beir(tmp_path / "d", **spoilt))
    if described is not None:
        assert problems == {kind: (1, [described])}
    else:
        assert kind in problems


def test_the_bounds_of_relevance_are_taken(tmp_path: Path) -> None:
    qrels = {**QRELS, "train": [("q0", "d0", 1000), ("q1", "d1", "+1 "), ("q2", "d2", -1000)]}
    assert problems_of(write_beir(tmp_path / "d", qrels=qrels)) == {}


def test_null_at_the_start_of_a_later_block_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnn_encoder.data.lines.BLOCK_BYTES", len(CORPUS))
    folder = write_beir(tmp_path / "d", corpus=CORPUS + "null\n")
    assert problems_of(folder) == {Kind.BAD_ROW: (1, ["corpus.jsonl line 7: not a JSON object"])}


@pytest.mark.parametrize("kind", ["link", "pipe", "device", "folder"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    folder = write_beir(tmp_path / "d")
    path = folder / "qrels" / "test.tsv"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"link": "nowhere", "device": "/dev/null"}[kind])
    with pytest.raises(UserError, match=r"qrels/test.tsv is not a regular file"):
        check(Ingest(dataset=str(folder)))


def test_a_file_beside_its_gzip_is_refused(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d")
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(CORPUS.encode()))
    with pytest.raises(UserError, match=r"corpus.jsonl and corpus.jsonl.gz both exist: keep one"):
        check(Ingest(dataset=str(folder)))


def test_a_line_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_beir(tmp_path / "d", corpus=CORPUS + '{"_id": "d7", "text": "' + "x" * 1000)
    assert problems_of(folder).keys() == {Kind.BAD_JSON}
    for name, value in (("BLOCK_BYTES", 100), ("LONGEST_LINE", 500)):
        monkeypatch.setattr(f"gnn_encoder.data.lines.{name}", value)
    assert problems_of(folder)[Kind.UNREADABLE] == (1, ["corpus.jsonl line 7: a line of more than 500 bytes"])


@pytest.mark.parametrize("size", [1, 50, 1 << 22])
def test_byte_order_marks_between_the_parts_of_a_file_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("gnn_encoder.data.lines.BLOCK_BYTES", size)
    folder = write_beir(tmp_path / "d")
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv"):
        text = (folder / name).read_text()
        (folder / name).write_text("\n".join("\ufeff" + line for line in text.split("\n")), encoding="utf-8")
    assert problems_of(folder) == {}


def test_the_report_is_of_the_rows_that_drop_keeps(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d", corpus=CORPUS + '{"_id": "d1", "text": "a longer text of the same id"}\n')
    settings = Ingest(dataset=str(folder), on_bad_rows="drop")
    _, kept = ingested(settings, tmp_path / "out")
    assert check(settings) == kept
    assert (kept.passages, kept.passage_words) == (6, 4.0)


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
    folder = write_beir(tmp_path / "d")
    text = (folder / "corpus.jsonl").read_bytes()
    (folder / "corpus.jsonl").unlink()
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(text)[:-20])
    assert Kind.UNREADABLE in problems_of(folder)


def test_only_the_first_places_are_kept_and_all_are_counted() -> None:
    problems = Problems()
    for line in range(1, 1001):
        problems.add(Kind.EMPTY_PASSAGE, "corpus.jsonl", line, "a\nb" * 100)
    problems.add(Kind.BAD_JSON, "queries.jsonl", 3)
    problems.add(Kind.BAD_ROW, "queries.jsonl", 1, "a\x1b[31mred\u202e\x9b")
    text = refusal("my data", problems.all())
    assert "1,000 × passage without title and text (corpus.jsonl line 1: a b" in text and "line 4" not in text
    assert "1 × bad JSON (queries.jsonl line 3)" in text and "on_bad_rows=drop" in text
    assert text.isprintable() and len(text) < 600
    problems.add(Kind.MISSING_FILE, "corpus.jsonl")
    assert "on_bad_rows" not in refusal("my data", problems.all())


def test_a_test_query_in_another_form_of_its_characters_leaks_nowhere(tmp_path: Path) -> None:
    """A byte order mark and the like are left out by tokenizers, so these training queries would be the test query."""
    forms = ["{}\u200b", "\ufeff{}", "{}\u200e", "what is num\u00adber 4", "what is number \uff14"]
    forms += [" What IS  number 4", "{} "]
    texts = ["what is number 0", "what is number 1", "what is number 4", "what is number 3"]
    texts += [form.format("what is number 4") for form in forms]
    rows = [(f"q{i}", f"d{i % 6}", 1) for i in range(len(texts))]
    folder = write_beir(
        tmp_path / "d",
        queries=lines([{"_id": f"q{i}", "text": text} for i, text in enumerate(texts)]),
        qrels={"train": [*rows[:2], *rows[4:]], "dev": [rows[3]], "test": [rows[2]]},
    )
    report = check(Ingest(dataset=str(folder)))
    assert report.queries == {"train": 2, "dev": 1, "test": 1}
    assert any(remark.startswith(f"{len(forms)} queries have the words of one in a later") for remark in report.remarks)


def test_what_only_a_step_after_hours_would_find_is_found_at_once(tmp_path: Path) -> None:
    every = [(query, f"d{i}", 1) for query in ("q0", "q1") for i in range(6)]
    problems = problems_of(write_beir(tmp_path / "all", qrels={**QRELS, "train": every}))
    assert set(problems) == {Kind.NO_NEGATIVE}
    assert not problems_of(write_beir(tmp_path / "control", qrels={**QRELS, "train": every[1:]}))
    unlabelled = {**QRELS, "dev": [("q3", "d3", 0)], "test": [("q4", "d4", 0)]}
    assert set(problems_of(write_beir(tmp_path / "dark", qrels=unlabelled))) == {Kind.NO_EVALUATION}
    one = {**unlabelled, "dev": QRELS["dev"]}
    assert not problems_of(write_beir(tmp_path / "dev", qrels=one))
    missing = {**unlabelled, "dev": [("q3", "gone", 2)]}  # nothing can be found
    assert set(problems_of(write_beir(tmp_path / "gone", qrels=missing))) == {Kind.UNKNOWN_PASSAGE, Kind.NO_EVALUATION}


def test_a_climb_needs_no_labelled_training_query(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "test", qrels={"test": QRELS["test"]})
    assert not problems_of(folder, "climb")
    assert set(problems_of(folder)) == {Kind.NO_TRAINING}, "the control: a preset trains"
    none = write_beir(tmp_path / "none", qrels={"test": [("q4", "d4", 0)]})
    assert set(problems_of(none, "climb")) == {Kind.NO_EVALUATION}
    one = write_beir(tmp_path / "one", qrels={**QRELS, "train": QRELS["train"][:1]})
    assert set(problems_of(one, "climb")) == {Kind.NO_TRAINING}
    every = [(query, f"d{i}", 1) for query in ("q0", "q1") for i in range(6)]
    full = write_beir(tmp_path / "all", qrels={**QRELS, "train": every})
    assert set(problems_of(full, "climb")) == {Kind.NO_NEGATIVE}


def test_a_corpus_of_copies_has_nothing_to_tell_apart(tmp_path: Path) -> None:
    texts = ["one  text", "ONE\u200b text"]
    copies = lines([{"_id": f"d{i}", "title": "", "text": texts[i % 2]} for i in range(6)])
    folder = write_beir(tmp_path / "copies", corpus=copies)
    assert set(problems_of(folder)) == {Kind.NO_NEGATIVE}
    with pytest.raises(UserError, match="nothing to tell apart"):
        ingested(Ingest(dataset=str(folder)), tmp_path / "out")
    alone = lines([{"_id": f"d{i}", "title": "", "text": texts[0] if i else "another"} for i in range(6)])
    assert not problems_of(write_beir(tmp_path / "control", corpus=alone))


def test_the_query_itself_is_nothing_to_tell_apart(tmp_path: Path) -> None:
    corpus = lines([{"_id": "q0", "text": "a"}, {"_id": "q1", "text": "b"}, {"_id": "d", "text": "c"}])
    queries = lines([{"_id": "q0", "text": "a"}, {"_id": "q1", "text": "b"}, {"_id": "q4", "text": "d"}])
    both = [("q0", "q1", 1), ("q0", "d", 1), ("q1", "q0", 1), ("q1", "d", 1)]
    qrels = {"train": both, "dev": [], "test": [("q4", "d", 1)]}
    problems = problems_of(write_beir(tmp_path / "d", corpus=corpus, queries=queries, qrels=qrels))
    assert set(problems) == {Kind.NO_NEGATIVE}
    problems = problems_of(
        write_beir(tmp_path / "c", corpus=corpus, queries=queries, qrels={**qrels, "train": both[1:]})
    )
    assert not problems


def test_a_draw_that_is_too_small_is_named(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d")
    with pytest.raises(UserError, match=r"^ingest\.max_trained_queries leaves 1 different training queries"):
        check(Ingest(dataset=str(folder), max_trained_queries=1))
    assert not check(Ingest(dataset=str(folder), max_trained_queries=2)).problems


def test_a_query_after_an_empty_row_of_its_id_is_kept(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "d", queries=lines([{"_id": "q0", "text": " "}, *QUERIES]))
    report = check(Ingest(dataset=str(folder)))
    assert {problem.kind: problem.count for problem in report.problems} == {Kind.EMPTY_QUERY: 1}
    assert report.queries == {"train": 3, "dev": 1, "test": 1}


def test_the_first_place_of_a_kind_is_the_first_in_the_order_of_the_files(tmp_path: Path) -> None:
    half = '{"_id": "x", "text": "\\ud800"}\n'
    folder = write_beir(tmp_path / "d", queries=lines(QUERIES) + half)
    for name in ("queries.jsonl", "qrels/train.tsv"):
        (folder / name).write_bytes((folder / name).read_bytes() + b"\xff\n")
    places = [
        "queries.jsonl line 7: half a surrogate pair, U+D800",
        "queries.jsonl line 8: byte 0xff at 1",
        "qrels/train.tsv line 5: byte 0xff at 1",
    ]
    assert problems_of(folder) == {Kind.ENCODING: (3, places)}


def test_data_with_test_queries_alone_can_be_measured_but_not_learnt_from(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "data", qrels={"test": QRELS["test"]})
    assert Kind.NO_TRAINING in problems_of(folder)
    for needs in ("judged", "passages"):
        report = check(Ingest(dataset=str(folder), needs=needs))
        assert not report.problems and report.findable["test"] == len(QRELS["test"])
    for path in (folder / "qrels").iterdir():
        path.write_text("query-id\tcorpus-id\tscore\n")
    assert set(problems_of(folder, "judged")) == {Kind.NO_EVALUATION}
