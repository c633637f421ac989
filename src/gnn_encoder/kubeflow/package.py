"""Compiles a graph to a package for a KFP server: tasks with their arguments, images and needs on the cluster.

KFP's compiler makes the package. Image, environment, CPU, memory, GPUs and retries are in the pipeline's specification;
all other needs belong to Kubernetes and are in a second document.
"""

import inspect
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from gnn_encoder.engines.containers import IMAGE
from gnn_encoder.engines.trainer_api import TRAINER
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.declared import declared
from gnn_encoder.flow.graph import Given, Graph, Node
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.components import RUN_PARAMETERS, component, run_parameters, task_name
from gnn_encoder.kubeflow.step_needs import StepNeeds
from gnn_encoder.settings.presets import read_yaml_file


def load_cluster(path: Path | None) -> Cluster:
    """Returns the settings in a cluster file; without a file, the defaults of the server and of Kubernetes.

    An error is one line that names the key but never the value, because the value may be a secret.
    """
    if path is None:
        return Cluster()
    if not path.is_file():
        raise UserError(f"no cluster file {path}: copy and edit pipelines/clusters/example.yaml")
    try:
        return Cluster.model_validate(read_yaml_file(path))
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        problem = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{path}: {f'{key}: ' if key else ''}{problem}{more}") from None


def write_package(graph: Graph, arguments: Mapping[str, StepArguments], cluster: Cluster, target: Path) -> None:
    """Writes the package of a graph to `target`, a .yaml file for KFP's client or web pages."""
    target.write_text(yaml.safe_dump_all(package(graph, arguments, cluster)), encoding="utf-8")


def package(graph: Graph, arguments: Mapping[str, StepArguments], cluster: Cluster) -> list[dict[str, Any]]:
    """Returns the pipeline's specification and, if a step has needs that belong to Kubernetes, the second document.

    Args:
        arguments: of each call, by title.
    """
    from kfp import compiler, dsl

    def pipeline(dataset: str = "", seed: str = "", label: str = "") -> None:
        given = dict(zip(RUN_PARAMETERS, (dataset, seed, label), strict=True))
        tasks: dict[Node, Any] = {}
        for node in graph.nodes:
            tasks[node] = _task(node, arguments[node.title], tasks, given, cluster)

    pipeline.__signature__ = _signature(arguments)  # type: ignore[attr-defined]
    made = dsl.pipeline(name=f"gnn-encoder-{graph.name}", description=graph.description)(pipeline)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "package.yaml"
        compiler.Compiler().compile(made, str(path))
        documents = list(yaml.safe_load_all(path.read_text("utf-8")))
    if whole := _of_the_run(cluster):
        documents = [*documents[:1], documents[1] if documents[1:] else {"platforms": {"kubernetes": {}}}]
        documents[1]["platforms"]["kubernetes"]["pipelineConfig"] = whole
    return documents


def _signature(arguments: Mapping[str, StepArguments]) -> Any:
    """Returns the parameters of a run; the default of `dataset` is the settings'."""
    data = str(arguments["ingest"].settings["dataset"]) if "ingest" in arguments else ""
    defaults = {"dataset": data, "seed": "", "label": ""}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=defaults[name], annotation=str) for name in RUN_PARAMETERS]
    )


def _task(
    node: Node, arguments: StepArguments, tasks: Mapping[Node, Any], given: Mapping[str, Any], cluster: Cluster
) -> Any:
    """Adds the task of a call to the pipeline that is being compiled."""
    from kfp import dsl

    step, inputs, lists = declared(node.step), {}, {}
    for name, value in node.inputs.items():
        artifacts = value if isinstance(value, tuple) else (value,)
        for number, artifact in enumerate(artifacts):
            if isinstance(artifact, Given):
                source = dsl.importer(artifact_uri=artifact.address, artifact_class=dsl.Artifact).output
            else:
                source = tasks[artifact.node].outputs[artifact.name]
            inputs[f"{name}_{number}" if isinstance(value, tuple) else name] = source
        if isinstance(value, tuple):
            lists[name] = len(value)
    needs = cluster.needs(node.step)
    image = cluster.image(node.step) or IMAGE
    parameters = {parameter: given[name] for name, parameter in run_parameters(step).items()}
    made = component(step, image, task_name(node.title), lists)
    task = made(arguments=arguments.model_dump_json(), **parameters, **inputs)
    task.set_display_name(task_name(node.title))
    for before in node.after:
        task.after(tasks[before])
    task.set_caching_options(cluster.caching)
    _set_needs(task, needs, cluster)
    return task


def _set_needs(task: Any, needs: StepNeeds, cluster: Cluster) -> None:
    """Gives a task what its step requests from the cluster."""
    from kfp import kubernetes

    runtime = {TRAINER: f"{cluster.trainer.kind}/{cluster.trainer.runtime}"} if cluster.trainer else {}
    for variable, value in (needs.environment | runtime).items():
        task.set_env_variable(variable, value)
    for amount, request, limit in (
        (needs.cpu, task.set_cpu_request, task.set_cpu_limit),
        (needs.memory, task.set_memory_request, task.set_memory_limit),
    ):
        if amount and amount.request:
            request(amount.request)
        if amount and amount.limit:
            limit(amount.limit)
    if needs.gpu:
        task.set_accelerator_type(needs.gpu.type)
        task.set_accelerator_limit(str(needs.gpu.count))
    if needs.retries:
        task.set_retry(
            needs.retries.count,
            backoff_duration=f"{needs.retries.backoff_seconds}s",
            backoff_factor=needs.retries.factor,
            backoff_max_duration=f"{needs.retries.within_seconds}s",
        )
    images = cluster.images
    if images.pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(images.pull_secrets))
    if images.pull_policy:
        kubernetes.set_image_pull_policy(task, images.pull_policy)
    for secret, variables in needs.secrets.items():
        kubernetes.use_secret_as_env(task, secret, variables)
    for config_map, variables in needs.config_maps.items():
        kubernetes.use_config_map_as_env(task, config_map, variables)
    for label, value in needs.node_selector.items():
        kubernetes.add_node_selector(task, label, value)
    for each in needs.tolerations:
        kubernetes.add_toleration(
            task, each.key or None, each.operator, each.value or None, each.effect, toleration_seconds=each.seconds
        )
    for term in needs.affinity:
        kubernetes.add_node_affinity(task, [each.model_dump() for each in term.match], weight=term.weight)
    for number, volume in enumerate(needs.volumes):
        name = f"volume-{number}"
        if volume.claim:
            kubernetes.mount_pvc(task, volume.claim, volume.mount, volume.sub_path)
        elif volume.config_map:
            kubernetes.use_config_map_as_volume(task, volume.config_map, volume.mount)
        elif volume.secret:
            kubernetes.use_secret_as_volume(task, volume.secret, volume.mount)
        elif volume.storage_class:
            kubernetes.add_ephemeral_volume(
                task, name, volume.mount, ["ReadWriteOnce"], volume.size, storage_class_name=volume.storage_class
            )
        else:
            kubernetes.empty_dir_mount(task, name, volume.mount, volume.medium, volume.size)
    if needs.ephemeral_storage:
        kubernetes.empty_dir_mount(task, "ephemeral-storage", "/tmp", size_limit=needs.ephemeral_storage)
    for key, value in needs.labels.items():
        kubernetes.add_pod_label(task, key, value)
    for key, value in needs.annotations.items():
        kubernetes.add_pod_annotation(task, key, value)
    if rights := needs.security.model_dump(exclude_none=True):
        kubernetes.set_security_context(task, **rights)
    if needs.timeout_seconds:
        kubernetes.set_timeout(task, needs.timeout_seconds)


def _of_the_run(cluster: Cluster) -> dict[str, int]:
    """Returns the needs of the run as a whole, named as in KFP's message `PipelineConfig`."""
    ttl = cluster.ttl_seconds
    seconds = {
        "activeDeadlineSeconds": cluster.deadline_seconds,
        "resourceTtlOnCompletion": ttl.ended,
        "resourceTtlOnSuccess": ttl.succeeded,
        "resourceTtlOnFailure": ttl.failed,
    }
    return {name: value for name, value in seconds.items() if value}
