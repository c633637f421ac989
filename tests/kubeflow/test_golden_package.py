"""The package of a graph of three nodes, as a file to read: what becomes of nodes, lists, labels and needs.

After a wanted change: `.venv/bin/python tests/kubeflow/test_golden_package.py` writes the file again.
"""

from pathlib import Path

import yaml

from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.graph import Given, Graph
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.package import package
from gnn_encoder.settings.outcome import Rank
from gnn_encoder.settings.pipeline import Settings

GOLDEN = Path(__file__).parent / "golden" / "three_nodes.yaml"
CLUSTER = {
    "images": {"cpu": "registry.example.com/steps:1", "gpu": "registry.example.com/steps:1-gpu"},
    "deadline_seconds": 600,
    "steps": {"rank": {"gpu": {}, "memory": "8Gi", "environment": {"TMPDIR": "/scratch"}, "timeout_seconds": 60}},
}


def three_nodes() -> str:
    """The package of a ranking with an existing bundle, and of its evaluation."""
    settings, graph = Settings(), Graph("three-nodes", "Ranks with a bundle, and evaluates the ranking.")
    dataset = graph.add("ingest", settings.ingest).output
    bundle, rank_settings = Given("s3://bucket/bundle"), Rank(system="GNN-encoder")
    run = graph.add("rank", rank_settings, "GNN-encoder", dataset=dataset, bundle=bundle).output
    graph.add("evaluate", settings.evaluate, dataset=dataset, runs=[run])
    arguments = {node.title: StepArguments(code_digest="1", label=node.label) for node in graph.nodes}
    arguments["ingest"].settings["dataset"] = "python-docs"
    documents = package(graph, arguments, Cluster.model_validate(CLUSTER))
    return yaml.safe_dump_all(documents, width=116, default_flow_style=None)


def test_a_graph_of_three_nodes_is_compiled_to_the_golden_package() -> None:
    assert three_nodes() == GOLDEN.read_text("utf-8")
    assert len(three_nodes().splitlines()) < 160


if __name__ == "__main__":
    GOLDEN.write_text(three_nodes(), "utf-8")
