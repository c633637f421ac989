"""A container engine for the tests: Docker's, on a socket in one folder, and the image of this checkout's steps."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from integration.ceph import wait_for

from gnn_encoder.engines.containers import IMAGE, check_engine
from gnn_encoder.errors import UserError

PACKAGES = ("containerd", "debootstrap", "docker.io", "iptables")
PROGRAMS = ("/usr/bin/docker", "/usr/sbin/dockerd", "/usr/sbin/debootstrap")
BASE = "gnn-encoder-tests-base"
CHECKOUT = Path(__file__).parents[2]


class Engine:
    """dockerd without a bridge or firewall rules: containers have the host's network.

    With DOCKER_HOST in the environment that engine is used, and with BASE that image is what ours starts from.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket = folder, os.environ.get("DOCKER_HOST") or f"unix://{folder}/docker.sock"
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        if "DOCKER_HOST" in os.environ:
            return
        options = [
            "--iptables=false", "--ip6tables=false", "--bridge=none", "--default-ulimit", "nofile=20000:20000",
            "--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec",
            "--pidfile", f"{self.folder}/pid", "-H", self.socket,
        ]  # fmt: skip
        with (self.folder / "log").open("wb") as log:
            self._daemon = subprocess.Popen([PROGRAMS[1], *options], stdout=log, stderr=log)
        wait_for(self.answers, "the container engine")

    def answers(self) -> bool:
        """Whether it takes orders."""
        return (
            subprocess.run([PROGRAMS[0], "-H", self.socket, "info"], capture_output=True, check=False).returncode == 0
        )

    def build_image(self) -> None:
        """The steps' image, as `make images` makes it, from a bare Debian; unless the engine has it of this source."""
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(UserError):
            patch.setenv("DOCKER_HOST", self.socket)
            check_engine(IMAGE)
            return
        if "BASE" not in os.environ:
            self._make_base()
        values = {"PYTHON": sys.executable, "DOCKER": PROGRAMS[0], "DOCKER_HOST": self.socket}
        quietly(str(CHECKOUT / "images" / "build"), "cpu", **{"BASE": BASE, **os.environ, **values})

    def _make_base(self) -> None:
        bare = self.folder / "bare"
        packages = "ca-certificates,python3,python3-venv"
        quietly("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(bare))
        tar = subprocess.Popen(["tar", "-C", str(bare), "-c", "."], stdout=subprocess.PIPE)
        subprocess.run(
            [PROGRAMS[0], "-H", self.socket, "import", "-", BASE], stdin=tar.stdout, check=True, capture_output=True
        )
        shutil.rmtree(bare)

    def docker(self, *command: str, **options: str) -> str:
        """What one of its commands prints."""
        return quietly(PROGRAMS[0], "-H", self.socket, *command, **options)

    def remove(self) -> None:
        """Stop it and delete what it holds."""
        if self._daemon:
            self._daemon.terminate()
            self._daemon.wait()
        subprocess.run(["umount", "-q", *map(str, self.folder.glob("exec/netns/*"))], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)  # a hundred thousand files: Python takes minutes


def quietly(*command: str, **environment: str) -> str:
    """Run a command; what it prints.

    Raises:
        RuntimeError: with the end of what it complained of.
    """
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    return done.stdout
