"""A package runs as the local engine runs its graph: the same steps, the same inputs, the same contents of outputs."""

from pathlib import Path

import pytest
from beir_folder import PASSAGES, lines, write_beir
from kfp_process_launcher import run_processes

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.engines.local import Engine, calls_of
from gnn_encoder.engines.processes import FORK_AFTER, StepProcesses
from gnn_encoder.flow.arguments import StepArguments, task_name
from gnn_encoder.flow.graph import Graph
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.package import write_package
from gnn_encoder.pipelines.foundation import search_by_words
from gnn_encoder.settings.foundation import Bm25Retrieve, Ingest
from gnn_encoder.settings.pipeline import Settings


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """Two tasks rank by words and share the work; a third merges the list of their outputs."""
    monkeypatch.setenv(FORK_AFTER, "never")
    data = str(write_beir(tmp_path / "data"))
    settings = Settings(ingest=Ingest(dataset=data), bm25_retrieve=Bm25Retrieve(shards=2))
    graph = Graph("words")
    search_by_words(graph, settings)
    return graph


@pytest.mark.slow
def test_a_package_and_the_local_engine_make_the_same(graph: Graph, tmp_path: Path) -> None:
    arguments = {
        node.title: StepArguments(settings=node.settings.model_dump(mode="json"), label=node.label)
        for node in graph.nodes
    }
    engine = Engine(tmp_path / "here", StepProcesses())
    engine.execute(calls_of(graph, arguments))
    write_package(graph, arguments, Cluster(), tmp_path / "package.yaml")
    run = run_processes(tmp_path / "package.yaml", tmp_path / "there", label="by hand")
    for node in graph.nodes:
        for output, path in engine.outputs[node.title].items():
            there = Path(run.uri(task_name(node.title), output))
            assert read_manifest(there).digest == read_manifest(path).digest, node.title
            assert list(read_history(there)) == list(read_history(Path(path))), node.title


@pytest.mark.slow
def test_a_package_is_run_for_other_data(graph: Graph, tmp_path: Path) -> None:
    first = Graph("ingest", nodes=graph.of("ingest"))
    arguments = {"ingest": StepArguments(settings=graph["ingest"].settings.model_dump(mode="json"))}
    write_package(first, arguments, Cluster(), tmp_path / "package.yaml")
    more = [*PASSAGES, {"_id": "d9", "title": "Title 9", "text": "text of passage 9"}]
    other = write_beir(tmp_path / "other", corpus=lines(more))
    run = run_processes(tmp_path / "package.yaml", tmp_path / "there", dataset=str(other))
    dataset = Path(run.uri("ingest", "dataset"))
    assert (read_manifest(dataset).settings["dataset"], len(Dataset(dataset).passages)) == (str(other), 7)
