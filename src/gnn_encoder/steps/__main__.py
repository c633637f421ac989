"""Runs one step: `python -m gnn_encoder.steps NAME --executor_input JSON`, in a container or a process.

The JSON is what KFP's launcher writes for `{{$}}`: parameters, and the addresses of all artifacts. The local engine
writes the same, but asks for nothing that only KFP's page of a run shows (`flow.declared.SHOWN`).
"""

import inspect
import json
import shutil
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import digest_of, read_manifest
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import ORIGIN
from gnn_encoder.flow.declared import SHOWN


def main(arguments: list[str]) -> None:
    """Runs the step that the command line names: NAME, or MODULE:NAME for a step of another package."""
    name, option, text = arguments
    if option != "--executor_input":
        raise SystemExit(f"unknown option {option}: give NAME --executor_input JSON")
    module, _, function = name.rpartition(":")
    step = getattr(import_module(module or f"gnn_encoder.steps.{name}"), function)
    executor_input = json.loads(text)
    inputs, outputs = executor_input.get("inputs", {}), executor_input["outputs"]["artifacts"]
    parameters = inspect.signature(step).parameters
    artifacts = {
        key: [artifact["uri"] for artifact in of["artifacts"]] for key, of in inputs.get("artifacts", {}).items()
    }
    written = {key: local_path(of["artifacts"][0]["uri"]) for key, of in outputs.items()}
    folders = {key: path for key, path in written.items() if key in parameters}
    paths: dict[str, Any] = {**folders}
    addresses: dict[str, str] = {}
    for key, parameter in parameters.items():
        if "list[" in str(parameter.annotation):
            uris = artifacts.get(key) or _numbered(artifacts, key)
            paths[key] = [local_path(uri) for uri in uris]
        elif key in artifacts:
            addresses[key] = artifacts[key][0]
            paths[key] = local_path(addresses[key])
    values = inputs["parameterValues"]
    tags = {"label": values["label"]} if values.get("label") else {}
    step(with_parameters(function, values["arguments"], values), addresses=addresses, tags=tags, **paths)
    if shown := {key: Path(path) for key, path in written.items() if key not in folders}:
        metadata = {
            name: show(name, Path(folder), shown[name])
            for folder in folders.values()
            if (name := SHOWN.get(read_manifest(folder).schema, "")) in shown
        }
        written_artifacts = {
            key: {"artifacts": [{**outputs[key]["artifacts"][0], "metadata": of}]} for key, of in metadata.items()
        }
        file = Path(executor_input["outputs"]["outputFile"])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"artifacts": written_artifacts}), encoding="utf-8")


def show(name: str, folder: Path, target: Path) -> dict[str, Any]:
    """Writes the file that KFP's page of a run shows of an output: the `page` of a report, or the `table` as JSON.

    Returns the metadata, which is where KFP has the numbers of metrics.
    """
    from gnn_encoder.artifacts import Evaluation, Report  # imports pyarrow
    from gnn_encoder.report.table import named_figures

    target.parent.mkdir(parents=True, exist_ok=True)
    if name == "page":
        report = Report.read(folder)
        shutil.copyfile(report.page, target)
        return {"headline": report.manifest.metrics["headline"]}
    figures = named_figures(Evaluation.read(folder).metrics)
    target.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return figures


def with_parameters(step: str, arguments: str, values: Mapping[str, str]) -> str:
    """Returns a step's arguments with the data set and the seed of the run (`kubeflow.components.RUN_PARAMETERS`).

    Digests that do not hold for them are left out or replaced, so that `retrain` does not take the run's model for one
    of the data or of the settings that the package was made from.
    """
    call = json.loads(arguments)
    settings, digests = call.setdefault("settings", {}), call.setdefault("source_digests", {})
    if (source := values.get("source")) and source != (call.get("dataset") or settings.get("dataset")):
        for name in ("dataset", ORIGIN[0]):
            digests.pop(name, None)
        if step == "ingest":
            settings["dataset"] = source
    if seed := values.get("seed"):
        if not seed.strip().isdecimal():
            raise UserError(f"the run's seed is {seed!r}: give a whole number from 0")
        if of_settings := digests.get(ORIGIN[1]):
            digests[ORIGIN[1]] = digest_of({"settings": of_settings, "seed": int(seed)})
        drawing = settings.get("tried", []) if step == "choose_graph" else [settings]
        for seeded in drawing if step not in ("promote", "report") else ():
            seeded["seed"] = int(seed)
        if step == "report":
            settings["changed"] = _with_seed(settings.get("changed", {}), int(seed))
    return json.dumps(call)


def _with_seed(changed: Mapping[str, Mapping[str, Any]], seed: int) -> dict[str, dict[str, Any]]:
    """Returns the settings that differ from the defaults (`presets.changed_settings`), with the seed of the run."""
    from gnn_encoder.settings.pipeline import Settings
    from gnn_encoder.settings.presets import changed_settings

    drawing = [step for step, field in Settings.model_fields.items() if "seed" in type(field.default).model_fields]
    seeded = {step: {**changed.get(step, {}), "seed": seed} for step in drawing}
    return changed_settings(Settings.model_validate({**changed, **seeded}))


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
