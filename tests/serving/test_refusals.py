"""What a server refuses, it refuses in one line, and says nothing of its inside."""

import json
import random
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from http_server import JSON, Server, serving

from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.explanation.passages import NEEDED
from gnn_encoder.serving import app as module
from gnn_encoder.serving.guard import PROBLEM

TOKEN_NAME, TOKEN = "GNN_ENCODER_TOKEN", "a-secret-of-this-test"


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"questions": []}, "give 1 to 4"),
        ({"questions": ["a"] * 5}, "give 1 to 4"),
        ({"questions": "a" * 201}, "at most 200"),
        ({"questions": ["a", " \n"]}, "questions.1: empty"),
        ({"questions": ["\u200b", "a"]}, "questions.0: empty"),
        ({"questions": "\ufeff\u3164"}, "questions.0: empty"),
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
        ({"questions": "a", "explain": True}, "nothing can be explained"),
        ({"questions": ["a", "b"], "explain": True}, "one at a time"),
        ({"questions": "a", "explain": True, "fuse": True}, "leave out fuse"),
        ({"questions": ["a", "b", "c"], "rerank": True}, "give 1 to 2"),
        ({}, "questions: Field required"),
    ],
)
def test_what_a_request_lacks_is_one_line(server: Server, sent: dict, words: str) -> None:
    status, answer = server.search(**sent)
    assert status == 422 == answer["status"] and answer["title"] == "Unprocessable Entity" and answer["type"]
    assert words in answer["detail"] and "\n" not in answer["detail"] and "/tmp" not in answer["detail"]


def test_damaged_files_are_the_servers_fault(
    bundles: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(bundles["vectors"], tmp_path / "bundle")
    for name in NEEDED:
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_text("{")
    with serving(tmp_path / "bundle") as server:
        status, answer = server.search(questions="a", explain=True)
        assert status == 503 == answer["status"] and "is damaged" in answer["detail"] and "/tmp" not in answer["detail"]
        assert server.search(questions="a")[0] == 200
    assert f"{MANIFEST} is corrupt" in capsys.readouterr().err


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
        status, headers, answer = server.send("POST", "/search", body, JSON)
        assert 400 <= status < 500 and headers["content-type"] == PROBLEM and b"Traceback" not in answer, body[:20]
    assert server.send("GET", "/search")[0] == 405 and server.send("GET", "/nothing")[0] == 404


@pytest.mark.slow
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
            at = chance.randrange(len(right))
            return right[:at] + bytes([chance.choice([0, 1, 0xFF, 0xC0])]) + right[at:]
        if kind == 3:
            return right.decode().encode(chance.choice(["utf-16", "utf-32"]))[: chance.randrange(1, 60)]
        name = chance.choice(["questions", "k", "fuse", "rerank", "explain", "other"])
        value = chance.choice([v for v in values if not (name in ("fuse", "rerank") and (v is None or v is True))])
        if name == "explain" and value is True:
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
        status, headers, reply = server.send("POST", "/search", broken(), JSON)
        assert 400 <= status < 500, (number, status, reply)
        assert headers["content-type"] == PROBLEM and "\n" not in json.loads(reply)["detail"]
    heads = [b"GET", b"POST /search", b"\x00\x01", b"GET /nothing HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"]
    heads += [b"POST /search HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"GET /nothing HTTP/1.1\r\nHost\r\n\r\n"]
    heads += [
        b"POST /search HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\n" + b"a" * 70000,
    ]
    for number in range(100):
        status = raw(heads[number % len(heads)] + chance.randbytes(number // 10))
        assert 400 <= status < 500, heads[number % len(heads)][:40]
    assert server.search(questions="the old river", k=3)[0] == 200
    assert server.send("GET", "/health/ready")[0] == 200


def test_the_token(bundles: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"questions": "garden"}).encode()
    with serving(bundles["vectors"], token=TOKEN) as server:
        for header in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Bearer "},
        ):
            status, headers, answer = server.send("POST", "/search", body, JSON | header)
            assert status == 401 and headers["www-authenticate"] == "Bearer" and TOKEN.encode() not in answer
            assert server.send("GET", "/about", headers=header)[0] == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert server.send("POST", "/search", body, JSON | right)[0] == 200
        for path in ("/health/ready", "/health/live", "/metrics", "/docs"):
            assert server.send("GET", path)[0] == 200, path
        described = json.loads(server.send("GET", "/openapi.json")[2])
        assert described["paths"]["/search"]["post"]["security"] == [{"HTTPBearer": []}]
    assert TOKEN not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("LOCALHOST:80", 200)]
    + [(host, 421) for host in ("attacker.example", "localhost.attacker.example:8000", "[::1", "", "127.0.0.1.nip.io")],
)
def test_without_a_token_another_hosts_name_is_refused(server: Server, host: str, status: int) -> None:
    code, headers, body = server.send("POST", "/search", b'{"questions": "garden"}', JSON | {"Host": host})
    assert code == status
    if status == 421:
        assert headers["content-type"] == PROBLEM and "only requests for localhost" in json.loads(body)["detail"]


@pytest.mark.parametrize(("site", "status"), [("cross-site", 421), ("same-origin", 200), ("none", 200)])
def test_without_a_token_a_question_of_another_sites_page_is_refused(server: Server, site: str, status: int) -> None:
    more = JSON | {"Sec-Fetch-Site": site}
    assert server.send("POST", "/search", b'{"questions": "garden"}', more)[0] == status
    assert server.send("GET", "/", headers=more)[0] == 200, "a link leads to the page"


def test_with_a_token_any_name_will_do(bundles: dict[str, Path]) -> None:
    with serving(bundles["vectors"], token=TOKEN) as server:
        more = {"Host": "search.example", "Sec-Fetch-Site": "cross-site", "Authorization": f"Bearer {TOKEN}"}
        assert server.send("POST", "/search", b'{"questions": "garden"}', JSON | more)[0] == 200


def test_a_failure_says_nothing_of_the_inside(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> Any:
        raise RuntimeError("at /a/secret/path")

    with serving(bundles["vectors"]) as server:
        with monkeypatch.context() as patch:
            patch.setattr(module, "answers_of", fails)
            status, answer = server.search(questions="garden")
        assert status == 500 and "secret" not in json.dumps(answer) and "Traceback" not in json.dumps(answer)
        assert server.search(questions="garden")[0] == 200


@pytest.mark.parametrize(
    ("port", "token", "more", "words"),
    [
        ("taken", None, (), "cannot listen"),
        ("free", None, (), "no bundle"),
        ("free", " ", (), "is empty"),
        ("free", None, ("--host", "0.0.0.0", "--labels", "labels.jsonl"), "no token"),
        ("free", None, ("--host", "0.0.0.0", "--judge", "folder"), "no token"),
        ("free", None, ("--judge", "folder"), "name the folder of `gnn-encoder judge`"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    port: str,
    token: str | None,
    more: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1] if port == "taken" else 0)
        if token is not None:
            monkeypatch.setenv(TOKEN_NAME, token)
        code = call("serve", "--bundle", "not/there", "--port", number, *more)
    assert code == 2 and words in capsys.readouterr().err
