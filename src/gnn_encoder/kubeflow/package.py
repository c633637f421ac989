"""The compiled training pipeline with a cluster's settings laid on: what `server` is sent.

Nothing of the pipeline itself changes. KFP has two places for what a step asks for. Image, environment,
CPU, memory, GPUs and retries are in the pipeline's specification; the rest is Kubernetes' own and lies in a
second document beside it. Both are written through KFP's message types, which refuse an unknown field.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from gnn_encoder.runs import launch
from gnn_encoder.settings.cluster import Cluster, Retries, StepNeeds, Volume


def write_package(cluster: Cluster, target: Path) -> None:
    """Write train.yaml with the cluster's settings to `target`, a .yaml file that KFP's client takes."""
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2 as messages

    compiled, *more = yaml.safe_load_all(launch.pipeline_file("train").read_text("utf-8"))
    spec = json_format.ParseDict(compiled, messages.PipelineSpec())
    platforms = json_format.ParseDict(more[0] if more else {}, messages.PlatformSpec())
    deployment = json_format.ParseDict(compiled["deploymentSpec"], messages.PipelineDeploymentConfig())
    for name, task in spec.root.dag.tasks.items():
        step = launch.step_of(name)
        needs, label = cluster.needs(step), spec.components[task.component_ref.name].executor_label
        container = deployment.executors[label].container
        container.image = cluster.image(step) or container.image
        for variable, value in needs.environment.items():
            container.env.add(name=variable, value=value)
        _ask_for(container.resources, needs)
        if needs.retries:
            _retry(task.retry_policy, needs.retries)
        if config := _on_kubernetes(needs):
            platforms.platforms["kubernetes"].deployment_spec.executors[label].update(config)
    spec.deployment_spec.Clear()
    spec.deployment_spec.update(json_format.MessageToDict(deployment))
    documents = [json_format.MessageToDict(each) for each in (spec, platforms)]
    target.write_text(yaml.safe_dump_all(filter(None, documents)), encoding="utf-8")


def _ask_for(resources: Any, needs: StepNeeds) -> None:
    for name in ("cpu", "memory"):
        amount = getattr(needs, name)
        for bound in ("request", "limit"):
            if amount and (quantity := getattr(amount, bound)):
                setattr(resources, f"resource_{name}_{bound}", quantity)
    if needs.gpu:
        resources.accelerator.resource_type = needs.gpu.type
        resources.accelerator.resource_count = str(needs.gpu.count)


def _retry(policy: Any, retries: Retries) -> None:
    policy.max_retry_count = retries.count
    policy.backoff_duration.seconds = retries.backoff_seconds
    policy.backoff_factor = retries.factor
    policy.backoff_max_duration.seconds = retries.within_seconds


def _on_kubernetes(needs: StepNeeds) -> dict[str, Any]:
    from kfp import kubernetes

    # kfp-kubernetes writes to a task's platform_config and looks at nothing else of it. A compiled
    # pipeline has no such tasks any more.
    task: Any = SimpleNamespace(platform_config={})
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
        _mount(task, f"volume-{number}", volume)
    if needs.ephemeral_storage:
        kubernetes.empty_dir_mount(task, "ephemeral-storage", "/tmp", size_limit=needs.ephemeral_storage)
    if needs.timeout_seconds:
        kubernetes.set_timeout(task, needs.timeout_seconds)
    config: dict[str, Any] = task.platform_config.get("kubernetes", {})
    return config


def _mount(task: Any, name: str, volume: Volume) -> None:
    from kfp import kubernetes

    if volume.claim:
        kubernetes.mount_pvc(task, volume.claim, volume.mount, volume.sub_path)
    elif volume.config_map:
        kubernetes.use_config_map_as_volume(task, volume.config_map, volume.mount)
    elif volume.storage_class:
        kubernetes.add_ephemeral_volume(
            task, name, volume.mount, ["ReadWriteOnce"], volume.size, storage_class_name=volume.storage_class
        )
    else:
        kubernetes.empty_dir_mount(task, name, volume.mount, volume.medium, volume.size)
