"""Queries by a language model: the step with a service that fails, and with models of this machine."""

from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_service import MODEL, Service, chat_service
from command_line import call
from conftest import write_generator

from gnn_encoder.artifacts import Dataset, DatasetWriter, WrittenQueries, drafting
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.engines.provenance import source_digests
from gnn_encoder.errors import Unreachable, UserError
from gnn_encoder.inference.generation import generate, passage_ids
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.settings.services import KEY, allow_key
from gnn_encoder.settings.written import WriteQueries
from gnn_encoder.steps.write_queries import write_queries
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.written.asking import TRAINED

SECRET = "not-for-files"


def passage_in(prompt: str) -> str:
    return prompt.partition("<passage>\n")[2].partition("\n</passage>")[0]


def writer(prompt: str) -> str:
    """Writes two queries of the first words of the passage."""
    kind = next(kind for kind in ("keyword", "question", "situation") if kind in prompt)
    passage = passage_in(prompt)
    return f"Here you are:\n1. {kind} {' '.join(passage.split()[:6])}\n2. another {passage[:18].strip()}x"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Service]:
    monkeypatch.setenv(KEY, SECRET)
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    with chat_service(writer) as running:
        allow_key([running.address])
        yield running


def written(data: Dataset, folder: Path, generator: str, **settings: Any) -> WrittenQueries:
    write_queries(WriteQueries(generator=generator, **settings), dataset=data.path, written_queries=folder)
    return WrittenQueries.read(folder)


def test_each_passage_has_queries_of_each_kind_with_prompt_and_answer(
    service: Service, tiny_dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = written(tiny_dataset, tmp_path / "out", service.address, max_passages=20, price_in=1.0, price_out=4.0)
    assert len(set(queries.passage)) == 20 and queries.passage == sorted(queries.passage)
    assert set(queries.kind) == {"keyword", "question", "scenario"}
    texts = tiny_dataset.passages.take(np.array(queries.passage)).full_texts()
    for text, prompt, answer, query in zip(texts, queries.prompt, queries.answer, queries.query, strict=True):
        assert passage_in(prompt) == text.strip() and answer == writer(prompt)
        assert query == answer.splitlines()[1].removeprefix("1. ")
    assert set(service.answered.values()) == {1} and service.answered.total() == 60
    said = capsys.readouterr().err
    assert f"{service.address}#{MODEL} writes queries for 20 passages: 60 calls, about " in said
    assert " at the given price" in said
    figures = read_manifest(tmp_path / "out").metrics
    assert figures["calls"] == 60 and figures["tokens_in"] == 60 * 11 and figures["tokens_out"] == 60 * 7
    assert figures["cost"] == pytest.approx(60 * (11 + 4 * 7) / 1e6)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(SECRET.encode() in file.read_bytes() for file in files)
    more = written(tiny_dataset, tmp_path / "more", service.address, max_passages=22)
    assert set(queries.passage) < set(more.passage) and service.answered.total() == 66, "what is paid is paid"


def test_a_passage_before_the_others_has_them_paid_for_no_second_time(
    service: Service, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "asked.txt").write_text("\n".join(f"query number {number}" for number in range(9)))
    texts = [text for some in tiny_dataset.passages.stream() for text in some.texts][:30]
    texts[-1] = texts[0]
    datasets, calls = [], []
    for name, some in (("before", texts), ("after", ["A passage that is new.", *texts])):
        with drafting(tmp_path / name, "dataset") as draft:
            writer = DatasetWriter(draft)
            writer.passages([f"d{number}" for number in range(len(some))], [""] * len(some), some)
            writer.close()
        datasets.append(Dataset(tmp_path / name))
    options: dict[str, Any] = {"examples": str(tmp_path / "asked.txt"), "per_passage": 2, "max_passages": 20}
    for data in datasets:
        out = tmp_path / f"{data.path.name}-out"
        queries = written(data, out, service.address, **options)
        calls.append(service.answered.total())
        figures = read_manifest(out).metrics
        assert figures["tokens_in"] == 11 * len(set(queries.prompt)), "equal passages are paid for once"
    assert calls[0] >= 38 and calls[1] - calls[0] in (0, 2)


def test_max_calls_bounds_the_calls(service: Service, tiny_dataset: Dataset, tmp_path: Path) -> None:
    queries = written(tiny_dataset, tmp_path / "out", service.address, max_calls=10)
    assert len(set(queries.passage)) == 3 and len(service.requests) == 9
    with pytest.raises(UserError, match="max_calls = 2, and each passage takes 3: allow more"):
        written(tiny_dataset, tmp_path / "none", service.address, max_calls=2)


def test_nonsense_and_repeats_are_counted_and_left_out_one_line_each(
    service: Service, tiny_dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["...", "", "1. the same query", "1. The same  query", "1. another"] + ["1. the same query"] * 25)
    service.reply = lambda _: next(answers)
    options: dict[str, Any] = {"max_passages": 30, "per_passage": 1, "calls_at_once": 1}
    queries = written(tiny_dataset, tmp_path / "out", service.address, **options)
    assert [query for query in queries.query if query] == ["another"]
    assert len(queries.prompt) == len(set(queries.prompt)) == 30, "every prompt and answer is kept"
    said = capsys.readouterr().err
    assert "write_queries: 2 answers hold no query, such as: ...\n" in said
    assert "write_queries: 27 queries are the same for many passages, such as: the same query\n" in said
    figures = read_manifest(tmp_path / "out").metrics
    assert figures["queries"] == 1 and figures["answers_hold_no_query"] == 2


def test_a_model_that_writes_nothing_is_one_line(service: Service, tiny_dataset: Dataset, tmp_path: Path) -> None:
    service.reply = lambda _: "?!"
    with pytest.raises(UserError, match="wrote no query that can be used, in 6 calls: try another model"):
        written(tiny_dataset, tmp_path / "out", service.address, max_passages=2)


def test_failed_calls_are_left_out_and_asked_by_the_next_attempt(
    service: Service, tiny_dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.faults = [422, "other", "text"]
    queries = written(tiny_dataset, tmp_path / "out", service.address, max_passages=10, calls_at_once=1)
    assert len(queries.prompt) == 27 and "write_queries: 3 calls failed, such as: " in capsys.readouterr().err
    queries = written(tiny_dataset, tmp_path / "again", service.address, max_passages=10)
    assert len(queries.prompt) == 30 and set(service.answered.values()) == {1}


def test_a_service_that_is_gone_ends_the_step_and_nothing_is_lost(
    service: Service, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    written(tiny_dataset, tmp_path / "first", service.address, max_passages=5)
    service.faults = [403] * 1000
    # One call at a time: the service may still answer those under way after the test has told it to fail no more.
    with pytest.raises(Unreachable, match="0 of 75 answers came and are kept: run again to go on"):
        written(tiny_dataset, tmp_path / "out", service.address, max_passages=30, calls_at_once=1)
    service.faults = []
    written(tiny_dataset, tmp_path / "out", service.address, max_passages=30)
    assert set(service.answered.values()) == {1} and service.answered.total() == 90


def test_answers_that_are_not_kept_are_said_to_be_lost(
    service: Service, tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(CHECKPOINTS, "s3://bucket/checkpoints")
    service.faults = [0, 0, 401]
    with pytest.raises(Unreachable, match="2 of 9 answers came and are lost, as no folder keeps them"):
        written(tiny_dataset, tmp_path / "out", service.address, max_passages=3, calls_at_once=1)
    assert "warning: checkpoints are in an object store, where no answer is kept" in capsys.readouterr().err


def test_a_killed_step_goes_on_and_its_artifact_is_as_undisturbed(
    service: Service, tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, options = f"{service.address}#{MODEL}", {"max_passages": 30, "calls_at_once": 2}
    service.seconds = 0.02
    out = tmp_path / "killed"
    child = get_context("fork").Process(target=written, args=(tiny_dataset, out, generator), kwargs=options)
    child.start()
    while service.answered.total() < 20:
        assert child.is_alive()
    child.kill()
    child.join()
    assert not out.exists()
    service.seconds = 0.0
    after = written(tiny_dataset, out, generator, **options)
    assert service.answered.total() <= 92 and max(service.answered.values()) <= 2
    assert read_manifest(out).metrics["answers_kept"] >= 18
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "others"))
    assert after == written(tiny_dataset, tmp_path / "undisturbed", generator, **options)


def test_a_model_that_was_trained_to_write_queries_reads_passages(
    tiny_seq2seq: Path, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    trained = tmp_path / "trained"
    write_generator(tiny_seq2seq, trained, 12)
    queries = written(tiny_dataset, tmp_path / "out", str(trained), max_passages=8, temperature=0.0, precision="fp32")
    texts = tiny_dataset.passages.take(np.array(queries.passage)).full_texts()
    assert set(queries.kind) == {TRAINED} and queries.prompt == texts
    generator = QueryGenerator.load(trained)
    assert queries.answer == generate(generator, passage_ids(generator, texts), precision="fp32")
    assert read_manifest(tmp_path / "out").metrics["headline"].endswith("by trained")
    (tmp_path / "asked.txt").write_text("an old river\n")
    with pytest.raises(UserError, match=r"write_queries.examples is for a language model, and trained was trained"):
        written(tiny_dataset, tmp_path / "refused", str(trained), examples=str(tmp_path / "asked.txt"))


def test_what_queries_are_written_with_is_in_the_digest(tmp_path: Path) -> None:
    examples = tmp_path / "asked.txt"
    examples.write_text("an old river\n")
    settings = WriteQueries(generator="http://127.0.0.1:9/v1#m", examples=str(examples), prompts=str(tmp_path))
    before = source_digests("write_queries", settings)
    examples.write_text("an old stone\n")
    assert {name for name, digest in source_digests("write_queries", settings).items() if digest != before[name]} == {
        "examples", "prompts"
    }  # fmt: skip
    with pytest.raises(UserError, match="no such file; give one with a query a line"):
        source_digests("write_queries", settings.model_copy(update={"examples": str(tmp_path / "none")}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"examples": "asked.txt"}, "examples is for a language model, and generator = '' is none"),
        ({"prompts": "mine", "generator": "titles"}, "prompts is for a language model, and generator = 'titles' is"),
        ({"max_calls": 9}, "max_calls is for a generator, and there is none"),
    ],
)
def test_a_setting_that_nothing_reads_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_settings({"write_queries": settings})
    assert parse_settings({"write_queries": {"generator": "titles", "max_calls": 9}}).write_queries.max_calls == 9


def test_options_of_run_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = tmp_path / "asked.txt"
    examples.write_text("an old river\n")
    changes: list[str] = []

    def climbing(preset: str, dataset: str, overrides: list[str], *_: Any, **__: Any) -> None:
        changes.extend(overrides)
        raise UserError("enough")

    monkeypatch.setattr("gnn_encoder.engines.climbing.climbing", climbing)
    options = ["--generator", "http://127.0.0.1:9/v1#m", "--examples", str(examples), "--max-calls", "30"]
    assert call("run", "--dataset", str(tmp_path), *options) == 2
    settings = parse_settings({}, changes).write_queries
    assert (settings.generator, settings.examples, settings.max_calls) == (options[1], str(examples), 30)
    (tmp_path / "titles").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, meant in (("titles", "titles"), ("./titles", str(tmp_path / "titles"))):
        changes.clear()
        assert call("run", "--dataset", str(tmp_path), "--generator", name) == 2
        settings = parse_settings({}, changes).write_queries
        assert settings.generator == meant
        assert (source_digests("write_queries", settings)["generator"] == "titles") == (name == meant)
