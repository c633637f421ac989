"""Makes components of Kubeflow Pipelines from what steps declare.

A container of a component runs `python3 -m gnn_encoder.steps NAME --executor_input JSON`. KFP's launcher fetches the
inputs before, stores the outputs afterwards, and replaces `{{$}}` by the JSON.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gnn_encoder.engines.containers import IMAGE
from gnn_encoder.flow.declared import SHOWN, Declared, declared, step_names
from gnn_encoder.kubeflow.cluster import Cluster

TYPES = {
    "dataset": "system.Dataset",
    "training_set": "system.Dataset",
    "model": "system.Model",
    "bundle": "system.Model",
    "page": "system.HTML",
    "table": "system.Metrics",
}
"""Schema of an artifact, or name of what shows one (`SHOWN`) → KFP's type; others are plain artifacts."""
ARTIFACT = "system.Artifact"
RUN_PARAMETERS = {"dataset": "source", "seed": "seed", "label": "label"}
"""Parameter of a run, which KFP's pages show → the parameter of components that has its value. `dataset` is the source
of `ingest`, `seed` that of all steps that draw, and `label` a tag in MLflow. Empty: as in the arguments. KFP's cache
compares parameters, so a run with another label or seed takes nothing from it."""
VERSION = "0.0.1"


def component(step: Declared, image: str, name: str = "", lists: Mapping[str, int] = {}) -> Any:
    """Returns KFP's component of a step; call it in a pipeline.

    Args:
        name: of the component and its task; by default the step's.
        lists: number of artifacts in each list that the graph gives. KFP has lists of a loop's outputs alone, so such
            a list has an input for each artifact, NAME_0 and so on.
    """
    from kfp import components

    return components.load_component_from_text(component_text(step, image, name, lists))


def component_text(step: Declared, image: str, name: str = "", lists: Mapping[str, int] = {}) -> str:
    """Returns a component file; arguments as in `component`."""
    name = name or step.name.replace("_", "-")
    artifacts: dict[str, dict[str, Any]] = {}
    for key, of in step.inputs.items():
        one: dict[str, Any] = {"artifactType": _type(ARTIFACT), **({"isOptional": True} if of.is_optional else {})}
        if of.is_list and key in lists:
            artifacts |= {f"{key}_{i}": one for i in range(lists[key])}
        else:
            artifacts[key] = {**one, "isArtifactList": True} if of.is_list else one
    optional = {"parameterType": "STRING", "isOptional": True, "defaultValue": ""}
    inputs: dict[str, Any] = {
        "parameters": {
            "arguments": {**optional, "defaultValue": "{}"},
            **dict.fromkeys(run_parameters(step).values(), optional),
        }
    }
    if artifacts:
        inputs["artifacts"] = artifacts
    schemas = {**step.outputs, **{name: name for schema, name in SHOWN.items() if schema in step.outputs.values()}}
    outputs = {
        "artifacts": {key: {"artifactType": _type(TYPES.get(schema, ARTIFACT))} for key, schema in schemas.items()}
    }
    container = {
        "image": image,
        "command": ["python3", "-m", "gnn_encoder.steps", step.name],
        "args": ["--executor_input", "{{$}}"],
    }
    task_inputs = {"parameters": {key: {"componentInputParameter": key} for key in inputs["parameters"]}}
    if artifacts:
        task_inputs["artifacts"] = {key: {"componentInputArtifact": key} for key in artifacts}
    dag_outputs = {key: {"artifactSelectors": [{"outputArtifactKey": key, "producerSubtask": name}]} for key in schemas}
    task = {
        "cachingOptions": {"enableCache": True},
        "componentRef": {"name": f"comp-{name}"},
        "inputs": task_inputs,
        "taskInfo": {"name": name},
    }
    document = {
        "components": {
            f"comp-{name}": {"executorLabel": f"exec-{name}", "inputDefinitions": inputs, "outputDefinitions": outputs}
        },
        "deploymentSpec": {"executors": {f"exec-{name}": {"container": container}}},
        "pipelineInfo": {"name": name, "description": step.purpose},
        "root": {
            "dag": {"tasks": {name: task}, "outputs": {"artifacts": dag_outputs}},
            "inputDefinitions": inputs,
            "outputDefinitions": outputs,
        },
        "schemaVersion": "2.1.0",
        "sdkVersion": "kfp-2.17.0",
    }
    # KFP reads a component's description off the third line.
    return f"# PIPELINE DEFINITION\n# Name: {name}\n# Description: {step.purpose}\n{yaml.safe_dump(document)}"


def write_components(folder: Path, cluster: Cluster) -> Iterator[Path]:
    """Writes a component file of each step to a folder; yields their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in step_names():
        path = folder / f"{name}.yaml"
        path.write_text(component_text(declared(name), cluster.image(name) or IMAGE), encoding="utf-8")
        yield path


def run_parameters(step: Declared) -> dict[str, str]:
    """Returns the part of `RUN_PARAMETERS` that a step has."""
    last = step.name == "promote"  # registers digests that hold for the arguments' data set and seed alone
    draws = "seed" in step.settings.model_fields or step.name == "choose_graph"  # whose trials have seeds
    shown = step.name == "report"  # in the settings that repeat the run
    reads = {"dataset": last or step.name == "ingest", "seed": last or draws or shown, "label": True}
    return {name: parameter for name, parameter in RUN_PARAMETERS.items() if reads[name]}


def step_of_task(task: str) -> str:
    """Returns the step of a task, given its name; empty for KFP's own tasks, such as importers."""
    named = [name for name in step_names() if f"{task}-".startswith(f"{name.replace('_', '-')}-")]
    return max(named, key=len, default="")


def _type(name: str) -> dict[str, str]:
    return {"schemaTitle": name, "schemaVersion": VERSION}
