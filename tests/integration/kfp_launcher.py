"""KFP's launcher as a cluster has it: a container with an empty file system for each step, and the store between them.

Inputs are fetched to /s3/BUCKET/KEY, where KFP's `Artifact.path` looks for s3://BUCKET/KEY, the step's own command runs
with its executor input, outputs are sent. Nothing of one step's disk is there for the next.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from integration.engine import Engine

from gnn_encoder.storage.s3 import Address, client

ANYONE = 0o777


class Launcher:
    """Runs a compiled pipeline's tasks, each when those it waits for are done.

    Args:
        root: `s3://` address below which every task has a folder.
        environment: what the cluster gives to every container.
    """

    def __init__(self, engine: Engine, pipeline: Path, root: str, environment: Mapping[str, str]) -> None:
        self._engine, self._root, self._environment = engine, root, environment
        self._spec = next(yaml.safe_load_all(pipeline.read_text()))
        self.artifacts: dict[tuple[str, str], Any] = {}
        """(task, output) → the artifact as KFP's messages have it; of a loop, the list of its iterations' artifacts."""

    def run(self, parameters: Mapping[str, Any]) -> Iterator[str]:
        """Run all tasks; each one's name when it is done, that of a loop's task once in each iteration.

        Raises:
            RuntimeError: a container failed.
        """
        waiting = dict(self._spec["root"]["dag"]["tasks"])
        while waiting:
            name = next(n for n, task in waiting.items() if not set(task.get("dependentTasks", ())) & waiting.keys())
            task = waiting.pop(name)
            given = task["inputs"]
            inputs = {
                key: self.artifacts[source["producerTask"], source["outputArtifactKey"]]
                for key, value in given.get("artifacts", {}).items()
                for source in [value["taskOutputArtifact"]]
            }
            values = {key: parameters[value["componentInputParameter"]] for key, value in given["parameters"].items()}
            if "parameterIterator" in task:
                yield from self._run_loop(name, task, inputs, values)
            else:
                for key, artifact in self._run_task(name, task, inputs, values).items():
                    self.artifacts[name, key] = artifact
                yield name

    def _run_loop(
        self, name: str, task: Mapping[str, Any], artifacts: Mapping[str, Any], values: Mapping[str, Any]
    ) -> Iterator[str]:
        """Runs the one task of a loop for each item."""
        dag, iterator = self._spec["components"][task["componentRef"]["name"]]["dag"], task["parameterIterator"]
        ((inner, of),) = dag["tasks"].items()
        inputs = {key: artifacts[v["componentInputArtifact"]] for key, v in of["inputs"]["artifacts"].items()}
        for number, item in enumerate(values[iterator["items"]["inputParameter"]]):
            known = {**values, iterator["itemInput"]: item}
            given = {key: known[v["componentInputParameter"]] for key, v in of["inputs"]["parameters"].items()}
            made = self._run_task(f"{inner}-{number}", of, inputs, given)
            for key, output in dag["outputs"]["artifacts"].items():
                (source,) = output["artifactSelectors"]
                self.artifacts.setdefault((name, key), []).append(made[source["outputArtifactKey"]])
            yield inner

    def _run_task(
        self, name: str, task: Mapping[str, Any], inputs: Mapping[str, Any], values: Mapping[str, str]
    ) -> dict[str, Any]:
        """Runs a task whose inputs are artifacts or lists of them; returns its outputs."""
        component = self._spec["components"][task["componentRef"]["name"]]
        listed = {key: value if isinstance(value, list) else [value] for key, value in inputs.items()}
        container = self._spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        outputs = {
            key: {"name": key, "type": value["artifactType"], "uri": f"{self._root}/{name}/{key}", "metadata": {}}
            for key, value in component.get("outputDefinitions", {}).get("artifacts", {}).items()
        }
        executor_input = {
            "inputs": {"parameterValues": values, "artifacts": {k: {"artifacts": v} for k, v in listed.items()}},
            "outputs": {
                "artifacts": {k: {"artifacts": [v]} for k, v in outputs.items()},
                "outputFile": "/tmp/kfp_outputs/output_metadata.json",
            },
        }
        with tempfile.TemporaryDirectory() as folder:
            disk = Path(folder)
            for artifact in (artifact for each in listed.values() for artifact in each):
                self._fetch(artifact["uri"], disk)
            for path in (disk, *disk.rglob("*")):  # the step is not root
                path.chmod(ANYONE)
            arguments = [part.replace("{{$}}", json.dumps(executor_input)) for part in container["args"]]
            variables = [part for key, value in self._environment.items() for part in ("--env", f"{key}={value}")]
            self._engine.docker(
                "run", "--rm", "--network=host", f"--volume={disk}:/s3", *variables,
                "--entrypoint", container["command"][0], container["image"], *container["command"][1:], *arguments,
            )  # fmt: skip
            for artifact in outputs.values():
                self._send(disk, artifact["uri"])
        return outputs

    def _fetch(self, uri: str, disk: Path) -> None:
        address = Address.parse(uri)
        pages = client().get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.key(""))
        for item in (item for page in pages for item in page["Contents"]):
            target = disk / address.bucket / item["Key"]
            target.parent.mkdir(parents=True, exist_ok=True)
            client().download_file(address.bucket, item["Key"], str(target))

    def _send(self, disk: Path, uri: str) -> None:
        address = Address.parse(uri)
        folder = disk / address.bucket / address.prefix
        for path in (path for path in folder.rglob("*") if path.is_file()):
            client().upload_file(str(path), address.bucket, path.relative_to(disk / address.bucket).as_posix())


def store_environment() -> dict[str, str]:
    """The variables that lead to the store."""
    return {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "GNN_ENCODER_S3"))}
