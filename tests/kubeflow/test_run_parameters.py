"""What a run's parameters change in its steps: the data set, the seed, and a label in MLflow."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.engines import step as engine
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import ORIGIN, StepArguments
from gnn_encoder.flow.declared import declared
from gnn_encoder.kubeflow.components import run_parameters
from gnn_encoder.settings.presets import changed_settings, load_settings, parse_settings
from gnn_encoder.steps.__main__ import main, with_parameters
from gnn_encoder.tracking.mlflow_runs import StepLog

DATA, SETTINGS, CODE = ORIGIN


def ingested(folder: Path, arguments: StepArguments, **parameters: str) -> Path:
    """The output of the tiny `ingest`, called as KFP's launcher calls a container's program."""
    parameter_values = {"arguments": arguments.model_dump_json(exclude_defaults=True), **parameters}
    outputs = {"artifacts": {"dataset": {"artifacts": [{"uri": str(folder)}]}}}
    text = json.dumps({"inputs": {"parameterValues": parameter_values}, "outputs": outputs})
    main(["tiny_pipeline:ingest", "--executor_input", text])
    return folder


def test_a_run_of_other_data_with_another_seed(tmp_path: Path) -> None:
    compiled = StepArguments(settings={"dataset": "ours", "seed": 3}, source_digests={"dataset": "1", "labels": "2"})
    as_it_is = ingested(tmp_path / "a", compiled, source="ours", seed="", label="")
    other = ingested(tmp_path / "b", compiled, source="theirs", seed="12", label="")
    alone = ingested(tmp_path / "c", StepArguments(), source="theirs")
    assert [(arguments / "words.txt").read_text() for arguments in (as_it_is, other, alone)] == [
        "ours",
        "theirs",
        "theirs",
    ]
    assert [read_manifest(arguments).settings["seed"] for arguments in (as_it_is, other, alone)] == [3, 12, 0]


def changed(step: str, call: StepArguments, **parameters: str) -> StepArguments:
    return StepArguments.model_validate_json(with_parameters(step, call.model_dump_json(), parameters))


@pytest.mark.parametrize("parameters", [{}, {"source": "", "seed": "", "label": ""}, {"source": "ours", "label": "a"}])
def test_parameters_that_name_nothing_else_change_no_arguments(parameters: dict[str, str]) -> None:
    ingest = StepArguments(settings={"dataset": "ours", "seed": 3}, source_digests={"dataset": "1", "labels": "2"})
    promote = StepArguments(source_digests=dict.fromkeys(ORIGIN, "1"), dataset="ours")
    assert changed("ingest", ingest, **parameters) == ingest
    assert changed("promote", promote, **parameters) == promote


@pytest.mark.parametrize("seed", ["7.5", "-1", "seven"])
def test_a_seed_that_is_none_is_one_line(seed: str) -> None:
    with pytest.raises(UserError, match=f"the run's seed is '{seed}'"):
        changed("ingest", StepArguments(settings={"dataset": "ours"}), seed=seed)


def test_digests_that_do_not_hold_for_the_run_are_left_out() -> None:
    ingest = StepArguments(settings={"dataset": "ours"}, source_digests={"dataset": "1", "labels": "2"})
    promote = StepArguments(source_digests={**dict.fromkeys(ORIGIN, "1"), "registry": "2"}, dataset="ours")
    assert changed("ingest", ingest, source="theirs").source_digests == {"labels": "2"}
    of_data = changed("promote", promote, source="theirs")
    of_seed = changed("promote", promote, source="ours", seed="4")
    assert set(of_data.source_digests) == {SETTINGS, CODE, "registry"} and of_data.settings == {}
    others = [changed("promote", promote, seed=seed).source_digests for seed in ("4", "5")]
    assert others[0] == of_seed.source_digests and len({of[SETTINGS] for of in others} - {"1"}) == 2
    assert {name: value for name, value in others[1].items() if name != SETTINGS} == {
        DATA: "1",
        CODE: "1",
        "registry": "2",
    }
    assert of_seed.settings == {}


def test_the_trials_of_graphs_have_the_seed_of_the_run() -> None:
    tried = [{"variant": name, "seed": 3} for name in ("one layer", "two layers")]
    call = changed("choose_graph", StepArguments(settings={"seeds": 2, "tried": tried}), seed="12")
    assert [trial["seed"] for trial in call.settings["tried"]] == [12, 12] and "seed" not in call.settings
    assert "seed" in run_parameters(declared("choose_graph")), "a component has the parameter"
    assert changed("choose_graph", StepArguments(), seed="12").settings == {}


def test_the_settings_that_repeat_the_run_have_its_seed() -> None:
    settings = load_settings("scifact", ["train_gnn.seed=5"])
    report = StepArguments(settings={"changed": changed_settings(settings)})
    seeded = changed("report", report, seed="12").settings
    again = parse_settings(seeded["changed"])
    assert [again.train_gnn.seed, again.evaluate.seed, again.ingest.seed] == [12, 12, 12] and set(seeded) == {"changed"}
    assert again.train_gnn.model_copy(update={"seed": 5}) == settings.train_gnn
    assert again.promote == settings.promote and again.index_bm25 == settings.index_bm25
    assert "seed" in run_parameters(declared("report")), "a component has the parameter"
    assert changed("report", report, seed="") == report


def test_a_label_is_a_tag_in_mlflow_on_which_no_result_depends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Mapping[str, str]] = []

    @contextmanager
    def log(title: str, *, params: Any, tags: Mapping[str, str]) -> Iterator[StepLog]:
        seen.append(tags)
        yield StepLog()

    monkeypatch.setattr(engine, "step_log", log)
    compiled = StepArguments(settings={"dataset": "ours"})
    first, second = ingested(tmp_path / "a", compiled, label="nightly"), ingested(tmp_path / "b", compiled, label="")
    assert [tags.get("label") for tags in seen] == ["nightly", None]
    assert seen[0]["key"] == seen[1]["key"] and read_manifest(first).digest == read_manifest(second).digest
