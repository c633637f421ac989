"""A disk of a few MB, which is soon full, and can be made larger."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from required import missing

MEGABYTES = 8


class SmallDisk:
    """A file system in memory, mounted on a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, free: int = 0) -> None:
        """Leave so many bytes free."""
        taken = shutil.disk_usage(self.path).free - free
        (self.path / "of others").write_bytes(bytes(taken))

    def grow(self) -> None:
        """Make room."""
        subprocess.run(["mount", "-o", "remount,size=256m", self.path], check=True)


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """One on a folder that is made for it; without the right to mount the test is skipped."""
    path.mkdir()
    if os.geteuid() != 0:
        missing("no right to mount a small disk: run as root")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        missing(f"no small disk: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
