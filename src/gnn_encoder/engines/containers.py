"""Runs steps in containers on this machine: `gnn-encoder run --runner docker`.

A container stays until its exit code and the cause of its end have been read. The root and the folders that the
settings name are mounted at the same paths. The container shares the host's network, because MLflow and the object
store may be there. The container also shares the host's process ids, so that a step ends with its run
(`gnn_encoder.engines.lifeline`).
"""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.engines.provenance import package_digest
from gnn_encoder.errors import UserError, one_line
from gnn_encoder.storage import CACHE

IMAGE = "gnn-encoder-python:0.1.0"
"""The image of every step: name and package version. A cluster file names another, with its registry."""
SOURCE = "gnn-encoder.source"
"""Label of an image: digest of the package's source in the image."""
PASSED_ON = ("AWS_", "GNN_ENCODER_", "HF_", "MLFLOW_", "OMP_", "OPENAI_", "TOKENIZERS_")
"""Prefixes of the environment variables that a container inherits; the image sets other variables."""
CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Environment variables that name certificate files, which are mounted into the container."""


@dataclass(frozen=True)
class Containers:
    """Options of steps in containers."""

    root: str
    """Folder that the steps write to."""
    read: tuple[str, ...] = ()
    """Files and folders outside the root that the steps read."""
    memory: str = ""
    """Memory limit of one container, such as `6g`; empty: none."""
    image: str = IMAGE


def check_engine(image: str) -> None:
    """Raises UserError without Linux, a container engine or the image, or if the image has other source code."""
    if sys.platform != "linux":  # elsewhere the engine runs in a virtual machine, without our process ids
        raise UserError("--runner docker works on Linux only: leave it out, or run it on a Linux machine")
    import docker

    try:
        with contextlib.closing(docker.from_env()) as client:
            labels = client.images.get(image).labels
    except docker.errors.ImageNotFound:
        raise UserError(f"no image {image} here: make images, or pull and tag it") from None
    except docker.errors.DockerException as error:
        raise UserError(f"no container engine answers ({one_line(error)}): start one, or set DOCKER_HOST") from None
    if labels.get(SOURCE) != package_digest():
        raise UserError(f"image {image} was made from other source than this program: make images")


class ContainerSteps:
    """Runs each step in a container of an image, one at a time."""

    def __init__(self, containers: Containers) -> None:
        import docker

        self._image, self.client = containers.image, docker.from_env()
        mounts = {path: {"bind": path, "mode": "ro"} for path in (*containers.read, *_certificates().values())}
        mounts[containers.root] = {"bind": containers.root, "mode": "rw"}
        passed_on = {n: value for n, value in os.environ.items() if n.startswith(PASSED_ON) or n == "TMPDIR"}
        limits = {"mem_limit": containers.memory, "memswap_limit": containers.memory} if containers.memory else {}
        self._memory = containers.memory
        self.options: dict[str, Any] = {
            "network_mode": "host",
            "pid_mode": "host",
            "user": f"{os.getuid()}:{os.getgid()}",  # the owner of the files that a step writes
            "environment": {CACHE: str(Path(containers.root) / "cache"), **passed_on, **_certificates()},
            "volumes": mounts,
            **limits,
        }
        self._running: Any = None
        self.cause = ""
        """Why the last container failed."""

    def run(self, step: str, executor_input: str) -> int:
        """Runs a step in a container, prints its output, and returns its exit code."""
        command = ["python3", "-m", "gnn_encoder.steps", step, "--executor_input", executor_input]
        container = self._running = self.client.containers.create(self._image, command, **self.options)
        try:
            container.start()
            for line in container.logs(stream=True):
                print(line.decode(errors="replace"), end="")
            code = int(container.wait()["StatusCode"])
            container.reload()
            self.cause = _cause(code, container.attrs["State"], self._memory) if code else ""
            return code
        finally:
            container.remove(force=True)
            self._running = None

    def interrupt(self) -> None:
        """Sends SIGINT to every process in the running container, so that the step can clean up and end."""
        if self._running is None:
            return
        processes = self._running.top()
        column = processes["Titles"].index("PID")
        for process in processes["Processes"]:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(int(process[column]), signal.SIGINT)


def _certificates() -> dict[str, str]:
    """Returns {variable: file} for those of `CERTIFICATES` that are set."""
    return {name: str(Path(os.environ[name]).absolute()) for name in CERTIFICATES if os.environ.get(name)}


def _cause(code: int, state: Mapping[str, Any], memory: str) -> str:
    if state.get("OOMKilled"):
        return f"killed, as it took more than the {memory or 'machine'} of memory it had: give it more with --memory"
    if (number := code - 128) in set(signal.Signals):
        return f"killed by {signal.Signals(number).name}"
    return f"ended with exit code {code}"
