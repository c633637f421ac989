"""Reads the cluster file, and makes the package for a KFP server: a compiled pipeline with cluster settings.

The pipeline's steps and their inputs are not changed. KFP has two places for the needs of a step. Image, environment,
CPU, memory, GPUs and retries are in the pipeline's specification. All other needs belong to Kubernetes and are in a
second document. Both documents are written through KFP's message types, which refuse an unknown field.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pydantic
import yaml

from gnn_encoder.engines import launch
from gnn_encoder.engines.trainer_api import TRAINER
from gnn_encoder.errors import UserError
from gnn_encoder.kubeflow.cluster import Cluster, Images
from gnn_encoder.kubeflow.step_needs import StepNeeds
from gnn_encoder.settings.pipeline import ON_NODES, StepArguments
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


def write_package(pipeline: str, cluster: Cluster, target: Path) -> None:
    """Writes the package of a pipeline to `target`, a .yaml file for KFP's client or web pages."""
    target.write_text(yaml.safe_dump_all(package(pipeline, cluster)), encoding="utf-8")


def package(pipeline: str, cluster: Cluster) -> list[dict[str, Any]]:
    """Returns the pipeline's specification and, if a step has needs that belong to Kubernetes, the second document."""
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2 as messages

    compiled, *more = yaml.safe_load_all(launch.pipeline_file(pipeline).read_text("utf-8"))
    spec = json_format.ParseDict(compiled, messages.PipelineSpec())
    platforms = json_format.ParseDict(more[0] if more else {}, messages.PlatformSpec())
    deployment = json_format.ParseDict(compiled["deploymentSpec"], messages.PipelineDeploymentConfig())
    # Loops and conditions are components with tasks of their own.
    graphs = (spec.root.dag, *(component.dag for component in spec.components.values()))
    for name, task in (item for graph in graphs for item in graph.tasks.items()):
        label = spec.components[task.component_ref.name].executor_label
        if not label or deployment.executors[label].WhichOneof("spec") != "container":
            continue  # a loop, a condition or KFP's importer
        step = launch.step_of(name)
        needs, container = cluster.needs(step), deployment.executors[label].container
        container.image = cluster.image(step) or container.image
        trainer = cluster.trainer if step in ON_NODES else None
        runtime = {TRAINER: f"{trainer.kind}/{trainer.runtime}"} if trainer else {}
        for variable, value in (needs.environment | runtime).items():
            container.env.add(name=variable, value=value)
        for kind, amount in (("cpu", needs.cpu), ("memory", needs.memory)):
            for bound, quantity in amount.model_dump(exclude_none=True).items() if amount else ():
                setattr(container.resources, f"resource_{kind}_{bound}", quantity)
        if needs.gpu:
            container.resources.accelerator.resource_type = needs.gpu.type
            container.resources.accelerator.resource_count = str(needs.gpu.count)
        if needs.retries:
            task.retry_policy.max_retry_count = needs.retries.count
            task.retry_policy.backoff_duration.seconds = needs.retries.backoff_seconds
            task.retry_policy.backoff_factor = needs.retries.factor
            task.retry_policy.backoff_max_duration.seconds = needs.retries.within_seconds
        task.caching_options.enable_cache = cluster.caching
        if config := _on_kubernetes(needs, cluster.images):
            platforms.platforms["kubernetes"].deployment_spec.executors[label].update(config)
    if whole := _of_the_run(cluster):
        json_format.ParseDict({"pipelineConfig": whole}, platforms.platforms["kubernetes"])
    spec.deployment_spec.Clear()
    spec.deployment_spec.update(json_format.MessageToDict(deployment))
    return [document for each in (spec, platforms) if (document := json_format.MessageToDict(each))]


def package_arguments(arguments: launch.Arguments, cluster: Cluster) -> launch.Arguments:
    """Returns the pipeline's arguments for the cluster.

    With Kubeflow Trainer a loop over the nodes of a training has one task, the leader, which starts the other nodes.
    """
    found = dict(arguments)
    for name, tasks in arguments.items() if cluster.trainer else ():
        if isinstance(tasks, list):
            found[name] = [task for task in tasks if not _follows(task)]  # type: ignore[assignment]
    return found


def _follows(task: str | dict[str, str]) -> bool:
    """Whether a task of a loop is a node of a training, but not the first."""
    return isinstance(task, str) and bool(StepArguments.model_validate_json(task).settings.get("node"))


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


def _on_kubernetes(needs: StepNeeds, images: Images) -> dict[str, Any]:
    from kfp import kubernetes

    # kfp-kubernetes only writes to a task's platform_config. A compiled pipeline has no tasks, so this object is one.
    task: Any = SimpleNamespace(platform_config={})
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
    config: dict[str, Any] = task.platform_config.get("kubernetes", {})
    return config
