"""Folders that a user names: on this machine, or in an object store, from which they are fetched."""

import os
import sys
import threading
import time
from pathlib import Path

from gnn_encoder.errors import expanded
from gnn_encoder.storage.folders import cached_folder, get_folder, put_folder
from gnn_encoder.storage.s3 import is_remote

__all__ = ["CACHE", "Transfer", "get_folder", "is_remote", "local_folder", "put_folder"]

CACHE = "GNN_ENCODER_CACHE"
"""Environment variable: the folder that holds fetched folders."""
LINE_SECONDS = 5.0


def local_folder(path: str, *, indexed: bool = True) -> Path:
    """The folder on this machine for a path or an `s3://` address; each version of a remote folder is fetched once.

    Args:
        indexed: refuse a folder that this program did not send. A user's own data has no marker.

    Raises:
        UserError: nothing complete is there, or the store cannot be used.
    """
    if not is_remote(path):
        return expanded(path)
    cache = Path(os.environ.get(CACHE) or Path.home() / ".cache" / "gnn-encoder")
    return cached_folder(path, cache, Transfer(f"fetching {path}"), indexed=indexed)


class Transfer:
    """Prints how many bytes have been moved, every `LINE_SECONDS`. Several threads may call it."""

    def __init__(self, what: str) -> None:
        self._what, self._bytes, self._printed = what, 0, time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, more: int) -> None:
        """Count bytes; a negative number takes back what begins anew."""
        with self._lock:
            self._bytes += more
            if (now := time.monotonic()) - self._printed >= LINE_SECONDS:
                self._printed = now
                print(f"{self._what}: {self._bytes / 1e6:,.0f} MB", file=sys.stderr)
