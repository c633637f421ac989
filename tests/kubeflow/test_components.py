"""Each step as a component of KFP: in a file, in `from components import`, and in somebody else's pipeline."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import call
from kfp import compiler, components, dsl
from kfp.dsl import Dataset, Input
from kfp_api import check_pipeline

from gnn_encoder import data
from gnn_encoder.flow.arguments import task_name
from gnn_encoder.flow.declared import declared, step_names
from gnn_encoder.kubeflow.components import run_parameters, step_of_task


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The component files that the command writes."""
    folder = tmp_path_factory.mktemp("components") / "of" / "steps"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        Path("c.yaml").write_text("images: {cpu: a, gpu: b}\nsteps: {train_gnn: {gpu: {}}}\n", "utf-8")
        assert call("compile", "--components", str(folder), "--cluster", "c.yaml") == 0
    return folder


@pytest.mark.parametrize("name", step_names())
def test_a_step_is_a_component_with_its_inputs_and_outputs(name: str, files: Path) -> None:
    step, component = declared(name), components.load_component_from_file(str(files / f"{name}.yaml"))
    inputs = component.component_spec.inputs
    artifacts = {
        key: declaration for key, declaration in inputs.items() if key not in ("arguments", "source", "seed", "label")
    }
    assert {key: (declaration.is_artifact_list, declaration.optional) for key, declaration in artifacts.items()} == {
        key: (declaration.is_list, declaration.is_optional) for key, declaration in step.inputs.items()
    }
    assert {key for key in inputs if key not in artifacts} == {"arguments", *run_parameters(step).values()}
    assert all(inputs[key].optional for key in inputs if key not in artifacts)
    shown = {"report": {"page": "system.HTML"}, "evaluation": {"table": "system.Metrics"}}
    types = {
        key: declaration.type.partition("@")[0] for key, declaration in (component.component_spec.outputs or {}).items()
    }
    more = {key: kind for schema in step.outputs.values() for key, kind in shown.get(schema, {}).items()}
    assert {*types} == {*step.outputs, *more} and more.items() <= types.items()
    assert component.component_spec.implementation.container.image == ("b" if name == "train_gnn" else "a")
    assert component.description == step.purpose
    check_pipeline(yaml.safe_load((files / f"{name}.yaml").read_text("utf-8")))


@dsl.component(base_image="python:3.11")
def write_texts(texts: dsl.Output[Dataset]) -> None:
    """A step of somebody else."""


@dsl.component(base_image="python:3.11")
def read_figures(evaluation: Input[dsl.Artifact]) -> None:
    """Another."""


def test_a_component_file_is_used_in_a_pipeline_of_somebody_else(files: Path, tmp_path: Path) -> None:
    steps = {name: components.load_component_from_file(str(files / f"{name}.yaml")) for name in step_names()}

    @dsl.pipeline(name="theirs")
    def theirs(address: str, seed: str = "7") -> None:
        texts = write_texts()
        dataset = steps["ingest"](source=address, seed=seed).after(texts).outputs["dataset"]
        index = steps["index_bm25"](dataset=dataset, arguments='{"settings": {"k1": 1.2}}')
        with dsl.ParallelFor(['{"label": "a"}', '{"label": "b"}']) as arguments:
            ranking = steps["bm25_retrieve"](dataset=dataset, bm25_index=index.output, arguments=arguments)
        figures = steps["evaluate"](dataset=dataset, runs=dsl.Collected(ranking.output))
        read_figures(evaluation=figures.outputs["evaluation"])

    path = tmp_path / "theirs.yaml"
    compiler.Compiler().compile(theirs, str(path))
    spec = yaml.safe_load(path.read_text("utf-8"))
    check_pipeline(spec)
    tasks = spec["root"]["dag"]["tasks"]
    assert tasks["ingest"]["inputs"]["parameters"]["source"] == {"componentInputParameter": "address"}
    assert tasks["evaluate"]["inputs"]["artifacts"]["runs"]["taskOutputArtifact"]["producerTask"].startswith("for-loop")
    container = spec["deploymentSpec"]["executors"]["exec-ingest"]["container"]
    assert (container["image"], container["command"][-1]) == ("a", "ingest")


def test_components_are_imported_by_name() -> None:
    ours: Any = importlib.import_module("components")
    assert ours.train_gnn.name == "train-gnn" and set(ours.__all__) == set(step_names())
    assert set(ours.evaluate.component_spec.inputs) >= {"dataset", "runs", "arguments", "seed", "label"}
    with pytest.raises(ImportError):
        exec("from components import train_nothing", {})


def test_a_package_or_components_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "source_digest", lambda values: "1")
    Path("c.yaml").write_text("images: {cpu: a}\n", "utf-8")
    assert call("compile", "--cluster", "c.yaml") == 2
    assert "give --preset for the package of a run, or --components DIR" in capsys.readouterr().err
    compiled = ("compile", "--preset", "quickstart", "--cluster", "c.yaml")
    assert call(*compiled, "-o", "package.txt") == 2
    assert "-o package.txt: the name of a package ends with .yaml" in capsys.readouterr().err
    assert call(*compiled, "-o", "package.yaml") == 0
    assert capsys.readouterr().out == "wrote package.yaml\n"
    component = components.load_component_from_file("package.yaml")
    assert list(component.component_spec.inputs) == ["dataset", "label", "seed"]
    assert call(*compiled, "--pipeline", "ladder", "--until", "as-it-is", "-o", "package.yaml") == 0
    tasks = yaml.safe_load(Path("package.yaml").read_text("utf-8").partition("\n---")[0])["root"]["dag"]["tasks"]
    assert "rank-untrained" in tasks and "make-parts-untrained" not in tasks
    capsys.readouterr()
    assert call(*compiled, "--until", "labels") == 2
    assert "--until belongs to the ladder: add --pipeline ladder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("title", "task", "step"),
    [
        ("rank: Dual encoder", "rank-dual-encoder", "rank"),
        ("rerank: 1 of 2", "rerank-1-of-2", "rerank"),
        ("merge: encode_nodes", "merge-encode-nodes", "merge"),
        ("train_reranker: SS-BERT(h)", "train-reranker-ss-bert-h", "train_reranker"),
        ("evaluate", "evaluate", "evaluate"),
        ("evaluate_passages: C", "evaluate-passages-c", "evaluate_passages"),
    ],
)
def test_the_name_of_a_task_tells_its_step(title: str, task: str, step: str) -> None:
    assert (task_name(title), step_of_task(task)) == (task, step)
    assert step_of_task("importer") == step_of_task("for-loop-1") == step_of_task("rankings") == ""
