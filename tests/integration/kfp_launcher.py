"""KFP's launcher as a cluster has it: a container with an empty file system for each step, and the store between them.

Inputs are fetched to /s3/BUCKET/KEY, where KFP's `Artifact.path` looks for s3://BUCKET/KEY, the step's own command runs
with its executor input, outputs are sent. Nothing of one step's disk is there for the next.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from integration.engine import Engine
from kfp_process_launcher import ReadyTask

from gnn_encoder.storage.s3 import Address, client

ANYONE = 0o777


class Containers:
    """Executes tasks of a package (`PackageRun.tasks`); `environment` is what the cluster gives to every container."""

    def __init__(self, engine: Engine, environment: Mapping[str, str]) -> None:
        self._engine, self._environment = engine, environment

    def execute(self, task: ReadyTask) -> None:
        """Runs a task's container.

        Raises:
            RuntimeError: it failed.
        """
        with tempfile.TemporaryDirectory() as folder:
            disk = Path(folder)
            for uri in task.inputs:
                self._fetch(uri, disk)
            for path in (disk, *disk.rglob("*")):  # the step is not root
                path.chmod(ANYONE)
            environment = {**task.environment, **self._environment}
            variables = [part for key, value in environment.items() for part in ("--env", f"{key}={value}")]
            program, *arguments = task.command
            self._engine.docker(
                "run", "--rm", "--network=host", f"--volume={disk}:/s3", *variables,
                "--entrypoint", program, task.image, *arguments,
            )  # fmt: skip
            for uri in task.outputs:
                self._send(disk, uri)

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
        for path in (path for path in (folder, *folder.rglob("*")) if path.is_file()):
            client().upload_file(str(path), address.bucket, path.relative_to(disk / address.bucket).as_posix())


def store_environment() -> dict[str, str]:
    """The variables that lead to the store."""
    return {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "GNN_ENCODER_S3"))}
