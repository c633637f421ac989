"""A small S3 server on loopback, in memory, for the fast tests. It can make a writer wait, or refuse.

It checks no signatures. Ceph's gateway, which does, is what `make test-integration` runs against.
"""

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
from loopback import Handler, served

from gnn_encoder.storage.s3 import client

BUCKET = "bucket"
XML, BYTES = "application/xml", "binary/octet-stream"


class SlowStore:
    """What the server holds, how it behaves, and what it was asked."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.writes: list[str] = []
        """Keys, in the order in which they were written."""
        self.opened, self.patience = threading.Event(), 60.0
        """A write waits for the first, at most so many seconds."""
        self.opened.set()
        self.room: float = inf
        """How many more writes are taken; the next is refused."""
        self.deletes = True
        """Whether objects may be deleted."""


class _Bucket(Handler):
    store: ClassVar[SlowStore]
    protocol_version = "HTTP/1.1"

    def _error(self, status: int, code: str) -> None:
        self.send(status, f"<Error><Code>{code}</Code></Error>".encode(), XML)

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def do_PUT(self) -> None:
        body = self.body()
        self.store.room -= 1
        if self.store.room < 0:
            return self._error(403, "QuotaExceeded")
        self.store.opened.wait(self.store.patience)
        self.store.writes.append(self._key)
        self.store.objects[self._key] = body
        return self.send(200, b"", XML, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "uploads" in urlsplit(self.path).query:
            return self.send(200, b"<ListMultipartUploadsResult></ListMultipartUploadsResult>", XML)
        if not self._key:
            return self.send(200, self._listing(query.get("prefix", [""])[0], query.get("delimiter", [""])[0]), XML)
        if self._key not in self.store.objects:
            return self._error(404, "NoSuchKey")
        body, status = self.store.objects[self._key], 200
        if part := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            body, status = body[int(part[1]) : int(part[2]) + 1], 206
        return self.send(status, body, BYTES, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        if not self.store.deletes:
            return self._error(403, "AccessDenied")
        self.store.objects.pop(self._key, None)
        return self.send(204, b"", XML)

    def _listing(self, prefix: str, delimiter: str) -> bytes:
        items, folders = [], set()
        for key, body in sorted(self.store.objects.copy().items()):
            below = key.removeprefix(prefix)
            if key.startswith(prefix) and delimiter and delimiter in below:
                folders.add(prefix + below.split(delimiter)[0] + delimiter)
            elif key.startswith(prefix):
                items.append(f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size><ETag>x</ETag></Contents>")
        items += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(items)}</ListBucketResult>".encode()


@contextmanager
def slow_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStore]:
    """A store at `s3://bucket`, which the environment leads to."""
    store = SlowStore()
    with served(type("Bucket", (_Bucket,), {"store": store})) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        values = {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "me", "DEFAULT_REGION": "here"}
        for name, value in {**values, "SECRET_ACCESS_KEY": "secret"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("GNN_ENCODER_S3_ADDRESSING", "path")
        client.cache_clear()
        try:
            yield store
        finally:
            client.cache_clear()
