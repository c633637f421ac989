"""Steps in containers on this machine: `gnn-encoder run --runner docker`.

kfp's own `DockerRunner` has containers removed when they end, and takes one that is gone for one that went well. Here
a container stays until its exit code and the cause of its end are read. It sees the root and the folders that the
settings name, at the same places; it shares the host's network, where MLflow and the object store may be, and its
process ids, so that a step lives no longer than its run there too (`gnn_encoder.runs.lifeline`).
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.runs.provenance import package_digest
from gnn_encoder.storage import CACHE

SOURCE = "gnn-encoder.source"
"""Label of an image: digest of the package's source in it."""
PASSED_ON = ("AWS_", "GNN_ENCODER_", "HF_", "MLFLOW_", "OMP_", "TOKENIZERS_")
"""Environment variables that a step in a container sees begin so; the image has its own of the others."""
CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
"""Environment variables that name files of certificates, which a step in a container needs too."""
STOPPED_BY_SIGNAL = 128
"""An exit code above it is this and the signal's number."""


@dataclass(frozen=True)
class Containers:
    """How steps are put into containers."""

    root: str
    """Folder that they write to."""
    read: tuple[str, ...] = ()
    """Files and folders outside the root that they read."""
    memory: str = ""
    """What one may take, as `6g`; empty: all there is."""


def check_engine(image: str) -> None:
    """Refuse what would fail in the first step.

    Raises:
        UserError: this is not Linux, no engine answers, it has no such image, or one of another source than this
            program's.
    """
    if sys.platform != "linux":  # elsewhere the engine is a virtual machine, which does not have our process ids
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
    environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    environment |= _certificates()
    environment |= {name: os.environ[name] for name in ("TMPDIR",) if name in os.environ}
    environment.setdefault(CACHE, str(Path(containers.root) / "cache"))
    limits = {"mem_limit": containers.memory, "memswap_limit": containers.memory} if containers.memory else {}
    # What a step writes belongs to whoever started it.
    user = f"{os.getuid()}:{os.getgid()}"
    return {"network_mode": "host", "pid_mode": "host", "user": user, "environment": environment, **limits}


class ContainerRun:
    """Runs containers in the place of kfp's `run_docker_container`, one after the other."""

    def __init__(self, containers: Containers) -> None:
        self._read, self._root = (*containers.read, *_certificates().values()), containers.root
        self._running: Any = None
        self.cause = ""
        """Why the last one failed, where the step could not say it; empty if it went well or spoke."""

    def __call__(
        self, client: Any, image: str, command: Sequence[str], volumes: Mapping[str, Any], **options: Any
    ) -> int:
        """Run a command in an image to its end, its output to ours; its exit code."""
        mounts = {**volumes, self._root: _mount(self._root, "rw"), **{path: _mount(path, "ro") for path in self._read}}
        with self._container(client, image, list(command), mounts, options) as container:
            for line in container.logs(stream=True):
                print(line.decode(errors="replace"), end="")
            code = int(container.wait()["StatusCode"])
            container.reload()
            self.cause = _cause(code, container.attrs["State"], options.get("mem_limit", ""))
        return code

    def interrupt(self) -> None:
        """SIGINT for every process in the running container: the step then ends in order."""
        if self._running is None:
            return
        processes = self._running.top()
        place = processes["Titles"].index("PID")
        for process in processes["Processes"]:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(int(process[place]), signal.SIGINT)

    @contextmanager
    def _container(
        self, client: Any, image: str, command: list[str], mounts: dict[str, Any], options: Mapping[str, Any]
    ) -> Iterator[Any]:
        self._running = client.containers.create(image, command, volumes=mounts, **options)
        try:
            self._running.start()
            yield self._running
        finally:
            self._running.remove(force=True)
            self._running = None


def _certificates() -> dict[str, str]:
    """Variable → file, of those that are set."""
    return {name: str(Path(os.environ[name]).absolute()) for name in CERTIFICATES if os.environ.get(name)}


def _mount(path: str, mode: str) -> dict[str, str]:
    return {"bind": path, "mode": mode}


def _cause(code: int, state: Mapping[str, Any], memory: str) -> str:
    if code == 0:
        return ""
    if state.get("OOMKilled"):
        return f"killed, as it took more than the {memory or 'machine'} of memory it had: give it more with --memory"
    if (number := code - STOPPED_BY_SIGNAL) in set(signal.Signals):
        return f"killed by {signal.Signals(number).name}"
    return f"ended with exit code {code}"
