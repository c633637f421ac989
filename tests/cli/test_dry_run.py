"""`--dry-run` and `--mermaid`: what is cached, what the rest takes, and that nothing is executed or written."""

import json
import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from command_line import call
from trained_root import tiny_settings, write_beir

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.cli.console import duration
from gnn_encoder.engines import pipelines
from gnn_encoder.engines.local import Engine, calls_of
from gnn_encoder.flow.mermaid import mermaid
from gnn_encoder.pipelines.train import train
from gnn_encoder.planning import rates
from gnn_encoder.settings.presets import load_settings

FIRST = ("ingest", "index_bm25", "bm25_retrieve")
"""Steps that train nothing, and which the root has run."""
Rows = dict[str, tuple[str, str, str]]
"""Title → state, time, and what is read."""


class StepsHere:
    """Runs steps in this process, and notes them."""

    def __init__(self) -> None:
        self.executed: list[str] = []

    def run(self, step: str, executor_input: str) -> int:
        self.executed.append(step)
        text = json.loads(executor_input)
        inputs, outputs = text["inputs"], text["outputs"]
        artifacts: Mapping[str, Mapping[str, list[dict[str, str]]]] = {**inputs["artifacts"], **outputs["artifacts"]}
        paths = {name: of["artifacts"][0]["uri"] for name, of in artifacts.items()}
        getattr(import_module(f"gnn_encoder.steps.{step}"), step)(inputs["parameterValues"]["arguments"], **paths)
        return 0


class Root:
    """A root in which the first steps of a pipeline have run."""

    def __init__(self, folder: Path, preset: Path, data: Path) -> None:
        self.folder, self.options = folder, ["--preset", str(preset), "--dataset", str(data)]

    def run(self, *overrides: str) -> list[str]:
        """Runs the first steps with changed settings; returns those that were executed."""
        training = pipelines.training(self.options[1], self.options[3], overrides, self.folder)
        calls, steps = calls_of(train(training.settings), training.arguments()), StepsHere()
        Engine(self.folder / "pipeline", steps).execute(call for call in calls if call.title in FIRST)  # type: ignore
        return steps.executed


@pytest.fixture(scope="module")
def first_root(
    tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path, tiny_seq2seq: Path
) -> Root:
    folder = tmp_path_factory.mktemp("dry")
    preset = folder / "tiny.yaml"
    preset.write_text(yaml.safe_dump(tiny_settings(tiny_backbone, tiny_seq2seq)))
    root = Root(folder / "root", preset, write_beir(tiny_dataset, folder / "beir"))
    assert root.run() == [*FIRST]
    return root


@pytest.fixture
def root(first_root: Root, tmp_path: Path) -> Root:
    """A root of its own for a test that changes it; the artifacts are the first root's."""
    shutil.copytree(first_root.folder, tmp_path / "root")
    return Root(tmp_path / "root", Path(first_root.options[1]), Path(first_root.options[3]))


@pytest.fixture
def table(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Rows, str]]:
    """The rows of a dry run, and the line of its totals."""

    def printed(*arguments: str) -> tuple[Rows, str]:
        assert call(*arguments, "--dry-run") == 0
        header, *lines, blank, total = capsys.readouterr().out.splitlines()
        starts = [header.index(name) for name in ("step", "state", "time", "reads")]
        ends = [*starts[1:], None]
        rows = [[line[start:end].strip() for start, end in zip(starts, ends, strict=True)] for line in lines]
        assert blank == ""
        return {title: (state, time, reads) for title, state, time, reads in rows}, total

    return printed


Table = Callable[..., tuple[Rows, str]]


def files(folder: Path) -> dict[Path, int]:
    """When each file was written, without the records that a reader has hashed an artifact."""
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    return {path: when for path, when in written.items() if not path.name.endswith(".checked.json")}


def test_what_has_run_is_cached_and_a_change_reaches_all_that_follows(first_root: Root, table: Table) -> None:
    command, before = ["run", *first_root.options, "--root", str(first_root.folder)], files(first_root.folder)
    rows, total = table(*command)
    graph = train(load_settings(first_root.options[1]))
    assert list(rows) == [node.title for node in graph.nodes]
    assert {title for title, row in rows.items() if row[0] == "cached"} == {*FIRST}
    assert rows["index_bm25"] == ("cached", "", "dataset") and rows["train_dpr"] == ("to run", "–", "dataset, bm25_run")
    assert rows["evaluate"][2] == f"dataset, runs × {len(graph['evaluate'].inputs['runs'])}"  # type: ignore[arg-type]
    assert total == f"{len(rows)} steps: 3 cached, at most {len(rows) - 3} to run; time: not known for {len(rows) - 3}"

    # The control: an equal step after a changed one may not be cached, and has the time that it took before.
    changed, total = table(*command, "--set", "index_bm25.k1=0.7")
    assert {title for title, row in changed.items() if row[0] == "cached"} == {"ingest"}
    assert changed["index_bm25"][:2] == ("to run", "–")
    (artifact,) = first_root.folder.glob("pipeline/*/bm25-retrieve/bm25_run")
    seconds = read_history(artifact)["bm25_retrieve"].metrics["seconds"]
    assert changed["bm25_retrieve"][:2] == ("to run", duration(seconds))
    assert f"{len(rows) - 1} to run; time: about {duration(seconds)} for 1, not known for {len(rows) - 2}" in total
    last, _ = table(*command, "--set", "bm25_retrieve.train_depth=19")
    assert [last[title][0] for title in FIRST] == ["cached", "cached", "to run"]
    assert files(first_root.folder) == before, "nothing is written"


@pytest.mark.parametrize("changes", [[], ["index_bm25.k1=0.7"], ["bm25_retrieve.train_depth=19"], ["ingest.seed=7"]])
def test_a_run_executes_what_the_table_says(changes: list[str], root: Root, table: Table) -> None:
    options = [word for change in changes for word in ("--set", change)]
    command = ["run", *root.options, "--root", str(root.folder), *options]
    expected, _ = table(*command)
    executed = root.run(*changes)
    assert executed == [title for title in FIRST if expected[title][0] == "to run"][: len(executed)]
    assert not executed or executed[0] == next(title for title in FIRST if expected[title][0] == "to run")
    now, _ = table(*command)
    assert {now[title][0] for title in FIRST} == {"cached"}


def test_lost_outputs_and_other_data_are_to_run(root: Root, tmp_path: Path, table: Table) -> None:
    data = Path(shutil.copytree(root.options[3], tmp_path / "data"))
    command = ["run", *root.options[:2], "--root", str(root.folder), "--dataset"]
    moved, _ = table(*command, str(data))
    assert moved["ingest"][:2] == ("to run", "–"), "the path of the data is a setting of ingest"
    assert moved["bm25_retrieve"][:2] == ("to run", "–"), "times of other data say nothing"
    root = Root(root.folder, Path(root.options[1]), data)
    root.run()
    assert table(*command, str(data))[0]["ingest"][0] == "cached"
    queries = data / "queries.jsonl"
    queries.write_text(queries.read_text().replace("number 3", "number three"))
    changed, _ = table(*command, str(data))
    assert changed["ingest"][0] == "to run" and changed["ingest"][1] != "–", "as long as the data before"
    cache = root.folder / "pipeline" / ".cache"
    for entry in cache.iterdir():
        entry.write_text(entry.read_text().replace("index-bm25", "gone"))
    lost, _ = table("run", *root.options[:2], "--root", str(root.folder), "--dataset", str(data))
    assert lost["index_bm25"][0] == "to run"


@pytest.mark.parametrize(
    "command", [["run"], ["rerank", "--systems", "colbert,k_nrm"], ["ablate", "--study", "gate", "--seeds", "1"]]
)
def test_a_new_root_stays_away_and_the_chart_is_alone_on_stdout(
    command: list[str], first_root: Root, tmp_path: Path, table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*command, *first_root.options, "--root", str(tmp_path / "new")]
    rows, total = table(*command)
    assert {row[:2] for row in rows.values()} == {("to run", "–")} and total.startswith(f"{len(rows)} steps: 0 cached")
    assert call(*command, "--mermaid") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("flowchart TD\n  ingest\n") and captured.err == ""
    if command[0] == "run":
        assert captured.out == mermaid(train(load_settings(first_root.options[1]))) + "\n"
    assert not list(tmp_path.iterdir())


def test_rerank_and_ablate_reuse_what_a_training_has_run(root: Root, table: Table) -> None:
    root.run("train_gnn.keep=last")  # `ingest` is told which trainings need dev queries: none of them all
    for command in (
        ["ablate", "--study", "gate"],
        ["rerank", "--systems", "colbert", "--set", "train_reranker.keep=last"],
    ):
        rows, _ = table(*command, *root.options, "--root", str(root.folder))
        assert {title for title, row in rows.items() if row[0] == "cached"} == {*FIRST}, command


def test_without_a_preset_the_times_are_the_plans(
    first_root: Root, tiny_backbone: Path, tiny_seq2seq: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(rates, "SECONDS", 0.2)
    overrides = [f"shared.backbone={tiny_backbone}", f"shared.generator={tiny_seq2seq}"]
    options = ["run", *first_root.options[2:], "--root", str(tmp_path)]
    options += [word for override in overrides for word in ("--set", override)]
    assert call(*options, "--mermaid") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("flowchart TD\n") and "plan " in captured.err and "plan " not in captured.out
    monkeypatch.setattr(rates, "measure_rates", None)  # the plan is there
    assert call(*options, "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    times = {line.split("  ")[0]: line.split() for line in lines}
    assert "of an earlier start" in lines[0]
    assert times["train_gnn"][1:3] == ["to", "run"] and times["train_gnn"][4] == "s"
    assert times["report: training"][4] == "–"
