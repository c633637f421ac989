"""The registered version as an MLflow model, in real stores and servers of MLflow."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gate import Gate
from loopback import free_port
from mlflow_store import write_store

from gnn_encoder.artifacts import Dataset
from gnn_encoder.errors import UserError
from gnn_encoder.promotion.registry import CHAMPION
from gnn_encoder.serving.retriever import Retriever

QUESTIONS = ["what is the old river", "how broken is the copper engine"]


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> Iterator[Gate]:
    """A store with one version, the champion."""
    folder = tmp_path_factory.mktemp("gate")
    with store(folder, write_store(folder / "mlflow.db")) as uri:
        gate_of = Gate(folder, tiny_dataset, tiny_backbone, uri)
        gate_of.decided("one", 10)
        yield gate_of


@contextlib.contextmanager
def store(folder: Path, uri: str) -> Iterator[str]:
    """The store at `uri` as that of this process, with local artifacts in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        patch.chdir(folder)
        yield uri


def champion(**more: Any) -> Any:
    import mlflow

    return mlflow.pyfunc.load_model(f"models:/tiny@{CHAMPION}", **more)


def searched(bundle: Path, k: int) -> list[list[tuple[Any, ...]]]:
    return [
        [(hit.passage_id, hit.title, hit.text) for hit in hits] for hits in Retriever.load(bundle).search(QUESTIONS, k)
    ]


def answered(predictions: list[list[dict[str, Any]]]) -> list[list[tuple[Any, ...]]]:
    return [[tuple(hit[key] for key in ("passage_id", "title", "text")) for hit in hits] for hits in predictions]


def test_the_model_answers_as_search(gate: Gate) -> None:
    import pandas as pd

    model, bundle = champion(), gate.folder / "one" / "bundle"
    answers = model.predict(QUESTIONS, params={"k": 3})
    assert answered(answers) == searched(bundle, 3) and len(answers[0]) == 3
    (expected, *_), (first, *_) = Retriever.load(bundle).search(QUESTIONS[0]), answers[0]
    assert (first["rank"], first["score"]) == (1, pytest.approx(expected.score, abs=1e-5))
    assert answered(model.predict(pd.DataFrame({"question": QUESTIONS}))) == searched(bundle, 10), "the default of k"
    assert answered(model.predict(QUESTIONS[1])) == searched(bundle, 10)[1:]


@pytest.mark.parametrize(("questions", "params", "said"), [
    ([" "], {}, "the question is empty"),
    (QUESTIONS, {"k": 0}, "0 passages were asked for"),
    (QUESTIONS, {"rerank": True}, "has no re-ranker"),
    (QUESTIONS, {"filter": "{a"}, "filter: '{a' is no JSON"),
    (QUESTIONS, {"filter": '{"a": 1}'}, "filter: the passages have no field 'a'"),
    ({"question": QUESTIONS}, {}, "give a list of questions"),
])  # fmt: skip
def test_a_wrong_request_is_refused_in_a_line(gate: Gate, questions: Any, params: dict[str, Any], said: str) -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match=said) as caught:
        champion().predict(questions, params=params)
    assert caught.value.get_http_status_code() == 400 and "\n" not in str(caught.value)


def test_the_model_holds_no_pickle_and_no_bundle(gate: Gate) -> None:
    (folder,) = (path.parent for path in gate.folder.rglob("MLmodel"))
    files = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert "pyfunc.py" in files and not {name for name in files if name.endswith((".pkl", ".pickle", ".joblib"))}
    assert sum(files.values()) < 20_000
    (example,) = json.loads((folder / "serving_input_example.json").read_text())["inputs"]
    assert len(champion().predict([example])[0]) == 10


def test_a_bundle_may_move_and_another_one_is_refused(gate: Gate) -> None:
    bundle, moved = gate.folder / "one" / "bundle", gate.folder / "moved"
    other = gate.inputs("other", 3)["bundle"]
    bundle.rename(moved)
    try:
        with pytest.raises(UserError, match="no bundle"):
            champion()
        assert champion(model_config={"bundle": str(moved)}).predict(QUESTIONS)
        shutil.copytree(other, bundle)
        with pytest.raises(UserError, match="is not the bundle that was registered"):
            champion()
    finally:
        shutil.rmtree(bundle, ignore_errors=True)
        moved.rename(bundle)


def test_the_run_shows_its_dataset_and_its_model(gate: Gate) -> None:
    from mlflow.tracking import MlflowClient

    client, version = MlflowClient(), gate.models.find(CHAMPION)
    run = client.get_run(version.run_id)
    (data,) = (one.dataset for one in run.inputs.dataset_inputs)
    digest = gate.dataset.manifest.digest[:36]
    assert (data.digest, json.loads(data.profile)) == (digest, gate.dataset.manifest.rows)
    (output,) = run.outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert model.status == "READY" and model.source_run_id == version.run_id
    assert client.get_model_version("tiny", version.number).source == f"models:/{model.model_id}"
    figures = {one.key: (one.value, one.dataset_name, one.dataset_digest) for one in model.metrics}
    assert figures["test/RR_at_10"] == (0.5, data.name, digest)
    assert model.params["system"] == "GNN-encoder" and model.tags["digest"] == version.tags["digest"]
    (logged,) = client.search_logged_models([run.info.experiment_id], datasets=[{"dataset_name": data.name}])
    assert logged.model_id == model.model_id


@pytest.mark.slow
def test_a_question_is_a_span_with_the_passages(gate: Gate) -> None:
    import mlflow

    experiment = mlflow.MlflowClient().create_experiment("traced", (gate.folder / "traces").as_uri())
    with pytest.MonkeyPatch.context() as patch:
        model = champion()

        def traces() -> list[Any]:
            mlflow.flush_trace_async_logging()
            return list(mlflow.search_traces(locations=[experiment], return_type="list"))

        model.predict(QUESTIONS)  # nobody asked for traces
        patch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
        mlflow.tracing.disable()
        model.predict(QUESTIONS)
        mlflow.tracing.enable()
        assert traces() == [], "the control"
        assert not mlflow.search_traces(locations=["0"], return_type="list")
        answers = model.predict(QUESTIONS, params={"k": 2})
        spans = {trace.data.spans[0].inputs["question"]: trace.data.spans[0] for trace in traces()}
        assert set(spans) == set(QUESTIONS)
        for question, hits in zip(QUESTIONS, answers, strict=True):
            assert spans[question].span_type == "RETRIEVER"
            assert [one["id"] for one in spans[question].outputs] == [hit["passage_id"] for hit in hits]
            assert spans[question].outputs[0]["page_content"] == hits[0]["text"]
        with mlflow.start_span("an application") as outer:
            model.predict(QUESTIONS)
        (trace,) = (one for one in traces() if one.info.trace_id == outer.trace_id)
        assert [span.span_type for span in trace.data.spans if span.parent_id == outer.span_id] == ["RETRIEVER"] * 2


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_no_version(gate: Gate) -> None:
    from mlflow.tracking import MlflowClient

    before = {version.number for version in gate.models.versions()}
    rival = gate.rival("killed", 18, "finalize_logged_model", "READY")
    rival.wait_for_stop()
    rival.kill()
    assert {version.number for version in gate.models.versions()} == before
    states = [model.status for model in MlflowClient().search_logged_models(["1"])]
    assert sorted(states) == ["PENDING", "READY"], "the control: it was killed while it logged the model"


@contextlib.contextmanager
def serving(log: Path, ready: str, *arguments: str) -> Iterator[str]:
    """A server of MLflow, once it answers at the path `ready`; yields its address."""
    at = free_port()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = [sys.executable, "-m", "mlflow", *arguments, "--host", "127.0.0.1", "--port", str(at)]
    environment = {**os.environ, "PATH": path, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
    try:
        until = time.monotonic() + 600
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{at}{ready}", timeout=5):
                break
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{at}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(60)


def posted(address: str, body: dict[str, Any]) -> dict[str, Any]:
    content = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/invocations", json.dumps(body).encode(), content)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["file", "server"])
def test_mlflow_serves_the_champion(kind: str, tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path) -> None:
    """`mlflow models serve` in a process of its own, on a SQLite store and on a tracking server."""
    uri = write_store(tmp_path / "mlflow.db")
    with contextlib.ExitStack() as stack:
        if kind == "server":
            places = ("--backend-store-uri", uri, "--artifacts-destination", str(tmp_path / "artifacts"))
            uri = stack.enter_context(serving(tmp_path / "server.log", "/health", "server", "--workers", "1", *places))
        stack.enter_context(store(tmp_path, uri))
        gate = Gate(tmp_path, tiny_dataset, tiny_backbone, uri)
        gate.decided("one", 5)
        gate.decided("two", 18)
        assert gate.models.find(CHAMPION).number == "2"
        model = ("models", "serve", "-m", f"models:/tiny@{CHAMPION}", "--env-manager", "local")
        address = stack.enter_context(serving(tmp_path / "model.log", "/ping", *model))
        answer = posted(address, {"inputs": QUESTIONS, "params": {"k": 4}})
        assert answered(answer["predictions"]) == searched(tmp_path / "two" / "bundle", 4)
        assert searched(tmp_path / "one" / "bundle", 4) != searched(tmp_path / "two" / "bundle", 4), "the control"
        with pytest.raises(urllib.error.HTTPError, match="400"):
            posted(address, {"inputs": [" "]})
