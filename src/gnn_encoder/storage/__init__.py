"""Where folders are that a user names: on this machine, or in an object store and fetched from there."""

import os
import sys
import threading
import time
from pathlib import Path

from gnn_encoder.errors import expanded
from gnn_encoder.storage.folders import cached_folder, get_folder, put_folder
from gnn_encoder.storage.s3 import SCHEME, is_remote

__all__ = ["CACHE", "Transfer", "address_of", "get_folder", "is_remote", "local_folder", "put_folder"]

CACHE = "GNN_ENCODER_CACHE"
"""Environment variable: the folder that fetched ones are kept in."""
MOUNT = Path("/s3")
"""Where KFP's launcher puts the objects of `s3://`."""
LINE_SECONDS = 5.0


def local_folder(path: str, *, indexed: bool = True) -> Path:
    """The folder, on this machine, that a path or an `s3://` address names; fetched once for each content.

    Args:
        indexed: refuse an address that this program did not write to. A user's own data has no index.

    Raises:
        UserError: nothing complete is there, or the store cannot be used.
    """
    if not is_remote(path):
        return expanded(path)
    cache = Path(os.environ.get(CACHE) or Path.home() / ".cache" / "gnn-encoder")
    return cached_folder(path, cache, Transfer(f"fetching {path}"), indexed=indexed)


def address_of(folder: Path) -> str:
    """What a folder is called where this machine's file system is not known: its `s3://` address, if it lies in an
    object store that a pipeline's task sees under `/s3/BUCKET`, else its absolute path.
    """
    path = folder.resolve()
    return f"{SCHEME}{path.relative_to(MOUNT)}" if path.is_relative_to(MOUNT) else str(path)


class Transfer:
    """Bytes on their way, told in a line now and then. Several threads may call it."""

    def __init__(self, what: str) -> None:
        self._what, self._bytes, self._told = what, 0, time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, more: int) -> None:
        """So many bytes more."""
        with self._lock:
            self._bytes += more
            if (now := time.monotonic()) - self._told >= LINE_SECONDS:
                self._told = now
                print(f"{self._what}: {self._bytes / 1e6:,.0f} MB", file=sys.stderr)
