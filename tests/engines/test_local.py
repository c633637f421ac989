"""The local engine on two real steps, with MLflow on SQLite, signals and kill -9."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny_pipeline
from small_disk import small_disk
from waiting import wait_for

from gnn_encoder.artifacts import drafting
from gnn_encoder.artifacts.folder import CLOCK_TICK
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.engines import lifeline, supervision
from gnn_encoder.engines.local import CACHE, Cache, Call, Engine
from gnn_encoder.engines.local_run import Outcome, Rung, run_calls
from gnn_encoder.engines.processes import FORK_AFTER, StepProcesses
from gnn_encoder.engines.supervision import Event
from gnn_encoder.errors import UserError
from gnn_encoder.tracking import progress

TESTS = str(Path(__file__).parents[1])


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def show(self, events: list[Event]) -> None:
        self.events += events

    def kinds(self, step: str) -> list[str]:
        return [e["event"] for e in self.events if e["step"] == step and e["event"] != "progress"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", TESTS)
    monkeypatch.setenv(FORK_AFTER, "never")


@pytest.fixture(params=["new processes", "forks"])
def kind_of_steps(request: pytest.FixtureRequest, environment: None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(FORK_AFTER, "never" if request.param == "new processes" else "0")
    return str(request.param)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a root" + " of a long path" * 7)  # a socket's path may have 107 bytes


def go(root: Path, name: str, **settings: Any) -> tuple[Outcome, Recorder]:
    recorder = Recorder()
    outcome = run_calls(tiny_pipeline.calls(**settings), root, name, {"preset": "tiny"}, recorder.show)
    return outcome, recorder


def tracked(root: Path, name: str) -> dict[str, Any]:
    """The runs of a pipeline run by step name, the parent under its own name."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("gnn-encoder")
    assert experiment is not None
    (parent,) = client.search_runs([experiment.experiment_id], f"tags.mlflow.runName = '{name}'")
    children = client.search_runs([experiment.experiment_id], f"tags.mlflow.parentRunId = '{parent.info.run_id}'")
    return {run.info.run_name: run for run in [parent, *children]}


@pytest.mark.slow
def test_steps_run_then_are_reused_then_recomputed_where_corrupt(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, heard = go(root, "first", dataset="some words")
    assert outcome.exit_code == 0
    assert heard.kinds("ingest") == ["starting", "started", "finished", "outputs"]
    assert (outcome.outputs["bm25_run"] / "run.txt").read_text() == "SOME WORDS"
    runs = tracked(root, "first")
    assert {"first", "bm25_retrieve"} <= set(runs) <= {"first", "bm25_retrieve", "ingest"}  # a short step has none
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert runs["bm25_retrieve"].data.metrics["R_at_100"] == 0.5
    assert runs["bm25_retrieve"].data.params["train_depth"] == "100"
    assert runs["bm25_retrieve"].info.artifact_uri.startswith((root / "artifacts").as_uri())
    assert list((root / "tmp").iterdir()) == []

    # Other code that makes the same dataset: what follows is reused, for it depends on content.
    again, heard = go(root, "second", dataset="some words", code_digest="2")
    assert heard.kinds("ingest")[0] == "starting"
    assert heard.kinds("bm25_retrieve") == ["cached"]
    cached = tracked(root, "second")["bm25_retrieve"]
    assert cached.data.tags["cached"] == "true"
    assert cached.data.metrics["R_at_100"] == 0.5
    assert cached.data.params["train_depth"] == "100"

    # A cut file is no output to reuse; and a bug is told with its type.
    (again.outputs["bm25_run"] / "run.txt").write_text("PY")
    monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({"bm25_retrieve": "bug"}))
    failed, heard = go(root, "third", dataset="some words", code_digest="2")
    assert heard.kinds("ingest") == ["cached"]
    assert heard.kinds("bm25_retrieve") == ["note", "starting", "started", "failed"]
    assert (failed.exit_code, failed.failed_step) == (1, "bm25_retrieve")
    assert failed.message == "ValueError: a bug of two lines"
    runs = tracked(root, "third")
    assert [runs[name].info.status for name in ("third", "bm25_retrieve")] == ["FAILED", "FAILED"]
    assert runs["bm25_retrieve"].data.tags["error"] == "a bug of two lines"


RUNGS = (Rung("one", "ingest", {"result": "dataset"}), Rung("two", "bm25_retrieve", {"result": "bm25_run"}))


@pytest.mark.slow
def test_a_run_ends_at_its_deadline_with_the_last_rung(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, bool, Path]] = []

    def go_on(name: str, seconds: float, dataset: str) -> Outcome:
        return run_calls(
            tiny_pipeline.calls(dataset=dataset), root, name, {}, lambda events: None, rungs=RUNGS,
            reached=lambda outcome, cached: heard.append((outcome.rung, cached, outcome.outputs["result"])),
            deadline=time.time() + seconds,
        )  # fmt: skip

    monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({"bm25_retrieve": "wait"}))
    outcome = go_on("late", 0.0, "of two rungs")  # the lowest rung always ends
    assert (outcome.status, outcome.is_late, outcome.rung, outcome.exit_code) == ("FINISHED", True, "one", 0)
    assert tracked(root, "late")["late"].info.status == "FINISHED"
    monkeypatch.delenv("GNN_ENCODER_TINY")
    outcome = go_on("in time", math.inf, "of two rungs")
    assert (outcome.status, outcome.is_late, outcome.rung) == ("FINISHED", False, "two")
    assert [(rung, cached) for rung, cached, _ in heard] == [("one", False), ("one", True), ("two", False)]
    assert outcome.outputs["result"] == outcome.outputs["bm25_run"] == heard[-1][2] != heard[0][2]


def test_calls_whose_titles_differ_in_signs_alone_have_outputs_of_their_own(tmp_path: Path) -> None:
    """As two variants of an ablation do that a user names `k < 5` and `k > 5`, or in letters without a Latin one."""

    class Writer:
        """Runs a step: writes its title into its outputs."""

        def run(self, step: str, executor_input: str) -> int:
            call_input = json.loads(executor_input)
            for name, of in call_input["outputs"]["artifacts"].items():
                with drafting(of["artifacts"][0]["uri"], name) as draft:
                    (draft / "title.txt").write_text(json.loads(call_input["inputs"]["parameterValues"]["arguments"]))
            return 0

    titles = ["try_variant: k < 5", "try_variant: k > 5", "try_variant: k 5 2", "try_variant: 川", "try_variant: 山"]
    calls = [Call("try_variant", title, json.dumps(title), {}, ("dataset",)) for title in titles]
    engine = Engine(tmp_path, Writer())  # type: ignore[arg-type]
    engine.execute(calls)
    assert [(Path(engine.outputs[title]["dataset"]) / "title.txt").read_text() for title in titles] == titles

    # So do two runs that begin in one second.
    second = Engine(tmp_path, Writer())  # type: ignore[arg-type]
    second._run = engine._run
    second.execute([Call("try_variant", titles[0], json.dumps("another"), {}, ("dataset",))])
    for outcome, text in ((engine, titles[0]), (second, "another")):
        assert (Path(outcome.outputs[titles[0]]["dataset"]) / "title.txt").read_text() == text


WRONG = ["null", "3", "[]", "{}", '{"dataset": null}', '{"dataset": 3}', '{"dataset": ""}', "[" * 100_000, "\udcff"]


@pytest.mark.parametrize("content", [*WRONG, None])
def test_a_damaged_cache_entry_is_named_and_the_step_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """Without a content the entry stays, and one bit of what it leads to changes."""
    with drafting(tmp_path / "dataset", "dataset") as draft:
        (draft / "words.txt").write_text("words")
    monkeypatch.setenv(progress.EVENTS, str(tmp_path / "events"))
    engine, call = Engine(tmp_path, StepProcesses()), tiny_pipeline.calls()[0]
    key = engine._key(call, {})
    engine._keep(key, {"dataset": str(tmp_path / "dataset")})
    assert engine._cached(call, key) == {"dataset": str(tmp_path / "dataset")}
    file = tmp_path / CACHE / f"{key}.json" if content else tmp_path / "dataset" / "words.txt"
    time.sleep(CLOCK_TICK / 1e9)
    file.write_text(content or "wordt", errors="surrogateescape")
    assert engine._cached(call, key) is None
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [event["event"] for event in events] == ["cached", "note"]
    assert "\n" not in events[1]["message"]
    if content != '{"dataset": ""}':
        assert str(file) in events[1]["message"]


def test_an_output_that_is_gone_is_no_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted by `prune`, or in a root that was moved."""
    monkeypatch.setenv(progress.EVENTS, str(tmp_path / "events"))
    engine, call = Engine(tmp_path, StepProcesses()), tiny_pipeline.calls()[0]
    key = engine._key(call, {})
    engine._keep(key, {"dataset": str(tmp_path / "dataset")})
    assert engine._cached(call, key) is None
    assert not (tmp_path / "events").exists()


def test_a_promotion_is_not_reused_if_its_version_is_gone(tmp_path: Path) -> None:
    with drafting(tmp_path / "decision", "decision") as draft:
        Decision.write(draft, {"model_name": "gnn-encoder", "version": "3"})
    call, key = Call("promote", "promote", "{}", {}, ("decision",)), "a key"
    Cache(tmp_path)._keep(key, outputs := {"decision": str(draft.target)})
    registered = [{("gnn-encoder", "3")}, {("gnn-encoder", "2"), ("other", "3")}, None]
    assert [Cache(tmp_path, known)._cached(call, key) for known in registered] == [outputs, None, outputs]


@pytest.mark.slow
def test_a_step_that_cannot_say_why_it_died_is_explained_by_the_log(
    root: Path, kind_of_steps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({"ingest": "die"}))
    name = f"dead {kind_of_steps}"
    outcome, heard = go(root, name, dataset="other")
    assert (outcome.exit_code, outcome.failed_step) == (1, "ingest")
    assert "out of memory?" in outcome.message
    assert "Killed" in outcome.message
    assert heard.kinds("ingest")[-1] == "failed"
    assert tracked(root, name)["ingest"].info.status == "FAILED"


@pytest.mark.slow
def test_a_step_without_an_output_has_failed_though_it_ended_well(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in ("ingest", "bm25_retrieve"):
        monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({step: "silent"}))
        outcome, heard = go(root, f"silent {step}", dataset="silent")
        assert (outcome.status, outcome.failed_step) == ("FAILED", step)
        assert outcome.message.startswith("ended well, but wrote no output")
        assert heard.kinds(step)[-1] == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "message"), [("fail", "the data is wrong: mend it"), ("full", "No space left on device: some/file")]
)
def test_what_the_user_can_mend_is_one_line_exit_code_2_and_nothing_half_written(
    root: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, message: str
) -> None:
    monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({"bm25_retrieve": trouble}))
    outcome, heard = go(root, trouble, dataset=trouble)
    assert (outcome.exit_code, outcome.failed_step) == (2, "bm25_retrieve")
    assert outcome.message.startswith(message) and "\n" not in outcome.message
    assert heard.kinds("bm25_retrieve") == ["starting", "started", "failed"]
    run = outcome.outputs["dataset"].parents[1]
    assert list(run.glob("ingest/*dataset*")) and not list(run.glob("bm25-retrieve/*bm25_run*"))


@pytest.mark.slow
def test_a_root_on_a_full_disk_goes_on_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk") as disk:
        root = disk.path / "root"
        root.mkdir()
        monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({"bm25_retrieve": "fill"}))
        failed, heard = go(root, "full", dataset="words")
        assert (failed.exit_code, failed.failed_step) == (2, "bm25_retrieve")
        assert failed.message.startswith(f"No space left on device: {root}") and "\n" not in failed.message
        assert tracked(root, "full")["bm25_retrieve"].info.status == "FAILED"
        assert not list(root.glob("pipeline/*/bm25-retrieve/*bm25_run*"))
        disk.fill()
        with pytest.raises(UserError, match=f"No space left on device: {root}; free space, or give another --root"):
            go(root, "fuller", dataset="words")
        disk.grow()
        done, heard = go(root, "room", dataset="words")
        assert done.status == "FINISHED" and heard.kinds("ingest") == ["cached"]
        assert (done.outputs["bm25_run"] / "large.bin").stat().st_size == 2**26


def test_an_event_that_a_full_disk_cut_does_not_hide_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progress.EVENTS, str(tmp_path / "events"))
    progress.emit("ingest", "started")
    with (tmp_path / "events").open("a") as file:
        file.write('{"step": "ingest", "eve')
    progress.emit("ingest", "failed")
    with (tmp_path / "events").open("rb") as lines:
        assert [event["event"] for event in supervision._new_events(lines)] == ["started", "failed"]


Start = Callable[[], tuple[subprocess.Popen[str], int]]


@pytest.fixture
def start(root: Path, kind_of_steps: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a launcher whose first step waits; gives it and the step's process id."""
    monkeypatch.setenv("GNN_ENCODER_TINY", json.dumps({"ingest": "wait"}))
    source = str(Path(lifeline.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", f"{source}:{TESTS}")
    started: list[subprocess.Popen[str]] = []

    def launcher() -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, f"{TESTS}/tiny_pipeline.py", str(root), "dataset=slow"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        events = root / "logs" / f"tiny-{process.pid}.events.jsonl"

        def step_pid() -> int | None:
            lines = events.read_text().splitlines() if events.is_file() else []
            facts = [json.loads(line) for line in lines if '"progress"' in line or '"started"' in line]
            return facts[0]["pid"] if len(facts) > 1 else None

        return process, wait_for(step_pid)

    yield launcher
    for process in started:
        process.kill()
        process.wait()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie that nobody has waited for yet works no more.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.slow
def test_nothing_survives_a_killed_launcher_and_an_interrupted_one_ends_in_order(root: Path, start: Start) -> None:
    process, step = start()
    with pytest.raises(UserError, match="another run is going on"):
        lifeline.take(root)
    process.kill()
    process.wait()
    wait_for(lambda: gone(step), seconds=30)
    killed = f"tiny-{process.pid}"
    assert tracked(root, killed)["ingest"].info.status == "RUNNING"  # nobody was left to close it

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does, and what it starts inherits
    process, step = start()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None and not gone(step)
    runs = tracked(root, killed)
    assert [runs[name].info.status for name in (killed, "ingest")] == ["KILLED", "KILLED"]
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted" in output
    assert gone(step)
    runs = tracked(root, f"tiny-{process.pid}")
    assert {run.info.status for run in runs.values()} == {"KILLED"}
    assert "loss" in runs["ingest"].data.metrics
    assert list(root.glob("pipeline/*/ingest/.dataset.partial-*")) == []
    lifeline.take(root).close()


def test_an_engine_runs_from_another_thread_than_the_main_one(tmp_path: Path) -> None:
    """Python refuses signal handlers there; a notebook's run may be started by a web application."""
    with ThreadPoolExecutor(1) as pool:
        command = [sys.executable, "-c", "raise SystemExit(3)"]
        files = tmp_path / "log", tmp_path / "events"
        assert pool.submit(supervision.supervise, command, os.environ, *files, lambda events: None).result() == 3
