"""Steps in containers on this machine: `gnn-encoder run --runner docker`.

kfp's own `DockerRunner` lets containers be removed when they end, and treats one that is gone as a success. Here a
container stays until its exit code and the cause of its end are read. It has the root and the folders that the
settings name at the same paths. It shares the host's network, where MLflow and the object store may be, and its
process ids, so that a step in a container lives no longer than its run, too (`gnn_encoder.runs.lifeline`).
"""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.runs.provenance import package_digest
from gnn_encoder.storage import CACHE

SOURCE = "gnn-encoder.source"
"""Label of an image: digest of the package's source in it."""
PASSED_ON = ("AWS_", "GNN_ENCODER_", "HF_", "MLFLOW_", "OMP_", "TOKENIZERS_")
"""Prefixes of the environment variables that a container gets from here; the image sets the others."""
CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Environment variables that name files of certificates, which a container needs, too."""


@dataclass(frozen=True)
class Containers:
    """How steps run in containers."""

    root: str
    """Folder that they write to."""
    read: tuple[str, ...] = ()
    """Files and folders outside the root that they read."""
    memory: str = ""
    """Most memory of one container, as `6g`; empty: all."""


def check_engine(image: str) -> None:
    """Refuse what would fail in the first step: no Linux, no engine, no such image, or one made from other source."""
    if sys.platform != "linux":  # elsewhere the engine is a virtual machine, without our process ids
        raise UserError("--runner docker works on Linux only: leave it away, or run it on a Linux machine")
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


def settings_of(containers: Containers) -> dict[str, Any]:
    """Arguments of kfp's `DockerRunner`."""
    passed_on = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON) or name == "TMPDIR"}
    environment = {CACHE: str(Path(containers.root) / "cache"), **passed_on, **_certificates()}
    limits = {"mem_limit": containers.memory, "memswap_limit": containers.memory} if containers.memory else {}
    user = f"{os.getuid()}:{os.getgid()}"  # the owner of the files that a step writes
    return {"network_mode": "host", "pid_mode": "host", "user": user, "environment": environment, **limits}


class ContainerRun:
    """Replaces kfp's `run_docker_container`: runs containers, one after the other."""

    def __init__(self, containers: Containers) -> None:
        self._mounts = {path: {"bind": path, "mode": "ro"} for path in (*containers.read, *_certificates().values())}
        self._mounts[containers.root] = {"bind": containers.root, "mode": "rw"}
        self._running: Any = None
        self.cause = ""
        """Why the last container failed, by its exit code; empty if it succeeded."""

    def __call__(
        self, client: Any, image: str, command: Sequence[str], volumes: Mapping[str, Any], **options: Any
    ) -> int:
        """Run a command in an image to its end and print its output; returns its exit code."""
        mounts = {**volumes, **self._mounts}
        container = self._running = client.containers.create(image, list(command), volumes=mounts, **options)
        try:
            container.start()
            for line in container.logs(stream=True):
                print(line.decode(errors="replace"), end="")
            code = int(container.wait()["StatusCode"])
            container.reload()
            self.cause = _cause(code, container.attrs["State"], options.get("mem_limit", ""))
            return code
        finally:
            container.remove(force=True)
            self._running = None

    def interrupt(self) -> None:
        """Send SIGINT to every process in the running container, so that the step ends in order."""
        if self._running is None:
            return
        processes = self._running.top()
        place = processes["Titles"].index("PID")
        for process in processes["Processes"]:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(int(process[place]), signal.SIGINT)


def _certificates() -> dict[str, str]:
    """Variable → file, of the variables that are set."""
    return {name: str(Path(os.environ[name]).absolute()) for name in CERTIFICATES if os.environ.get(name)}


def _cause(code: int, state: Mapping[str, Any], memory: str) -> str:
    if code == 0:
        return ""
    if state.get("OOMKilled"):
        return f"killed, as it took more than the {memory or 'machine'} of memory it had: give it more with --memory"
    if (number := code - 128) in set(signal.Signals):
        return f"killed by {signal.Signals(number).name}"
    return f"ended with exit code {code}"
