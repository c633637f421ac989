"""A text that is forgotten is seen in every kind of file, and its lines alone leave the file."""

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forgotten_texts import PASSAGE, QUERY, with_text

from gnn_encoder.engines import forgotten_files
from gnn_encoder.engines.forgotten_files import Traces, renewed
from gnn_encoder.errors import UserError
from gnn_encoder.inference.answers import JOURNAL
from gnn_encoder.judging.grading import Judgement
from gnn_encoder.judging.people import Act, PeoplesFile
from gnn_encoder.judging.pool import POOL, Pool, PooledPassage, as_json, pooled, write_records


def test_a_text_is_seen_as_json_and_html_write_it(tmp_path: Path) -> None:
    text = 'a <b> "quoted" ü\nline' + "x" * 200
    cut, file = text[:150], tmp_path / "file"

    def seen(content: str, *texts: str) -> bool:
        file.write_text(content)
        return Traces(texts or [text]).in_file(file)

    for form in (cut, json.dumps(cut), json.dumps(cut, ensure_ascii=False), json.dumps({"t": cut}), repr(cut)):
        assert seen(f"before {form} after")
    assert seen("a &lt;b&gt; &quot;quoted&quot; \xfc\nline" + "x" * 100)
    assert not seen(text[:90]) and not seen("anything", "", " ")
    long = pa.array([[text]], pa.list_(pa.large_string()))
    for column in (pa.array([text]), long, pa.array([text]).dictionary_encode()):
        pq.write_table(pa.table({"number": [1], "text": column}), tmp_path / "t.parquet")
        assert Traces([text]).in_file(tmp_path / "t.parquet") and not Traces(["other"]).in_file(tmp_path / "t.parquet")
    for name in ("no.gz", "no.parquet"):
        (tmp_path / name).write_text(text)
        assert Traces([text]).in_file(tmp_path / name), "a name alone makes no archive"


def test_a_short_text_takes_no_other_text_with_it(tmp_path: Path) -> None:
    traces = Traces(["what is this", f"{'w' * 120} end"])
    gone = ["What is  this", "7\twhat is this", 'q,"what is this",3', json.dumps({"a": [{"query": "what is this"}]})]
    gone.append(json.dumps({"text": f"{'w' * 120} end"}))
    kept = ["what is this river", json.dumps({"query": "what is this river"}), f"{'w' * 120} other"]
    (tmp_path / "file").write_text("\n".join([*gone, *kept]))
    (tmp_path / "file").chmod(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert renewed(tmp_path / "link", tmp_path, traces) and not renewed(tmp_path / "link", tmp_path, traces)
    assert (tmp_path / "file").read_text().splitlines() == kept and (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert traces.in_file(tmp_path / "file", short=True), "the record lists it"
    (tmp_path / "log").write_text("what is this river\n")
    assert not traces.without_lines(tmp_path / "log") and not traces.in_file(tmp_path / "log")


def test_a_file_that_has_no_lines_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [PASSAGE]}), tmp_path / "t.parquet")
    before = (tmp_path / "t.parquet").read_bytes()
    with pytest.raises(UserError, match="is no file of lines"):
        renewed(tmp_path / "t.parquet", tmp_path, Traces([PASSAGE]))
    assert (tmp_path / "t.parquet").read_bytes() == before
    (tmp_path / "export.json").write_text("{}")
    with pytest.raises(UserError, match="is not of `export`"):
        renewed(tmp_path, tmp_path, Traces([PASSAGE]))


def test_the_folder_of_judge_loses_the_queries_that_show_a_text(tmp_path: Path) -> None:
    passages = {name: PooledPassage(name, "", text) for name, text in (("p1", "other"), ("p7", PASSAGE))}
    hits = {"BM25": [["p1"], ["p1", "p7"], ["p1"]]}
    queries = {"q1": "one", "q2": "two", "q3": QUERY}
    write_records(tmp_path / POOL, pooled(queries, hits, passages))
    acts = {query: as_json(Act(query, "p1", 2, "2026-01-01T00:00:00Z")) for query in queries}
    (tmp_path / "people.jsonl").write_text("".join(acts.values()) + '{"quer')
    (tmp_path / "order.jsonl").write_text("".join(json.dumps({"query_id": query}) + "\n" for query in queries))
    grades = {"q1": (1, "it helps"), "q2": (0, ""), "q3": (3, "it says so")}
    judgements = [Judgement(query, queries[query], "p1", *grade, "model") for query, grade in grades.items()]
    write_records(tmp_path / "judgements.jsonl", judgements)
    answers = [f"Of {PASSAGE}.\nReason: {reason}\nGrade: {grade}" for grade, reason in grades.values()]
    answers = ["Of others.\nReason: it helps\nGrade: 1", *answers[1:], f"No grade for {PASSAGE}"]
    journal = "".join(json.dumps({"key": str(number), "text": text}) + "\n" for number, text in enumerate(answers))
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / JOURNAL).write_text(journal)
    assert not renewed(tmp_path, tmp_path, Traces(["of another", "the"])) and with_text(tmp_path, PASSAGE)
    with closing(PeoplesFile(tmp_path / "people.jsonl")) as server:
        with pytest.raises(UserError, match="another server takes grades"):
            renewed(tmp_path, tmp_path, Traces([PASSAGE, QUERY]))
        server.add("q1", "p1", 3)
    acts["q1"] += (tmp_path / "people.jsonl").read_text().splitlines(keepends=True)[-1]
    assert with_text(tmp_path, PASSAGE), "nothing is changed while a server may add a grade"
    assert renewed(tmp_path, tmp_path, Traces([PASSAGE, QUERY]))
    assert not with_text(tmp_path, PASSAGE, QUERY) and Pool(tmp_path / POOL).queries == {"q1": "one"}
    assert (tmp_path / "people.jsonl").read_text() == acts["q1"]
    assert (tmp_path / "order.jsonl").read_text() == '{"query_id": "q1"}\n'
    assert (tmp_path / "answers" / JOURNAL).read_text() == journal.splitlines(keepends=True)[0], "it is paid for"


def test_texts_are_found_as_by_a_plain_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgotten_files, "BLOCK", 50)
    generator, file = np.random.default_rng(0), tmp_path / "file"
    words = ["the", "an", "river", "é", '"so"', "<b>", "number", "7", "of_it", "north-west"]
    seen = set()
    for _ in range(300):
        content, text = (" ".join(generator.choice(words, size)) for size in (40, 6))
        if generator.random() < 0.5:
            start = int(generator.integers(len(content) - 60))
            text = content[start : start + 30]
        text = text.strip()
        file.write_text(content, encoding="utf-8")
        seen.add(text in content)
        assert Traces([text, "another text that is nowhere"]).in_file(file, short=True) == (text in content), text
    assert seen == {False, True}
