"""A server answers as `Retriever` does, and refuses what it must in one line."""

import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from http_server import JSON, Server, ids, serving

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.added_labels import read_labels
from gnn_encoder.cli.serving import listening_at
from gnn_encoder.errors import UserError
from gnn_encoder.serving import app as module
from gnn_encoder.serving import feedback
from gnn_encoder.serving.guard import PROBLEM

TOKEN_NAME, TOKEN = "GNN_ENCODER_TOKEN", "a-secret-of-this-test"


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path]) -> Iterator[Server]:
    with serving(
        bundles["both"], questions=4, slow_questions=2, characters=200, k=20, body=5000, body_seconds=0.5
    ) as made:
        yield made


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
    assert found["system"] == retriever.bundle.system, "not as it is served by default"


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
    most_alone, asked = (float(lines[f"gnn_encoder_batch_questions_{name}"]) for name in ('bucket{le="1.0"}', "count"))
    assert most_alone < asked and float(lines['gnn_encoder_batch_questions_bucket{le="2.0"}']) < asked, "batches of 3"
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
        ({"questions": "a", "explain": True}, "nothing can be explained"),
        ({"questions": ["a", "b"], "explain": True}, "one at a time"),
        ({"questions": "a", "explain": True, "fuse": True}, "leave out fuse"),
        ({"questions": ["a", "b", "c"], "rerank": True}, "give 1 to 2"),
        ({}, "questions: Field required"),
    ],
)
def test_what_a_request_lacks_is_one_line(server: Server, asked: dict, words: str) -> None:
    status, found = server.search(**asked)
    assert status == 422 == found["status"] and found["title"] == "Unprocessable Entity" and found["type"]
    assert words in found["detail"] and "\n" not in found["detail"] and "/tmp" not in found["detail"]


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
        for given in (
            {},
            {"Authorization": TOKEN},
            {"Authorization": f"Bearer {TOKEN}x"},
            {"Authorization": "Bearer "},
        ):
            status, headers, found = server.send("POST", "/search", body, JSON | given)
            assert status == 401 and headers["www-authenticate"] == "Bearer" and TOKEN.encode() not in found
            assert server.send("GET", "/about", headers=given)[0] == 401
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
    found, headers, body = server.send("POST", "/search", b'{"questions": "garden"}', JSON | {"Host": host})
    assert found == status
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


def test_a_full_queue_says_when_to_come_again(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    entered, may, real = threading.Event(), threading.Event(), module.answers_of

    def waits(*given: Any) -> Any:
        entered.set()
        assert may.wait(20)
        return real(*given)

    monkeypatch.setattr(module, "answers_of", waits)
    with serving(bundles["vectors"], waiting=1) as server, ThreadPoolExecutor(1) as threads:
        first = threads.submit(server.search, questions="garden")
        assert entered.wait(20)
        status, headers, body = server.send("POST", "/search", json.dumps({"questions": "river"}).encode(), JSON)
        assert status == 429 and int(headers["retry-after"]) >= 1 and "ask again" in json.loads(body)["detail"]
        may.set()
        assert first.result()[0] == 200


def test_nothing_is_computed_for_a_client_that_went_away(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may, seen, real = threading.Event(), threading.Event(), [], module.answers_of

    def waits(served: Any, asks: Any) -> Any:
        seen.extend(ask.question for ask in asks)
        entered.set()
        assert may.wait(20)
        return real(served, asks)

    monkeypatch.setattr(module, "answers_of", waits)
    with serving(bundles["vectors"]) as server, ThreadPoolExecutor(1) as threads:
        first = threads.submit(server.search, questions="garden")
        assert entered.wait(20)
        gone = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        gone.request("POST", "/search", json.dumps({"questions": "gone"}).encode(), JSON)
        for waiting in (2.0, 1.0):  # the figure falls when the next batch is taken
            if waiting == 1.0:
                gone.close()
                time.sleep(0.3)
                may.set()
                assert first.result()[0] == 200
                assert server.search(questions="river")[0] == 200
            else:
                until_waiting(server, waiting)
        until_waiting(server, 0.0)
        assert seen == ["garden", "river"]


def until_waiting(server: Server, count: float) -> None:
    """Waits until so many questions wait or are in work."""
    for _ in range(200):
        if f"gnn_encoder_questions_waiting {count}".encode() in server.send("GET", "/metrics")[2]:
            return
        time.sleep(0.05)
    raise AssertionError(f"never {count} questions")


def test_a_failure_says_nothing_of_the_inside(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("at /a/secret/path")

    with serving(bundles["vectors"]) as server:
        with monkeypatch.context() as patch:
            patch.setattr(module, "answers_of", fails)
            status, found = server.search(questions="garden")
        assert status == 500 and "secret" not in json.dumps(found) and "Traceback" not in json.dumps(found)
        assert server.search(questions="garden")[0] == 200


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
    foreign = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    foreign.request("POST", "/search", body, JSON | {"Host": "attacker.example"})
    assert foreign.getresponse().status == 421
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


@pytest.mark.parametrize(
    ("port", "token", "more", "words"),
    [
        ("taken", None, (), "cannot listen"),
        ("free", None, (), "no bundle"),
        ("free", " ", (), "is empty"),
        ("free", None, ("--host", "0.0.0.0", "--labels", "labels.jsonl"), "no token"),
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
    from gnn_encoder.cli import app

    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1] if port == "taken" else 0)
        if token is not None:
            monkeypatch.setenv(TOKEN_NAME, token)
        monkeypatch.setattr(sys, "argv", ["gnn-encoder", "serve", "--bundle", "not/there", "--port", number, *more])
        with pytest.raises(SystemExit) as caught:
            app.main()
    assert caught.value.code == 2 and words in capsys.readouterr().err


def test_a_connection_sends_at_once() -> None:
    with listening_at("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with socket.create_server(("127.0.0.1", 0)) as plain:  # control
        assert not plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_page_needs_no_token_and_says_nothing(bundles: dict[str, Path]) -> None:
    with serving(bundles["vectors"], token=TOKEN) as server:
        for path, words in (("/", b"<form"), ("/page.js", b"fetch("), ("/page.css", b"prefers-color-scheme")):
            status, headers, body = server.send("GET", path)
            assert status == 200 and words in body and "default-src 'self'" in headers["content-security-policy"]
        assert server.send("GET", "/about")[0] == 401 == server.send("POST", "/feedback", b"{}", JSON)[0]
        status, _, body = server.send("GET", "/about", headers={"Authorization": f"Bearer {TOKEN}"})
        facts = json.loads(body)
        assert status == 200 and facts["passages"] == len(Bundle.read(bundles["vectors"]).passages)
        assert facts["feedback"] is facts["rerank"] is False


def test_feedback_is_labels_of_the_next_training(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "new" / "labels.jsonl"

    def vote(server: Server, **given: Any) -> tuple[int, Any]:
        status, _, body = server.send("POST", "/feedback", json.dumps(given).encode(), JSON)
        return status, json.loads(body)

    with serving(bundles["vectors"], labels=file) as server:
        assert read_labels(file) == []
        for passage, count in (("p1", 1), ("p2", 2), ("p1", 2)):
            assert vote(server, question=" where is the river ", passage_id=passage) == (200, {"labels": count})
        first, second = read_labels(file)
        assert (first.query, first.passage_id, second.passage_id) == ("where is the river", "p1", "p2")
        assert first.is_new_query and first.added and first.query_id == second.query_id
        for given, words in (
            ({"question": "a", "passage_id": "nowhere"}, "no such passage"),
            ({"question": " ", "passage_id": "p1"}, "question: empty"),
            ({"question": "\ud800", "passage_id": "p1"}, "surrogate"),
            ({"question": "a", "passage_id": "\ud800"}, "unicode"),
            ({"question": "a", "passage_id": "p1", "relevant": 1}, "relevant: "),
        ):
            status, found = vote(server, **given)
            assert status == 422 and words in found["detail"], given
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: vote(server, question=f"question {n}", passage_id="p3"), range(40)))
    assert len(read_labels(file)) == 42
    with serving(bundles["vectors"], labels=file) as server:  # a restart goes on from the file
        assert vote(server, question="where is the river", passage_id="p1", relevant=False) == (200, {"labels": 41})
    assert read_labels(file)[0] == second
    with serving(bundles["vectors"]) as server:
        status, found = vote(server, question="a", passage_id="p1")
        assert status == 403 and "--labels" in found["detail"]
    with monkeypatch.context() as patch, serving(bundles["vectors"], labels=file) as server:
        patch.setattr(feedback, "MOST", 41)
        status, found = vote(server, question="one more", passage_id="p1")
        assert status == 507 and "41 labels" in found["detail"] and len(read_labels(file)) == 41
    file.write_text("no label\n")
    with pytest.raises(UserError, match="no added label"), serving(bundles["vectors"], labels=file):
        pass
