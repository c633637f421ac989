"""Questions without an answer, the log of questions, and whether they are still like the dev queries."""

import json
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from command_line import call
from http_server import Server, serving

from gnn_encoder import Retriever, UserError
from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.artifacts.bundle import Reranking, Serving
from gnn_encoder.artifacts.calibration import CALIBRATION, Calibration, FirstHits
from gnn_encoder.artifacts.tables import Run
from gnn_encoder.errors import Damaged
from gnn_encoder.evaluation.confidence import threshold, threshold_of
from gnn_encoder.serving.following import Served
from gnn_encoder.serving.questions import QuestionLog, logged
from gnn_encoder.serving.watching import Watched


def new_questions(data: Dataset, count: int, seed: int) -> list[str]:
    """Different questions of three words of a passage and a number."""
    generator, texts = np.random.default_rng(seed), data.passages.take(np.arange(len(data.passages))).texts
    words = [texts[i].split() for i in generator.integers(len(texts), size=count)]
    numbers = generator.permutation(1000)
    return [
        " ".join([*generator.permutation(of)[:2], of[0], f"w{number}"])
        for number, of in zip(numbers, words, strict=False)
    ]


@pytest.fixture(scope="module")
def calibrated(bundles: dict[str, Path], tiny_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that ranks by vectors, with 120 dev queries, of which every second first hit is wrong."""
    bundle, queries = Bundle.read(bundles["vectors"]), new_questions(tiny_dataset, 120, seed=1)
    score = np.array([hits[0].score for hits in Retriever(bundle).search(queries, 1)])
    hits = FirstHits(score.astype(np.float64), np.arange(120) % 2 == 0)
    path = tmp_path_factory.mktemp("calibrated") / "bundle"
    with drafting(path, "bundle") as draft:
        bundle.serve(draft, bundle.serving)
        training = new_questions(tiny_dataset, 100, seed=2)
        Calibration(bundle.serving.system, queries, hits, training).write(draft / CALIBRATION)
    return path


@pytest.fixture(scope="module")
def watched_server(calibrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("log")
    with serving(calibrated, log=QuestionLog(folder, days=2), look_seconds=0.05) as server:
        yield server, folder


def test_first_hits_are_those_of_a_loop() -> None:
    class Labels:
        query, passage = np.array([2, 2, 7], np.int32), np.array([5, 6, 1], np.int32)

        def positive(self) -> "Labels":
            return self

    ones = np.ones(3, np.int32)
    run = Run(np.array([2, 2, 7], np.int32), np.array([6, 9, 3], np.int32), np.array([1, 2, 1], np.int32), ones / 2)
    hits = FirstHits.of(run, np.array([2, 4, 7]), Labels())  # type: ignore[arg-type]
    assert hits.score.tolist() == [0.5, -np.inf, 0.5] and hits.wrong.tolist() == [False, True, True]


def test_a_calibration_keeps_the_queries_whose_texts_a_data_set_still_has(tiny_dataset: Dataset) -> None:
    still = tiny_dataset.query_texts(np.arange(3))
    hits = FirstHits(np.array([0.9, 0.5, 0.1]), np.array([False, True, False]))
    kept = Calibration("Dual encoder", [still[0], "a forgotten question", still[1]], hits, ["forgotten", still[2]])
    kept = kept.within(tiny_dataset)
    assert kept.queries == still[:2] and kept.training == still[2:]
    assert kept.hits.score.tolist() == [0.9, 0.1] and not kept.hits.wrong.any()


def test_a_calibration_is_read_as_it_was_written_and_is_of_one_ranking(calibrated: Path, tmp_path: Path) -> None:
    bundle = Bundle.read(calibrated)
    assert bundle.calibration and len(bundle.calibration.queries) == 120 == len(bundle.calibration.hits.wrong)
    assert len(bundle.calibration.training) == 100 and bundle.calibration.hits.wrong.sum() == 60
    with drafting(tmp_path / "other", "bundle") as draft:
        bundle.serve(draft, Bundle.read(calibrated).serving)
    assert Bundle.read(tmp_path / "other").calibration is None, "of another run"
    hits = {"a": bundle.calibration.hits, "b": FirstHits(np.array([1.0]), np.array([True]))}
    FirstHits.write(tmp_path, hits)
    np.testing.assert_array_equal(FirstHits.read(tmp_path / "first_hits.parquet", "a").score, hits["a"].score)
    assert not len(FirstHits.read(tmp_path / "first_hits.parquet", "c").score)


def test_unsure_first_hits_are_not_shown(calibrated: Path) -> None:
    retriever = Retriever.load(calibrated)
    calibration = retriever.bundle.calibration
    assert calibration
    above, plain = threshold(calibration.hits, 0.1), retriever.search(calibration.queries, 3)
    shown = retriever.search(calibration.queries, 3, min_confidence=0.9)
    assert all(hits == (full if full[0].score > above else []) for hits, full in zip(shown, plain, strict=True))
    wrong = [bool(hits) and wrong for hits, wrong in zip(shown, calibration.hits.wrong, strict=True)]
    assert 0 < np.mean(wrong) <= 0.1 < np.mean([bool(hits) for hits in shown]) and all(plain)
    assert all(retriever.search(calibration.queries, 3, min_confidence=0.0)), "a risk of all shows all"


def test_a_confidence_is_refused_where_it_means_nothing(calibrated: Path, bundles: dict[str, Path]) -> None:
    retriever = Retriever.load(calibrated)
    for reason, options in (
        ("default ranking", {"min_confidence": 0.9, "fuse": True}),
        ("from 0 to 1", {"min_confidence": 1.2}),
        ("at most 0.99", {"min_confidence": 0.999}),
    ):
        with pytest.raises(UserError, match=reason):
            retriever.search("garden", **options)  # type: ignore[call-overload]
    with pytest.raises(UserError, match="not calibrated"):
        Retriever.load(bundles["vectors"]).search("garden", min_confidence=0.9)
    with pytest.raises(UserError, match="no 20 dev queries"):
        Watched(Retriever.load(bundles["vectors"]))


def test_a_server_shows_no_unsure_hit_and_logs_questions_without_callers(
    watched_server: tuple[Server, Path], calibrated: Path, tiny_dataset: Dataset
) -> None:
    (server, folder), retriever = watched_server, Retriever.load(calibrated)
    questions = new_questions(tiny_dataset, 40, seed=3)
    for start in range(0, 40, 8):
        status, answer = server.search(questions=questions[start : start + 8], k=2, min_confidence=0.9)
        expected = retriever.search(questions[start : start + 8], 2, min_confidence=0.9)
        assert status == 200 and [bool(one["hits"]) for one in answer["results"]] == [bool(hits) for hits in expected]
    assert server.search(questions="garden", explain=True, min_confidence=0.9)[0] == 422
    for question in questions[:8]:
        assert server.search(questions=question)[0] == 200
    rows = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    assert [row["question"] for row in rows] == [*questions, *questions[:8]]
    assert {name for row in rows for name in row} == {"time", "question", "passage", "score", "bundle"}
    assert len(logged(folder)) == 40
    for _ in range(100):
        if b"gnn_encoder_question_drift{" in (figures := server.send("GET", "/metrics")[2]):
            break
        time.sleep(0.05)
    for name in ("far", "unclear", "distance"):
        assert f'gnn_encoder_question_drift{{figure="{name}"}}'.encode() in figures


def test_questions_that_ask_for_the_default_ranking_count(calibrated: Path, tmp_path: Path) -> None:
    """The page always says whether it wants a re-ranker."""
    options: list[dict[str, bool]] = [{}, {"rerank": False}, {"fuse": False}]
    with serving(calibrated, log=QuestionLog(tmp_path, days=2), look_seconds=600) as server:
        answers = [server.search(questions="garden", **more)[1]["results"][0]["hits"][0] for more in options]
    (file,) = tmp_path.iterdir()
    scores = [json.loads(line)["score"] for line in file.read_text().splitlines()]
    assert scores == [answers[0]["score"], answers[1]["score"], None]


def test_old_days_are_deleted(tmp_path: Path) -> None:
    for day in ("2020-01-01", time.strftime("%Y-%m-%d", time.gmtime())):
        (tmp_path / f"questions-{day}.jsonl").write_text('{"question": "garden"}\n')
    others = ["questions-2020-final.jsonl", "questions-.jsonl", "questions-2020-01-01-mine.jsonl"]
    for name in others:
        (tmp_path / name).write_text('{"question": "of another program"}\n')
    QuestionLog(tmp_path, days=2)
    assert {path.name for path in tmp_path.iterdir()} == {*others, f"questions-{day}.jsonl"}
    assert [row["question"] for row in logged(tmp_path)] == ["garden"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--log"):
        QuestionLog(tmp_path / "file", days=2)


def test_a_log_has_any_question_that_a_server_takes(tmp_path: Path) -> None:
    questions = ["one\u2028two", "a\x85b\x0bc", "plain"]
    lines = [json.dumps({"question": question}, ensure_ascii=False).encode() for question in questions]
    (tmp_path / "log").write_bytes(b"\r\n".join(lines))
    assert [row["question"] for row in logged(tmp_path / "log")] == questions
    for wrong in (b'{"question": "\\ud800"}', b'{"question": 7}', b"[]", b"\n"):
        (tmp_path / "log").write_bytes(lines[2] + b"\n" + wrong)
        with pytest.raises(UserError, match="line 2: not a JSON object"):
            logged(tmp_path / "log")
    (tmp_path / "log").write_bytes(b'{"question": "\xff"}')
    with pytest.raises(UserError, match="cannot be read"):
        logged(tmp_path / "log")


def test_a_full_disk_leaves_no_half_line(calibrated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served, log = Served(Retriever.load(calibrated), "1"), QuestionLog(tmp_path, days=2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for question, most in (("first", before[0]), ("second", 250), ("third", before[0])):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            log.add(served, [{"question": question, "hits": []}], by_default=False)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [row["question"] for row in logged(tmp_path)] == ["first", "third"]
    (file,) = tmp_path.iterdir()
    line = len(file.read_bytes().splitlines(keepends=True)[0])
    assert line < 250 < 2 * line and "log of questions cannot be written" in capsys.readouterr().out


def test_drift_counts_questions_whose_hit_was_hidden_and_deletes_old_days(
    calibrated: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    served, log = Served(Retriever.load(calibrated), "1"), QuestionLog(tmp_path, days=2)
    questions = new_questions(tiny_dataset, 4, seed=5)
    shown = [
        {"question": question, "hits": [asdict(served.retriever.search(question, 1)[0])]} for question in questions
    ]
    log.add(served, shown, by_default=True)
    expected = log.drift(served)
    hidden = QuestionLog(tmp_path / "hidden", days=2)
    hidden.add(served, [{"question": question, "hits": []} for question in questions], by_default=True)
    drift = hidden.drift(served)
    assert expected and drift and drift.questions == expected.questions == 4
    assert drift.unclear == expected.unclear and drift.far == expected.far
    (tmp_path / "questions-2020-01-01.jsonl").write_text("")
    log._today = "2020-01-09"  # the last question came on that day
    assert log.drift(served) is None and not (tmp_path / "questions-2020-01-01.jsonl").exists()


def test_a_filter_and_a_scaled_score_give_no_confidence(calibrated: Path, tmp_path: Path) -> None:
    bundle = Bundle.read(calibrated)
    assert bundle.calibration and not bundle.scales_scores
    for weight, reranking, scales in (
        (0.5, None, True),
        (0.0, None, False),
        (0.5, Reranking("x", 1.0, 100), False),
        (None, Reranking("x", 0.7, 100), True),
    ):
        with drafting(tmp_path / f"{weight}{reranking}", "bundle") as draft:
            bundle.serve(draft, Serving("Sum", weight, reranking=reranking))
            replace(bundle.calibration, system="Sum").write(draft / CALIBRATION)
        opened = Bundle.read(draft.target)
        assert opened.scales_scores is scales and np.isfinite(threshold_of(opened, 0.9))
        if scales:
            with pytest.raises(UserError, match="with a filter or rights"):
                threshold_of(opened, 0.9, is_filtered=True)
    with pytest.raises(UserError, match="with a filter or rights"):
        Retriever.load(tmp_path / "0.5None").search("garden", min_confidence=0.9, filter={})


def test_a_damaged_calibration_is_told(tmp_path: Path) -> None:
    (tmp_path / CALIBRATION).write_bytes(b"PAR1")
    with pytest.raises(Damaged, match="cannot be read"):
        Calibration.read(tmp_path / CALIBRATION)


def test_watch_says_whether_a_retraining_is_due(
    calibrated: Path, tiny_dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = new_questions(tiny_dataset, 150, seed=4)
    foreign = [f"{i} % {i * 7} ? {'x' * (i % 5)}" for i in range(75)]
    logs = {"same": usual, "shifted": [text for pair in zip(usual, foreign, strict=False) for text in pair]}
    for name, questions in logs.items():
        (tmp_path / name).write_text("".join(json.dumps({"query": text}) + "\n" for text in [*questions, questions[0]]))
    same, shifted = (("watch", "--bundle", str(calibrated), "--log", str(tmp_path / name)) for name in logs)
    assert call(*same, "--alert") == 0
    assert capsys.readouterr().out.startswith(
        "no retraining is due: chance explains how the dev queries differ from 150 different questions"
    )
    assert call(*shifted) == 0 and call(*shifted, "--alert") == 3
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("a retraining is due: at question ") and "energy distance" in line
    assert call("watch", "--bundle", str(calibrated), "--log", str(tmp_path / "none")) == 2
