"""Runs a compiled package without a cluster: each task's own command is a process, with folders as artifacts.

What KFP's driver and launcher do for a container is done here: the run's parameters, the addresses of artifacts, and
the text in the place of `{{$}}`. As on a cluster, a task knows of the others what its inputs hold and nothing else.
`python kfp_process_launcher.py PACKAGE ROOT [PARAMETER=VALUE]...` runs one by hand.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2 as messages

INPUT, OTHER = "{{$}}", "{{$"
"""The placeholder of a container's whole input, and the beginning of all of KFP's placeholders."""
TOLD = 3000
"""Characters of a failed task's output that are told."""
Artifact = dict[str, Any]
"""As KFP's messages have it: name, type, uri, metadata."""


@dataclass(frozen=True)
class ReadyTask:
    """A container that can start, because all that it reads has been made."""

    name: str
    image: str
    command: list[str]
    environment: Mapping[str, str]
    inputs: list[str]
    """Addresses of the artifacts that it reads."""
    outputs: list[str]
    """Addresses that it writes to."""


class PackageRun:
    """A run of a package.

    Args:
        root: address below which every task has a folder: `s3://…`, or a folder of this machine.
    """

    def __init__(self, package: Path, root: str) -> None:
        self._spec, self._root = next(yaml.safe_load_all(package.read_text("utf-8"))), root
        self.artifacts: dict[tuple[str, str], Artifact] = {}
        """(task, output) → the artifact."""

    def uri(self, task: str, output: str) -> str:
        """The address of an artifact."""
        return str(self.artifacts[task, output]["uri"])

    def tasks(self, execute: Callable[[ReadyTask], None], parameters: Mapping[str, str] = {}) -> Iterator[str]:
        """Executes all tasks, each after those that it waits for; yields the name of each when it has ended.

        Raises:
            ValueError: the package has no such parameter, or tasks that wait for each other.
        """
        declared = self._spec["root"].get("inputDefinitions", {}).get("parameters", {})
        if unknown := parameters.keys() - declared.keys():
            raise ValueError(f"no parameter {', '.join(sorted(unknown))} in the package")
        of_run = {name: declaration.get("defaultValue") for name, declaration in declared.items()} | dict(parameters)
        waiting = dict(self._spec["root"]["dag"]["tasks"])
        while waiting:
            ready = [name for name, task in waiting.items() if not {*task.get("dependentTasks", ())} & waiting.keys()]
            if not ready:
                raise ValueError(f"{', '.join(waiting)} wait for each other")
            task = waiting.pop(ready[0])
            self._execute(ready[0], task, of_run, execute)
            yield ready[0]

    def _execute(
        self, name: str, task: Mapping[str, Any], of_run: Mapping[str, Any], execute: Callable[[ReadyTask], None]
    ) -> None:
        component = self._spec["components"][task["componentRef"]["name"]]
        executor = self._spec["deploymentSpec"]["executors"][component["executorLabel"]]
        outputs = {
            key: {"name": key, "type": of["artifactType"], "uri": f"{self._root}/{name}/{key}", "metadata": {}}
            for key, of in component.get("outputDefinitions", {}).get("artifacts", {}).items()
        }
        if "importer" in executor:
            for key, artifact in outputs.items():
                self.artifacts[name, key] = {**artifact, "uri": executor["importer"]["artifactUri"]["constant"]}
            return
        known = component.get("inputDefinitions", {}).get("parameters", {})
        values = {
            key: declaration["defaultValue"] for key, declaration in known.items() if "defaultValue" in declaration
        }
        for key, value in task.get("inputs", {}).get("parameters", {}).items():
            constant = "runtimeValue" in value
            values[key] = value["runtimeValue"]["constant"] if constant else of_run[value["componentInputParameter"]]
        sources = {k: of["taskOutputArtifact"] for k, of in task.get("inputs", {}).get("artifacts", {}).items()}
        inputs = {
            k: self.artifacts[source["producerTask"], source["outputArtifactKey"]] for k, source in sources.items()
        }
        # A cluster's container has a disk of its own, so KFP has one path for the file of all tasks.
        output_file = Path(
            "/tmp/kfp_outputs" if "://" in self._root else f"{self._root}/{name}", "output_metadata.json"
        )
        executor_input = {
            "inputs": {"parameterValues": values, "artifacts": {k: {"artifacts": [v]} for k, v in inputs.items()}},
            "outputs": {
                "artifacts": {k: {"artifacts": [v]} for k, v in outputs.items()},
                "outputFile": str(output_file),
            },
        }
        container = executor["container"]
        command = [*container["command"], *container.get("args", ())]
        if unresolved := [part for part in command if OTHER in part.replace(INPUT, "")]:
            raise ValueError(f"{name}: only {INPUT} is replaced, not {unresolved[0]}")
        execute(
            ReadyTask(
                name,
                container["image"],
                [part.replace(INPUT, json.dumps(executor_input)) for part in command],
                {variable["name"]: variable["value"] for variable in container.get("env", ())},
                [str(artifact["uri"]) for artifact in inputs.values()],
                [str(artifact["uri"]) for artifact in outputs.values()],
            )
        )
        if "://" not in self._root and output_file.is_file():
            executor_output = json_format.Parse(output_file.read_text("utf-8"), messages.ExecutorOutput())
            for (
                key,
                listed,
            ) in executor_output.artifacts.items():  # KFP's launcher adds to the artifacts of the task, and makes none
                outputs[key]["metadata"] |= json_format.MessageToDict(listed.artifacts[0].metadata)
        self.artifacts |= {(name, key): artifact for key, artifact in outputs.items()}


def run_processes(package: Path, root: Path, environment: Mapping[str, str] = {}, **parameters: str) -> PackageRun:
    """Runs a package with a process for each task; returns the run with its artifacts.

    Raises:
        RuntimeError: a task failed or wrote no output.
    """

    def execute(task: ReadyTask) -> None:
        for output in task.outputs:
            Path(output).parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable if part == "python3" else part for part in task.command]
        modules = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # those of this process
        variables = {**os.environ, **modules, **task.environment, **environment}
        ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"{task.name} ended with exit code {ended.returncode}: {_end_of(ended)}")
        if missing := [output for output in task.outputs if not Path(output).exists()]:
            raise RuntimeError(f"{task.name} wrote no {missing[0]}: {_end_of(ended)}")

    run = PackageRun(package, str(root))
    for name in run.tasks(execute, parameters):
        print(name, flush=True)
    return run


def _end_of(ended: "subprocess.CompletedProcess[str]") -> str:
    return f"{ended.stdout[-TOLD:]}{ended.stderr[-TOLD:]}"


if __name__ == "__main__":
    run_processes(Path(sys.argv[1]), Path(sys.argv[2]), **dict(word.split("=", 1) for word in sys.argv[3:]))
