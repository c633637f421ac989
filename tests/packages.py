"""Graphs of the four pipelines with arguments without digests, and their packages, each made once."""

import copy
import functools
from collections.abc import Mapping
from typing import Any

from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.graph import Given, Graph
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.package import package
from gnn_encoder.pipelines.ablation import ablation
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.pipelines.rerank import rerank
from gnn_encoder.pipelines.train import train
from gnn_encoder.pipelines.update import update
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.rungs import RERANKING
from gnn_encoder.settings.studies import variants

MODELS = ("dual_encoder", "cross_encoder", "gnn_encoder", "converged", "dpr")
SYSTEMS = ("k_nrm", "colbert", "bert_dmn", "ss_bert_h", "colbert_distilled")
"""Re-rankers on labelled triples, on generated queries and with a teacher."""
_made: dict[str, list[dict[str, Any]]] = {}


def graph_of(pipeline: str, *overrides: str) -> Graph:
    """The graph of a pipeline with the quickstart's settings."""
    settings = load_settings("quickstart", overrides)
    if pipeline == "update":
        return update(settings, {name: Given(f"s3://bucket/{name}") for name in MODELS})
    if pipeline == "ablation":
        return ablation(settings, variants(settings, ["parts"], []), 2)
    if pipeline == "ladder":
        return ladder(settings, RERANKING)
    if pipeline == "rerank":
        return rerank(settings, SYSTEMS, bundle=Given("s3://bucket/bundle"))
    return train(settings)


def arguments_without_digests(graph: Graph) -> dict[str, StepArguments]:
    return {
        node.title: StepArguments(settings=node.settings.model_dump(mode="json"), label=node.label)
        for node in graph.nodes
    }


def packaged(cluster: Cluster, graph: Graph) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pipeline's specification of a graph's package, and its platforms."""
    spec, *platforms = package(graph, arguments_without_digests(graph), cluster)
    return spec, platforms[0] if platforms else {}


@functools.cache
def documents(cluster: str, pipeline: str, *overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """As `packaged`, for a cluster file's JSON. The documents belong to all tests: they must not be changed."""
    return packaged(Cluster.model_validate_json(cluster), graph_of(pipeline, *overrides))


def remembered(graph: Graph, arguments: Mapping[str, StepArguments], cluster: Cluster) -> list[dict[str, Any]]:
    """The package, made once for the same graph, arguments and cluster file: else two seconds of every submission."""
    key = repr((graph.name, {title: call.model_dump_json() for title, call in arguments.items()}, cluster))
    if key not in _made:
        _made[key] = package(graph, arguments, cluster)
    return copy.deepcopy(_made[key])


def compiled(cluster: Cluster, pipeline: str = "train", *overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """As `documents`, for a cluster."""
    return documents(cluster.model_dump_json(exclude_unset=True), pipeline, *overrides)


def tasks_of(spec: dict[str, Any]) -> dict[str, Any]:
    tasks: dict[str, Any] = spec["root"]["dag"]["tasks"]
    return tasks


def executor(spec: dict[str, Any], task: str) -> str:
    """The label of a task's executor, by which both documents name what it needs."""
    return str(spec["components"][tasks_of(spec)[task]["componentRef"]["name"]]["executorLabel"])


def containers(spec: dict[str, Any]) -> dict[str, Any]:
    """Task → its container."""
    executors = {task: spec["deploymentSpec"]["executors"][executor(spec, task)] for task in tasks_of(spec)}
    return {task: one["container"] for task, one in executors.items() if "container" in one}


def needs_on_kubernetes(platforms: dict[str, Any]) -> dict[str, Any]:
    """Label of an executor → what its pod needs."""
    executors: dict[str, Any] = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return executors
