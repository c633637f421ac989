"""Folders to send, what lies in a bucket afterwards, and a process that copies, to be killed."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from gnn_encoder.storage.s3 import Address, client


def folder_of(path: Path, megabytes: int = 40) -> Path:
    (path / "sub").mkdir(parents=True)
    (path / "large.bin").write_bytes(os.urandom(megabytes * 2**20 + 1))
    (path / "sub" / "small.txt").write_text("small")
    (path / "empty").write_bytes(b"")
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def keys(uri: str) -> list[str]:
    address = Address.parse(uri)
    objects = client().list_objects_v2(Bucket=address.bucket, Prefix=address.key("")).get("Contents", [])
    return sorted(item["Key"].removeprefix(address.key("")) for item in objects)


def unfinished(uri: str) -> list[str]:
    return [u["Key"] for u in client().list_multipart_uploads(Bucket=Address.parse(uri).bucket).get("Uploads", [])]


def copying(source: str, target: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([str(Path(sys.executable).with_name("gnn-encoder")), "copy", source, target])


def wait_until(ready: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.02)
