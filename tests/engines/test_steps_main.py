"""A step's command: the paths that it makes of the addresses in an executor input, whoever wrote it."""

import json
import signal
import sys
from functools import wraps
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import first_stage

from gnn_encoder.artifacts import Dataset, Run, drafting, read_manifest
from gnn_encoder.engines.local import Call, calls_of, executor_input
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.declared import declared
from gnn_encoder.flow.graph import Given, Graph
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.steps.__main__ import main


def declaration(
    context: Any, settings: Any, dataset: Path, runs: list[Path], run: Any, table: Any, bundle: Path | None = None
) -> None:
    """The signature of a step with all kinds of inputs, and two outputs."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """The calls of `outside:gather`, a step of another package."""
    steps_called: list[SimpleNamespace] = []

    @wraps(declaration)
    def gather(arguments: str, addresses: dict[str, str], tags: dict[str, str], **paths: Any) -> None:
        steps_called.append(SimpleNamespace(arguments=json.loads(arguments), addresses=addresses, paths=paths))

    outside = ModuleType("outside")
    outside.gather = gather  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "outside", outside)
    return steps_called


def command(inputs: dict[str, list[str]], output_paths: dict[str, str], **arguments: Any) -> list[str]:
    """The command of a step with addresses of its inputs and outputs, as KFP's launcher completes it."""
    artifacts = {name: {"artifacts": [{"uri": uri} for uri in uris]} for name, uris in inputs.items()}
    outputs = {name: {"artifacts": [{"uri": uri}]} for name, uri in output_paths.items()}
    text = json.dumps(
        {
            "inputs": {"parameterValues": {"arguments": json.dumps(arguments)}, "artifacts": artifacts},
            "outputs": {"artifacts": outputs},
        }
    )
    return ["outside:gather", "--executor_input", text]


OUTPUTS = {"run": "/root/run", "table": "/root/table"}


@pytest.mark.parametrize(
    ("runs", "paths"),
    [
        ({"runs": ["/b", "/a", "/c"]}, ["/b", "/a", "/c"]),
        ({"runs_0": ["/b"], "runs_2": ["/c"], "runs_1": ["/a"]}, ["/b", "/a", "/c"]),
        ({f"runs_{i}": [f"/{i}"] for i in range(12)}, [f"/{i}" for i in range(12)]),
        ({"runs_0": ["/a"], "runs_2": ["/not the next"]}, ["/a"]),
        ({}, []),
    ],
)
def test_a_list_is_one_list_or_has_numbered_names(
    runs: dict[str, list[str]], paths: list[str], calls: list[SimpleNamespace]
) -> None:
    main(command({"dataset": ["/data"], **runs}, OUTPUTS, label="A"))
    (call,) = calls
    assert call.paths == {"dataset": "/data", "runs": paths, **OUTPUTS}, "an optional input may be absent"
    assert call.addresses == {"dataset": "/data"} and call.arguments["label"] == "A"


def test_an_optional_input_that_is_given_is_passed_on(calls: list[SimpleNamespace]) -> None:
    main(command({"dataset": ["/data"], "bundle": ["/bundle"], "runs": ["/a"]}, OUTPUTS))
    assert calls[0].paths["bundle"] == "/bundle" == calls[0].addresses["bundle"]


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("s3://bucket/v2/run", "/s3/bucket/v2/run"),
        ("minio://mlpipeline/v2/run", "/minio/mlpipeline/v2/run"),
        ("gs://bucket/v2/run", "/gcs/bucket/v2/run"),
    ],
)
def test_an_address_in_a_store_is_where_kfps_launcher_puts_it(
    uri: str, path: str, calls: list[SimpleNamespace]
) -> None:
    from kfp.dsl import Artifact

    assert Artifact(uri=uri).path == path
    main(command({"dataset": [uri], "runs_0": [uri]}, {"run": f"{uri}/a", "table": f"{uri}/b"}))
    (call,) = calls
    assert call.paths == {"dataset": path, "runs": [path], "run": f"{path}/a", "table": f"{path}/b"}
    assert call.addresses == {"dataset": uri}, "a registered bundle is named by its address, not by a pod's path"


def test_the_local_engine_writes_what_the_command_reads(calls: list[SimpleNamespace]) -> None:
    graph = Graph("one")
    graph.add("evaluate", Evaluate(), dataset=Given("/data"), runs=[Given("/a"), Given("/b")])
    (call,) = calls_of(graph, {"evaluate": StepArguments(settings={"depth": 7})})
    assert (call.inputs, call.outputs) == ({"dataset": ["/data"], "runs": ["/a", "/b"]}, ("evaluation",))
    again = Call(**json.loads(json.dumps(vars(call))))  # as the engine's process reads it
    text = executor_input(again, {"dataset": ["/data"], "runs": ["/a", "/b"]}, OUTPUTS)
    main(["outside:gather", "--executor_input", text])
    assert calls[0].paths == {"dataset": "/data", "runs": ["/a", "/b"], **OUTPUTS}
    assert calls[0].arguments["settings"] == {"depth": 7}


def test_another_command_is_refused() -> None:
    with pytest.raises(SystemExit, match="unknown option --input: give NAME --executor_input JSON"):
        main(["ingest", "--input", "{}"])


def test_kfps_page_of_a_run_shows_the_table_and_the_report(tiny_dataset: Dataset, tmp_path: Path) -> None:
    from google.protobuf import json_format
    from kfp import dsl
    from kfp.pipeline_spec import pipeline_spec_pb2 as messages

    def execute(step: str, paths: dict[str, Path], shown: str, kind: str, **settings: Any) -> Any:
        """Runs a step with what shows its output; returns that artifact as KFP's launcher reads it."""
        (output,) = declared(step).outputs
        output_paths = {name: str(tmp_path / step / name) for name in (output, shown)}
        artifacts = {name: {"artifacts": [{"uri": str(path)}]} for name, path in paths.items()}
        types = {output: "system.Artifact", shown: kind}
        outputs = {
            name: {"artifacts": [{"name": name, "uri": uri, "type": {"schemaTitle": types[name]}}]}
            for name, uri in output_paths.items()
        }
        file = tmp_path / step / "kfp_outputs" / "output_metadata.json"
        inputs = {"parameterValues": {"arguments": json.dumps({"settings": settings})}, "artifacts": artifacts}
        text = json.dumps({"inputs": inputs, "outputs": {"artifacts": outputs, "outputFile": str(file)}})
        main([step, "--executor_input", text])
        executor_output = json_format.Parse(file.read_text("utf-8"), messages.ExecutorOutput())
        ((name, listed),) = executor_output.artifacts.items()
        (artifact,) = listed.artifacts
        assert (name, artifact.uri, artifact.type.schema_title) == (shown, output_paths[shown], kind)
        return artifact

    queries, hits = first_stage(tiny_dataset)
    hits = (hits[:, 5:6] + np.arange(5, -3, -1)) % len(tiny_dataset.passages)  # the positive is sixth
    orders, scores = (
        {"BM25": slice(None, None, -1), "Dual encoder": slice(None)},
        np.tile(-np.arange(8.0), (len(hits), 1)),
    )
    for system, order in orders.items():
        with drafting(tmp_path / system, "run") as draft:
            Run.from_hits(queries, hits[:, order], scores).write(draft, system)
    handler = signal.getsignal(signal.SIGTERM)  # which a step's process replaces
    try:
        paths = {"dataset": tiny_dataset.path, "runs_0": tmp_path / "BM25", "runs_1": tmp_path / "Dual encoder"}
        how = {"candidate": "Dual encoder", "baseline": "BM25", "measures": ["RR@10", "R@5"], "permutations": 10}
        table = execute("evaluate", paths, "table", "system.Metrics", **how)
        paths = {"dataset": tiny_dataset.path, "evaluation": tmp_path / "evaluate" / "evaluation"}
        page = execute("report", paths, "page", "system.HTML")
    finally:
        signal.signal(signal.SIGTERM, handler)
    metrics = dsl.Metrics()  # KFP's own class for a step's metrics
    for system, values in {"BM25": (1 / 3, 1.0), "Dual encoder": (1 / 6, 0.0)}.items():
        for measure, value in zip(("MRR@10", "R@5"), values, strict=True):
            metrics.log_metric(f"{measure} on test: {system}", value)
    assert json_format.MessageToDict(table.metadata) == pytest.approx(metrics.metadata)
    assert json.loads(Path(table.uri).read_text()) == pytest.approx(metrics.metadata)
    report = tmp_path / "report" / "report"
    assert Path(page.uri).read_bytes() == (report / "report.html").read_bytes()
    assert page.metadata["headline"] == read_manifest(report).metrics["headline"]
