"""Real parts for the tests: started once, stopped at the end. A part that is missing skips its tests and says why."""

import importlib.util
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration import engine as docker
from integration import tracking_server as mlflow
from integration.ceph import ACCESS_KEY, PACKAGES, PROGRAMS, SECRET_KEY, Ceph
from integration.engine import Engine
from integration.tracking_server import TrackingServer
from required import missing

from gnn_encoder.storage.s3 import client


@pytest.fixture(scope="session")
def ceph() -> Iterator[Ceph]:
    if absent := [program for program in PROGRAMS if not shutil.which(program)]:
        missing(f"no {', '.join(absent)}: apt-get install {' '.join(PACKAGES)} (make test-integration does, as root)")
    # A socket's path has at most 107 characters: this folder's must be short, pytest's may not be.
    store = Ceph(Path(tempfile.mkdtemp(prefix="ceph-")))
    try:
        store.start()
        yield store
    finally:
        store.remove()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A container engine that has the image of this checkout's steps."""
    if absent := [program for program in docker.PROGRAMS if not Path(program).is_file()]:
        missing(f"no {', '.join(absent)}: apt-get install {' '.join(docker.PACKAGES)} (make test-integration does)")
    if os.geteuid() != 0:
        missing("no right to start a container engine: run as root")
    started = Engine(Path(tempfile.mkdtemp(prefix="docker-")))
    try:
        started.start()
        started.build_image()
        yield started
    finally:
        started.remove()


@pytest.fixture
def bucket(ceph: Ceph, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty bucket, with the environment that leads to it."""
    values = {"ENDPOINT_URL": ceph.endpoint, "ACCESS_KEY_ID": ACCESS_KEY, "SECRET_ACCESS_KEY": SECRET_KEY}
    for name, value in values.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("GNN_ENCODER_S3_ADDRESSING", "path")
    client.cache_clear()
    name = f"test-{uuid.uuid4()}"
    client().create_bucket(Bucket=name)
    yield f"s3://{name}"
    client.cache_clear()


@pytest.fixture
def tracking_server(bucket: str) -> Iterator[TrackingServer]:
    """An MLflow server with a database server behind it, and the bucket for its artifacts."""
    if mlflow.programs() is None:
        missing(f"no PostgreSQL: apt-get install {' '.join(mlflow.PACKAGES)} (make test-integration does, as root)")
    if importlib.util.find_spec(mlflow.DRIVER) is None:
        missing('no psycopg2: pip install -e ".[integration]" (make test-integration does)')
    server = TrackingServer(Path(tempfile.mkdtemp(prefix="mlflow-")), f"{bucket}/mlflow")
    try:
        server.start()
        yield server
    finally:
        server.remove()
