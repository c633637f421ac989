"""A server answers as `Retriever` does, refuses what it must in one line, and follows its bundle's name."""

import http.client
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.errors import UserError
from gnn_encoder.promotion.registry import BUNDLE, DIGEST, open_registry
from gnn_encoder.serving import app as module
from gnn_encoder.serving import following
from gnn_encoder.serving.app import PROBLEM, Limits, create_app
from gnn_encoder.serving.following import Followed

TOKEN = "a-secret-of-this-test"
JSON = {"Content-Type": "application/json"}


class Server:
    """A server in a thread of this process."""

    def __init__(self, followed: Followed, limits: Limits, token: str) -> None:
        self.followed = followed
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        config = uvicorn.Config(create_app(followed, limits, token), log_level="critical", access_log=False)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._socket]))
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def send(
        self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        found = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        connection.close()
        return found

    def search(self, **asked: Any) -> tuple[int, Any]:
        status, headers, body = self.send("POST", "/search", json.dumps(asked).encode(), JSON)
        assert headers["content-type"] == ("application/json" if status == 200 else PROBLEM)
        return status, json.loads(body)


@contextmanager
def serving(name: Path | str, root: Path = Path("none"), token: str = "", **limits: Any) -> Iterator[Server]:
    server = Server(Followed(str(name), root), Limits(**limits), token)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path]) -> Iterator[Server]:
    with serving(bundles["both"], questions=4, characters=200, k=20, body=5000, body_seconds=0.5) as made:
        yield made


def ids(result: dict) -> list[str]:
    return [hit["passage_id"] for hit in result["hits"]]


def test_the_answers_are_the_retrievers(server: Server, bundles: dict[str, Path]) -> None:
    retriever, questions = Retriever.load(bundles["both"]), ["the old river", "garden"]
    status, found = server.search(questions=questions, k=3)
    assert status == 200 and found["system"] == "BM25 + both"
    assert found["version"] == retriever.bundle.manifest.digest[:12]
    for question, result, expected in zip(questions, found["results"], retriever.search(questions, 3), strict=True):
        assert result["question"] == question and ids(result) == [hit.passage_id for hit in expected]
        assert [hit["text"] for hit in result["hits"]] == [hit.text for hit in expected]
        assert [hit["score"] for hit in result["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    status, found = server.search(questions="garden", k=3, fuse=False)
    assert ids(found["results"][0]) == [hit.passage_id for hit in retriever.search("garden", 3, fuse=False)]


def test_many_clients_get_their_own_answers(server: Server, bundles: dict[str, Path]) -> None:
    retriever = Retriever.load(bundles["both"])
    questions = [
        f"{a} {b}" for a in ("old", "silent", "hidden", "river") for b in ("garden", "violin", "winter", "sea")
    ]
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda question: server.search(questions=question, k=5), questions * 4))
    expected = [[hit.passage_id for hit in hits] for hits in retriever.search(questions, 5)] * 4
    assert [ids(answer["results"][0]) for _, answer in found] == expected
    _, _, figures = server.send("GET", "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in figures.decode().splitlines() if not line.startswith("#"))
    batches, asked = (float(lines[f"gnn_encoder_batch_questions_{name}"]) for name in ("count", "sum"))
    assert batches < asked, "some questions were answered together"
    assert float(lines['gnn_encoder_requests_total{path="/search",status="200"}']) >= 64
    assert lines["gnn_encoder_questions_waiting"] == "0.0"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"questions": []}, "give 1 to 4"),
        ({"questions": ["a"] * 5}, "give 1 to 4"),
        ({"questions": "a" * 201}, "at most 200"),
        ({"questions": ["a", " \n"]}, "questions.1: empty"),
        ({"questions": "a", "k": 21}, "at most 20"),
        ({"questions": "a", "k": 0}, "k: "),
        ({"questions": "a", "k": "3"}, "k: "),
        ({"questions": "a", "k": True}, "k: "),
        ({"questions": "a", "fuse": 1}, "fuse: "),
        ({"questions": ["a", 5]}, "questions"),
        ({"questions": None}, "questions"),
        ({"question": "a"}, "questions: Field required"),
        ({"questions": "a", "more": 1}, "more: "),
        ({"questions": "\ud800"}, "surrogate"),
        ({"questions": "a", "rerank": True}, "no re-ranker"),
        ({}, "questions: Field required"),
    ],
)
def test_what_a_request_lacks_is_one_line(server: Server, asked: dict, words: str) -> None:
    status, found = server.search(**asked)
    assert status == 422 == found["status"] and found["title"] == "Unprocessable Entity" and found["type"]
    assert words in found["detail"] and "\n" not in found["detail"]


def test_bodies_have_limits(server: Server) -> None:
    large = json.dumps({"questions": "a" * 6000}).encode()
    assert server.send("POST", "/search", large, JSON)[0] == 413
    assert server.send("POST", "/search", iter([large[:3000], large[3000:]]), JSON)[0] == 413

    def slow() -> Iterator[bytes]:
        yield b"{"
        time.sleep(1.2)
        yield b"}"

    assert server.send("POST", "/search", slow(), JSON)[0] == 408
    for body in (b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b'{"questions": "\xff"}', b"null", b"[" * 4000):
        status, headers, found = server.send("POST", "/search", body, JSON)
        assert 400 <= status < 500 and headers["content-type"] == PROBLEM and b"Traceback" not in found, body[:20]
    assert server.send("GET", "/search")[0] == 405 and server.send("GET", "/nothing")[0] == 404


def test_a_thousand_malformed_requests(server: Server) -> None:
    """Whatever is sent, the answer is a refusal in one line, and the server is well afterwards."""
    chance = random.Random(0)
    right = json.dumps({"questions": ["the old river"], "k": 3}).encode()
    values: list[Any] = [None, 1, -1, 1e400, "", [], {}, [[]], True, "x" * 300, ["x"] * 9, 2**70, {"a": [None]}]

    def broken() -> bytes:
        kind = chance.randrange(5)
        if kind == 0:
            return chance.randbytes(chance.randrange(400))
        if kind == 1:
            return right[: chance.randrange(len(right))]
        if kind == 2:  # a byte that no JSON text has
            place = chance.randrange(len(right))
            return right[:place] + bytes([chance.choice([0, 1, 0xFF, 0xC0])]) + right[place:]
        if kind == 3:
            return right.decode().encode(chance.choice(["utf-16", "utf-32"]))[: chance.randrange(1, 60)]
        name = chance.choice(["questions", "k", "fuse", "rerank", "explain", "other"])
        value = chance.choice([v for v in values if not (name == "fuse" and (v is None or v is True))])
        if name in ("rerank", "explain") and value is True:
            value = "true"
        if name == "k" and value == 1:
            value = 1.5
        return json.dumps({"questions": "a", name: value}).encode()

    def raw(head: bytes) -> int:
        with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
            connection.sendall(head)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65536)
        return int(answer.split()[1]) if answer else 400  # closed without an answer: it was no request

    for number in range(900):
        status, headers, found = server.send("POST", "/search", broken(), JSON)
        assert 400 <= status < 500, (number, status, found)
        assert headers["content-type"] == PROBLEM and "\n" not in json.loads(found)["detail"]
    heads = [b"GET", b"POST /search", b"\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"]
    heads += [b"POST /search HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"GET / HTTP/1.1\r\nHost\r\n\r\n"]
    heads += [b"POST /search HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a" * 70000]
    for number in range(100):
        status = raw(heads[number % len(heads)] + chance.randbytes(number // 10))
        assert 400 <= status < 500, heads[number % len(heads)][:40]
    assert server.search(questions="the old river", k=3)[0] == 200
    assert server.send("GET", "/health/ready")[0] == 200


def test_the_token(bundles: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"questions": "garden"}).encode()
    with serving(bundles["vectors"], token=TOKEN) as server:
        for given in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Bearer "},
        ):
            status, headers, found = server.send("POST", "/search", body, JSON | given)
            assert status == 401 and headers["www-authenticate"] == "Bearer" and TOKEN.encode() not in found
            assert server.send("GET", "/metrics", headers=given)[0] == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert server.send("POST", "/search", body, JSON | right)[0] == 200
        assert server.send("GET", "/docs", headers=right)[0] == 200
        assert server.send("GET", "/health/ready")[0] == server.send("GET", "/health/live")[0] == 200
    assert TOKEN not in "".join(capfd.readouterr())


def test_a_full_queue_says_when_to_come_again(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    entered, may, real = threading.Event(), threading.Event(), module._answers

    def waits(*given: Any) -> Any:
        entered.set()
        assert may.wait(20)
        return real(*given)

    monkeypatch.setattr(module, "_answers", waits)
    with serving(bundles["vectors"], waiting=1) as server, ThreadPoolExecutor(1) as threads:
        first = threads.submit(server.search, questions="garden")
        assert entered.wait(20)
        status, headers, body = server.send("POST", "/search", json.dumps({"questions": "river"}).encode(), JSON)
        assert status == 429 and int(headers["retry-after"]) >= 1 and "ask again" in json.loads(body)["detail"]
        may.set()
        assert first.result()[0] == 200


def test_a_failure_says_nothing_of_the_inside(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("at /a/secret/path")

    with serving(bundles["vectors"]) as server:
        with monkeypatch.context() as patch:
            patch.setattr(module, "_answers", fails)
            status, found = server.search(questions="garden")
        assert status == 500 and "secret" not in json.dumps(found) and "Traceback" not in json.dumps(found)
        assert server.search(questions="garden")[0] == 200


def pointed(link: Path, target: Path) -> None:
    fresh = link.with_name("fresh")
    fresh.symlink_to(target)
    fresh.replace(link)


def damaged(path: Path, folder: Path) -> Path:
    shutil.copytree(path, folder)
    with (folder / "vectors.npy").open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\xff" * 8)
    return folder


def test_a_moved_link_is_followed_and_a_damaged_bundle_is_not(bundles: dict[str, Path], tmp_path: Path) -> None:
    link, question = tmp_path / "bundle", "the old river"
    pointed(link, bundles["vectors"])
    expected = {}
    for name in ("vectors", "words"):
        opened = Retriever.load(bundles[name])
        expected[opened.bundle.manifest.digest[:12]] = [hit.passage_id for hit in opened.search(question, 5)]
    assert len({tuple(hits) for hits in expected.values()}) == 2
    answers: list[tuple[int, Any]] = []
    with serving(link, look_seconds=0.05) as server:
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                answers.append(server.search(questions=question, k=5))

        def until(version: str) -> None:
            for _ in range(400):
                if server.followed.current.version == version:
                    return
                time.sleep(0.05)
            raise AssertionError(server.followed.refused)

        clients = [threading.Thread(target=load) for _ in range(2)]
        for client in clients:
            client.start()
        first, second = expected
        pointed(link, bundles["words"])
        until(second)
        pointed(link, damaged(bundles["vectors"], tmp_path / "damaged"))
        for _ in range(400):
            if server.followed.refused:
                break
            time.sleep(0.05)
        facts = json.loads(server.send("GET", "/health/ready")[2])
        assert facts["version"] == second and "vectors.npy" in facts["refused"]
        pointed(link, bundles["vectors"])
        until(first)
        time.sleep(0.2)
        stop.set()
        for client in clients:
            client.join()
        _, _, figures = server.send("GET", "/metrics")
        assert b"gnn_encoder_bundle_swaps_total 2.0" in figures and first.encode() in figures
        assert b"gnn_encoder_bundle_refused 0.0" in figures
    assert {status for status, _ in answers} == {200} and {found["version"] for _, found in answers} == {first, second}
    assert all(ids(found["results"][0]) == expected[found["version"]] for _, found in answers)


def test_an_alias_is_followed(bundles: dict[str, Path], tmp_path: Path) -> None:
    registry = open_registry(f"sqlite:///{tmp_path / 'mlflow.db'}", "gnn-encoder")
    paths = [bundles["vectors"], bundles["both"], damaged(bundles["both"], tmp_path / "damaged")]
    numbers = []
    for path in paths:
        digest = json.loads((path / MANIFEST).read_text())["digest"]
        numbers.append(registry.register(str(path), {BUNDLE: str(path), DIGEST: digest}, {}, "a card"))
    assert registry.promote(numbers[0])
    followed = Followed("models:/gnn-encoder@champion", tmp_path)
    assert followed.current.version == numbers[0] and not followed.look()
    assert registry.promote(numbers[1]) and followed.look()
    assert followed.current.version == numbers[1] and followed.current.system == "BM25 + both"
    assert registry.promote(numbers[2]) and not followed.look()
    assert followed.current.version == numbers[1] and followed.refused and not followed.look() and followed.refused
    assert registry.promote(numbers[0]) and followed.look() and not followed.refused
    other = Bundle.read(bundles["vectors"]).manifest.digest
    wrong = registry.register(str(paths[1]), {BUNDLE: str(paths[1]), DIGEST: other}, {}, "another's digest")
    assert registry.promote(wrong) and not followed.look() and "is not the bundle" in followed.refused
    with pytest.raises(UserError, match="is not the bundle"):
        Followed("models:/gnn-encoder@champion", tmp_path)


def test_a_store_that_fails_for_a_while_is_asked_again(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointed(tmp_path / "bundle", bundles["vectors"])
    followed = Followed(str(tmp_path / "bundle"), tmp_path)
    first = followed.current

    def fails(*given: object) -> None:
        raise RuntimeError("the store is away")

    pointed(tmp_path / "bundle", bundles["both"])
    with monkeypatch.context() as patch:
        patch.setattr(Followed, "_opened", fails)
        assert not followed.look() and followed.refused == "the store is away" and followed.current is first
    assert not followed.look() and followed.refused, "not at once"
    monkeypatch.setattr(following, "RETRY", 0.0)
    followed._retry_at = 1e-9
    assert followed.look() and not followed.refused and followed.current.system == "BM25 + both"
    with monkeypatch.context() as patch:
        patch.setattr(Followed, "_look_up", fails)
        assert not followed.look() and followed.refused
    assert not followed.look() and not followed.refused, "the name leads where it led"


def test_sigterm_lets_the_work_end(bundles: dict[str, Path]) -> None:
    command = [sys.executable, "-c", "from gnn_encoder.cli.app import main; main()", "serve"]
    command += ["--bundle", str(bundles["both"]), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and "BM25 + both" in process.stdout.readline()
    port = int(process.stdout.readline().split("127.0.0.1:")[1].split(",")[0])
    body = json.dumps({"questions": ["the old river"]}).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/search", body, JSON)
    assert connection.getresponse().read()
    # A request whose body is on its way when the signal comes is answered.
    connection.putrequest("POST", "/search")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body[:5])
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    connection.send(body[5:])
    answer = connection.getresponse()
    assert answer.status == 200 and json.loads(answer.read())["results"]
    out, errors = process.communicate(timeout=20)
    assert process.returncode in (0, -signal.SIGTERM) and "Traceback" not in out + errors


@pytest.mark.parametrize(("port", "words"), [("taken", "cannot listen"), ("free", "no bundle")])
def test_what_cannot_be_served_is_one_line(
    port: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnn_encoder.cli import app

    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1] if port == "taken" else 0)
        monkeypatch.setattr(sys, "argv", ["gnn-encoder", "serve", "--bundle", "not/there", "--port", number])
        with pytest.raises(SystemExit) as caught:
            app.main()
    assert caught.value.code == 2 and words in capsys.readouterr().err
