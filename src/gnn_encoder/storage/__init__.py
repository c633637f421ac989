"""Folders and files that a user names: local ones, or those in an object store, which are fetched to this machine."""

import fcntl
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from gnn_encoder.errors import expanded
from gnn_encoder.storage.s3 import is_remote
from gnn_encoder.storage.transfer import Listing, fetch_files, file_at, get_file, get_folder, list_folder, put_folder

CACHE = "GNN_ENCODER_CACHE"
"""Environment variable: the cache folder for fetched folders."""
LINE_SECONDS = 5.0


def local_folder(path: str, *, indexed: bool = True) -> Path:
    """Returns the local folder for a path or an `s3://` address; each version of a remote folder is fetched once.

    Args:
        indexed: refuse a remote folder without a marker. Folders that this program did not send have no marker.
    """
    if not is_remote(path):
        return expanded(path)
    return _fetched(path, list_folder(path, indexed=indexed))


def local_file(path: str) -> Path:
    """Returns the local file for a path or an `s3://` address; each version of a remote file is fetched once."""
    if not is_remote(path):
        return expanded(path)
    name = path.rpartition("/")[-1]
    return _fetched(path, {name: file_at(path)}, get_file) / name


def cache_folder() -> Path:
    """Returns the cache folder for fetched folders, which need not exist."""
    return Path(os.environ.get(CACHE) or Path.home() / ".cache" / "gnn-encoder")


def abandoned_fetches() -> Iterator[Path]:
    """Yields what ended processes have fetched in part into the cache; a version that is being fetched is left out."""
    for partial in sorted(cache_folder().glob(".*.partial*")):
        lock = partial.with_name(f"{partial.name.partition('.partial')[0]}.lock")
        with lock.open("a") as held, suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield partial


def _fetched(path: str, listing: Listing, fetch: Callable[..., None] = fetch_files) -> Path:
    """Returns the folder with the listed files of an address, fetched if this version is not in the cache."""
    facts = {name: asdict(file) for name, file in sorted(listing.items())}
    version = hashlib.sha256(json.dumps([path, facts]).encode()).hexdigest()[:32]
    cache = cache_folder()
    target, partial = cache / version, cache / f".{version}.partial"
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f".{version}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process fetches; other processes wait and find the folder
            if not target.is_dir():
                fetch(path, listing, partial, Transfer(f"fetching {path}"))
                partial.replace(target)
    return target


class Transfer:
    """Prints the number of moved bytes every `LINE_SECONDS`. Several threads may call it."""

    def __init__(self, action: str) -> None:
        self._action, self._bytes, self._printed = action, 0, time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        """Count bytes; a negative number takes back the bytes of a part that is retried."""
        with self._lock:
            self._bytes += count
            if (now := time.monotonic()) - self._printed >= LINE_SECONDS:
                self._printed = now
                print(f"{self._action}: {self._bytes / 1e6:,.0f} MB", file=sys.stderr)
