"""Compiles a graph to a package for a KFP server: tasks with their arguments, images and needs on the cluster.

KFP's compiler makes the tasks. Image, environment, CPU, memory, GPUs and retries are in the pipeline's specification;
all other needs belong to Kubernetes and are in a second document. Both documents are written through KFP's message
types, which refuse an unknown field.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from gnn_encoder.engines.containers import IMAGE
from gnn_encoder.engines.trainer_requests import TRAINER, Requests
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import StepArguments, task_name
from gnn_encoder.flow.declared import declared
from gnn_encoder.flow.graph import Artifact, Given, Graph, Node, Output
from gnn_encoder.kubeflow.cluster import Cluster, Images, Trainer
from gnn_encoder.kubeflow.components import RUN_PARAMETERS, component, run_parameters
from gnn_encoder.kubeflow.step_needs import Amount, StepNeeds
from gnn_encoder.models.trusted_code import TRUSTED
from gnn_encoder.settings.presets import read_yaml_file
from gnn_encoder.settings.services import ALLOWED, addresses_in, safe

WAITING_CPU, WAITING_MEMORY = "500m", "2Gi"
"""What the pod of a step requests while a TrainJob trains: it imports torch, and checks and sends artifacts."""


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
    from google.protobuf import json_format
    from kfp import dsl

    tasks: dict[Node, Any] = {}
    imported: dict[Given, Any] = {}

    def output(artifact: Artifact) -> Any:
        if isinstance(artifact, Output):
            return tasks[artifact.node].outputs[artifact.name]
        if artifact not in imported:
            imported[artifact] = dsl.importer(artifact_uri=artifact.address, artifact_class=dsl.Artifact).output
        return imported[artifact]

    data = str(arguments["ingest"].settings["dataset"]) if "ingest" in arguments else ""
    of_promotion = [node.title for node in graph.of("promote")]
    arguments = {
        **arguments,
        **{title: arguments[title].model_copy(update={"dataset": data}) for title in of_promotion},
    }

    def pipeline(dataset: str = data, seed: str = "", label: str = "") -> None:
        values = dict(zip(RUN_PARAMETERS, (dataset, seed, label), strict=True))
        for node in graph.nodes:
            tasks[node] = task = _task(node, arguments[node.title], output, values, cluster)
            task.after(*(tasks[before] for before in node.after))

    ttl = cluster.ttl_seconds
    of_the_run = dsl.PipelineConfig(
        ttl_seconds_after_finished=ttl.ended,
        ttl_seconds_after_success=ttl.succeeded,
        ttl_seconds_after_failure=ttl.failed,
        active_deadline_seconds=cluster.deadline_seconds,
    )
    compiled = dsl.pipeline(
        name=f"gnn-encoder-{graph.name}", description=graph.description, pipeline_config=of_the_run
    )(pipeline)
    spec = compiled.pipeline_spec
    _set_container_needs(spec, {task.name: node for node, task in tasks.items()}, cluster)
    return [document for message in (spec, compiled.platform_spec) if (document := json_format.MessageToDict(message))]


def _task(
    node: Node, arguments: StepArguments, output: Callable[[Artifact], Any], values: Mapping[str, Any], cluster: Cluster
) -> Any:
    """Adds the task of a call to the pipeline that is being compiled."""
    step = declared(node.step)
    lists = {name: len(value) for name, value in node.inputs.items() if isinstance(value, tuple)}
    inputs = {
        f"{name}_{number}" if name in lists else name: output(artifact)
        for name, value in node.inputs.items()
        for number, artifact in enumerate(value if isinstance(value, tuple) else (value,))
    }
    parameters = {parameter: values[name] for name, parameter in run_parameters(step).items()}
    step_component = component(step, cluster.image(node.step) or IMAGE, task_name(node.title), lists)
    task = step_component(arguments=arguments.model_dump_json(exclude_defaults=True), **parameters, **inputs)
    task.set_caching_options(cluster.caching)
    _set_task_needs(task, cluster.needs(node.step), cluster.images)
    return task


def _set_container_needs(spec: Any, nodes: Mapping[str, Node], cluster: Cluster) -> None:
    """Writes environment, CPU, memory and GPUs of each task into a pipeline's specification.

    The methods of KFP's tasks refuse quantities that Kubernetes knows, such as 1.5Gi, and take seconds for a pipeline.

    Args:
        nodes: node of each task.
    """
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2 as messages

    # Code that some step's settings trust comes with the trained model, too, which other steps read.
    digests = {getattr(node.settings, "trusted_code", "") for node in nodes.values()} - {""}
    # So does an encoder at an address; who compiles the run has named it. Others than https are for the cluster file.
    named = [
        addresses_in(node.settings.model_dump(include={"encoder", "others", "generator"})) for node in nodes.values()
    ]
    services = safe(address for some in named for address in some)
    of_run = {name: values for name, values in ((TRUSTED, sorted(digests)), (ALLOWED, [*services])) if values}
    written = json_format.MessageToDict(spec.deployment_spec)
    deployment = json_format.ParseDict(written, messages.PipelineDeploymentConfig())
    for name, node in nodes.items():
        needs = cluster.needs(node.step)
        if cluster.trainer and getattr(node.settings, "nodes", 1) > 1:
            needs = in_trainjob(needs, cluster.trainer)
        label = spec.components[spec.root.dag.tasks[name].component_ref.name].executor_label
        container = deployment.executors[label].container
        if hidden := of_run.keys() & ({*needs.variables} - {*needs.environment}):
            raise UserError(
                f"{', '.join(sorted(hidden))} of {node.step} comes from a secret or config map of the cluster file, "
                "but the run sets it, too: give its value in environment, to which the run's is added"
            )
        added = {
            variable: " ".join(dict.fromkeys([*needs.environment.get(variable, "").split(), *values]))
            for variable, values in of_run.items()
        }
        for variable, value in (needs.environment | added).items():
            container.env.add(name=variable, value=value)
        for kind, amount in (("cpu", needs.cpu), ("memory", needs.memory)):
            for bound, quantity in amount.model_dump(exclude_none=True).items() if amount else ():
                setattr(container.resources, f"resource_{kind}_{bound}", quantity)
        if needs.gpu:
            container.resources.accelerator.resource_type = needs.gpu.type
            container.resources.accelerator.resource_count = str(needs.gpu.count)
    spec.deployment_spec.Clear()
    spec.deployment_spec.update(json_format.MessageToDict(deployment))


def in_trainjob(needs: StepNeeds, trainer: Trainer) -> StepNeeds:
    """Returns what the pod of a step that trains in a TrainJob requests, with the step's needs for the TrainJob's pods.

    The step's pod only waits, so it has no GPU.
    """
    resources: dict[str, dict[str, str]] = {"limits": {}, "requests": {}}
    for kind, amount in (("cpu", needs.cpu), ("memory", needs.memory)):
        for bound, quantity in amount.model_dump(exclude_none=True).items() if amount else ():
            resources[f"{bound}s"][kind] = quantity
    if needs.gpu:
        for part in resources.values():
            part[needs.gpu.type] = str(needs.gpu.count)
    requests = Requests(kind=trainer.kind, runtime=trainer.runtime, resources={k: v for k, v in resources.items() if v})
    return needs.model_copy(
        update={
            "cpu": Amount(request=WAITING_CPU),
            "memory": Amount(request=WAITING_MEMORY),
            "gpu": None,
            "environment": {**needs.environment, TRAINER: requests.model_dump_json()},
        }
    )


def _set_task_needs(task: Any, needs: StepNeeds, images: Images) -> None:
    """Gives a task the needs that belong to Kubernetes, and its retries."""
    from kfp import kubernetes

    if needs.retries:
        task.set_retry(
            needs.retries.count,
            backoff_duration=f"{needs.retries.backoff_seconds}s",
            backoff_factor=needs.retries.factor,
            backoff_max_duration=f"{needs.retries.within_seconds}s",
        )
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
    for toleration in needs.tolerations:
        kubernetes.add_toleration(
            task,
            toleration.key or None,
            toleration.operator,
            toleration.value or None,
            toleration.effect,
            toleration_seconds=toleration.seconds,
        )
    for term in needs.affinity:
        kubernetes.add_node_affinity(task, [requirement.model_dump() for requirement in term.match], weight=term.weight)
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
