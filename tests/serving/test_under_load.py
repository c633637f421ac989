"""A server in its own process, under clients that never pause: its bundle changes, it is killed, it is told to end."""

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from bundles import damaged
from http_server import JSON, ids
from registered import register
from waiting import wait_for

from gnn_encoder import Retriever
from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.promotion.registry import BUNDLE, DIGEST, Registry, open_registry

pytestmark = pytest.mark.slow
CLIENTS = 8
QUESTIONS = ["the old river", "garden", "a silent violin in winter", "sea"]
START = [sys.executable, "-c", "from gnn_encoder.cli.app import main; main()", "serve", "--look", "0.2"]


class Process:
    """`gnn-encoder serve` as a process."""

    def __init__(self, root: Path, port: int = 0) -> None:
        command = [*START, "--bundle", "models:/gnn-encoder@champion", "--root", str(root), "--port", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert self.process.stdout and "serving" in self.process.stdout.readline()
            self.port = int(self.process.stdout.readline().split("127.0.0.1:")[1].split(",")[0])
            self.until(lambda facts: facts["status"] == "ready")
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ready(self) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("GET", "/health/ready")
        facts: dict[str, Any] = json.loads(connection.getresponse().read())
        return facts

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> None:
        for _ in range(600):
            with suppress(OSError):  # it does not listen yet
                if holds(self.ready()):
                    return
            time.sleep(0.05)
        raise AssertionError(self.ready())


class Client(threading.Thread):
    """Asks one question after the other over one connection, and keeps the answers, and what broke."""

    def __init__(self, port: int, number: int, stop: threading.Event) -> None:
        super().__init__()
        self._port, self._number, self._stop_asking = port, number, stop
        self.answers: list[tuple[str, int, Any]] = []
        self.broken: list[str] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        request_number = self._number
        while not self._stop_asking.is_set():
            question = QUESTIONS[request_number % len(QUESTIONS)]
            try:
                connection.request("POST", "/search", json.dumps({"questions": question, "k": 5}).encode(), JSON)
                response = connection.getresponse()
                self.answers.append((question, response.status, json.loads(response.read())))
            except (OSError, http.client.HTTPException) as error:
                self.broken.append(type(error).__name__)
                return
            request_number += 1


@contextmanager
def load(port: int) -> Iterator[list[Client]]:
    stop = threading.Event()
    clients = [Client(port, number, stop) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        stop.set()
        for client in clients:
            client.join(30)
            assert not client.is_alive()


@pytest.fixture
def registry(bundles: dict[str, Path], tmp_path: Path) -> Registry:
    """Versions 1 and 2, and 3, whose vectors are damaged; 1 is the champion."""
    models = open_registry(f"sqlite:///{tmp_path / 'mlflow.db'}", "gnn-encoder")
    for path in (bundles["vectors"], bundles["words"], damaged(bundles["words"], tmp_path / "damaged")):
        digest = json.loads((path / MANIFEST).read_text())["digest"]
        register(models, str(path), {BUNDLE: str(path), DIGEST: digest}, {}, "a card")
    assert models.promote("1")
    return models


@pytest.fixture
def expected(bundles: dict[str, Path]) -> dict[tuple[str, str], list[str]]:
    """The hits of each version and question."""
    hits_of = {}
    for version, name in (("1", "vectors"), ("2", "words")):
        retriever = Retriever.load(bundles[name])
        for question in QUESTIONS:
            hits_of[version, question] = [hit.passage_id for hit in retriever.search(question, 5)]
    assert all(hits_of["1", question] != hits_of["2", question] for question in QUESTIONS[:2])
    return hits_of


def check(clients: list[Client], expected: dict[tuple[str, str], list[str]], versions: set[str]) -> int:
    """Every answer is right for the version that it names; returns their number."""
    answers = [answer for client in clients for answer in client.answers]
    assert {status for _, status, _ in answers} == {200}
    assert {answer["version"] for _, _, answer in answers} == versions
    for question, _, answer in answers:
        assert ids(answer["results"][0]) == expected[answer["version"], question]
    return len(answers)


def test_the_champion_moves_and_rolls_back_and_a_corrupt_one_is_refused(
    registry: Registry, expected: dict[tuple[str, str], list[str]], tmp_path: Path
) -> None:
    server = Process(tmp_path)
    try:
        with load(server.port) as clients:
            for _ in range(3):
                assert registry.promote("2")
                server.until(lambda facts: facts["version"] == "2")
                assert registry.promote("3")
                server.until(lambda facts: "refused" in facts)
                assert server.ready()["version"] == "2"
                registry.roll_back()
                server.until(lambda facts: "refused" not in facts)
                assert registry.promote("1")
                server.until(lambda facts: facts["version"] == "1")
    finally:
        server.kill()
    assert not [error for client in clients for error in client.broken]
    assert check(clients, expected, {"1", "2"}) > 200


@pytest.mark.usefixtures("registry")
def test_after_sigterm_every_request_that_was_sent_has_its_answer(
    expected: dict[tuple[str, str], list[str]], tmp_path: Path
) -> None:
    server = Process(tmp_path)
    try:
        with load(server.port) as clients:
            time.sleep(1.0)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) in (0, -signal.SIGTERM)
    finally:
        server.kill()
    check(clients, expected, {"1"})
    # A client whose last answer said that the connection closes finds nobody to connect to again; nothing else breaks.
    assert {error for client in clients for error in client.broken} == {"ConnectionRefusedError"}


@pytest.mark.usefixtures("registry")
def test_a_killed_server_is_ready_again_at_the_same_port(
    expected: dict[tuple[str, str], list[str]], tmp_path: Path
) -> None:
    server = Process(tmp_path)
    with load(server.port) as clients:
        wait_for(lambda: all(client.answers for client in clients), 60)
        server.kill()
    check(clients, expected, {"1"})
    again = Process(tmp_path, server.port)
    try:
        with load(again.port) as clients:
            wait_for(lambda: all(client.answers for client in clients), 60)
        assert not [error for client in clients for error in client.broken]
        assert check(clients, expected, {"1"})
    finally:
        again.kill()
