"""Runs one step: `python -m gnn_encoder.steps NAME --executor_input JSON`, in a container or a process.

The JSON is what KFP's launcher writes for `{{$}}`: parameters, and the addresses of all artifacts. The local engine
writes the same.
"""

import inspect
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from gnn_encoder.flow.arguments import ORIGIN


def main(arguments: list[str]) -> None:
    """Runs the step that the command line names: NAME, or MODULE:NAME for a step of another package."""
    name, option, text = arguments
    if option != "--executor_input":
        raise SystemExit(f"unknown option {option}: give NAME --executor_input JSON")
    module, _, function = name.rpartition(":")
    step = getattr(import_module(module or f"gnn_encoder.steps.{name}"), function)
    executor_input = json.loads(text)
    inputs, outputs = executor_input.get("inputs", {}), executor_input["outputs"]["artifacts"]
    artifacts = {
        key: [artifact["uri"] for artifact in of["artifacts"]] for key, of in inputs.get("artifacts", {}).items()
    }
    paths: dict[str, Any] = {key: local_path(of["artifacts"][0]["uri"]) for key, of in outputs.items()}
    addresses: dict[str, str] = {}
    for key, parameter in inspect.signature(step).parameters.items():
        if "list[" in str(parameter.annotation):
            uris = artifacts.get(key) or _numbered(artifacts, key)
            paths[key] = [local_path(uri) for uri in uris]
        elif key in artifacts:
            addresses[key] = artifacts[key][0]
            paths[key] = local_path(addresses[key])
    values = inputs["parameterValues"]
    tags = {"label": values["label"]} if values.get("label") else {}
    step(with_parameters(function, values["arguments"], values), addresses=addresses, tags=tags, **paths)


def with_parameters(step: str, arguments: str, values: Mapping[str, str]) -> str:
    """Returns a step's arguments with the data set and the seed of the run (`kubeflow.components.RUN_PARAMETERS`).

    Digests that do not hold for them are left out, so that `retrain` does not take the run's model for one of the data
    or of the settings that the package was made from.
    """
    call = json.loads(arguments)
    settings, digests = call.setdefault("settings", {}), call.setdefault("source_digests", {})
    if (source := values.get("source")) and source != (call.get("dataset") or settings.get("dataset")):
        for name in ("dataset", ORIGIN[0]):
            digests.pop(name, None)
        if step == "ingest":
            settings["dataset"] = source
    if seed := values.get("seed"):
        digests.pop(ORIGIN[1], None)
        drawing = settings.get("tried", []) if step == "choose_graph" else [settings] if step != "promote" else []
        for seeded in drawing:
            seeded["seed"] = int(seed)
    return json.dumps(call)


def _numbered(artifacts: dict[str, list[str]], name: str) -> list[str]:
    """Returns the addresses of NAME_0, NAME_1, and so on: KFP has no lists of artifacts but those of a loop."""
    uris: list[str] = []
    while more := artifacts.get(f"{name}_{len(uris)}"):
        uris += more
    return uris


def local_path(uri: str) -> str:
    """Returns where KFP's launcher puts an artifact in a container; a folder of this machine is its own path."""
    if "://" not in uri:
        return uri
    from kfp.dsl import Artifact

    return str(Artifact(uri=uri).path)


if __name__ == "__main__":
    main(sys.argv[1:])
