"""A server answers as `Retriever` does, and refuses what it must in one line."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from bundles import fill_bundle
from embeddings_service import service_of
from http_server import JSON, Server, ids, serving
from waiting import wait_for

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.artifacts.added_labels import AddedLabel, new_query_id, read_labels, write_labels
from gnn_encoder.artifacts.replacing import replacing
from gnn_encoder.cli.serving import listening_at
from gnn_encoder.errors import UserError
from gnn_encoder.models.address import AddressEncoder, RefusedText
from gnn_encoder.serving import app as module
from gnn_encoder.serving import feedback
from gnn_encoder.serving.answers import answers_of
from gnn_encoder.serving.batching import Ask

TOKEN_NAME, TOKEN = "GNN_ENCODER_TOKEN", "a-secret-of-this-test"


def test_the_answers_are_the_retrievers(server: Server, bundles: dict[str, Path]) -> None:
    retriever, questions = Retriever.load(bundles["both"]), ["the old river", "garden"]
    status, answer = server.search(questions=questions, k=3)
    assert status == 200 and answer["system"] == "BM25 + both"
    assert answer["version"] == retriever.bundle.manifest.digest[:12]
    for question, result, expected in zip(questions, answer["results"], retriever.search(questions, 3), strict=True):
        assert result["question"] == question and ids(result) == [hit.passage_id for hit in expected]
        assert [hit["text"] for hit in result["hits"]] == [hit.text for hit in expected]
        assert [hit["score"] for hit in result["hits"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    status, answer = server.search(questions="garden", k=3, fuse=False)
    assert ids(answer["results"][0]) == [hit.passage_id for hit in retriever.search("garden", 3, fuse=False)]
    assert answer["system"] == retriever.bundle.system, "not as it is served by default"


def test_many_clients_get_their_own_answers(server: Server, bundles: dict[str, Path]) -> None:
    retriever = Retriever.load(bundles["both"])
    questions = [
        f"{a} {b}" for a in ("old", "silent", "hidden", "river") for b in ("garden", "violin", "winter", "sea")
    ]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda question: server.search(questions=question, k=5), questions * 4))
    expected = [[hit.passage_id for hit in hits] for hits in retriever.search(questions, 5)] * 4
    assert [ids(answer["results"][0]) for _, answer in answers] == expected
    _, _, figures = server.send("GET", "/metrics")
    lines = dict(line.rsplit(" ", 1) for line in figures.decode().splitlines() if not line.startswith("#"))
    most_alone, batches = (
        float(lines[f"gnn_encoder_batch_questions_{name}"]) for name in ('bucket{le="1.0"}', "count")
    )
    assert most_alone < batches and float(lines['gnn_encoder_batch_questions_bucket{le="2.0"}']) < batches, (
        "batches of 3"
    )
    assert float(lines['gnn_encoder_requests_total{path="/search",status="200"}']) >= 64
    assert lines["gnn_encoder_questions_waiting"] == "0.0"


def test_a_lone_question_leaves_a_core_to_the_connections(
    bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cores, before = module.answers_of, [], torch.get_num_threads()

    def counts(*arguments: Any) -> Any:
        cores.append((torch.get_num_threads(), faiss.omp_get_max_threads()))
        return real(*arguments)

    monkeypatch.setattr(module, "answers_of", counts)
    torch.set_num_threads(3)
    try:
        with serving(bundles["vectors"]) as server:
            for request in ({"questions": "garden"}, {"questions": ["garden", "river"]}, {"questions": "garden"}):
                assert server.search(**request)[0] == 200
            # What is slow reads many passages for one question: it has all cores. Without a graph there is no reason.
            assert server.search(questions="garden", explain=True)[0] == 422
    finally:
        torch.set_num_threads(before)
        faiss.omp_set_num_threads(before)
    assert cores[0] == cores[2] == (2, 2) and (cores[1][0], cores[3][0]) == (3, 3)


def test_a_full_queue_says_when_to_come_again(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    entered, may, real = threading.Event(), threading.Event(), module.answers_of

    def waits(*arguments: Any) -> Any:
        entered.set()
        assert may.wait(20)
        return real(*arguments)

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
        until_waiting(server, 2.0)
        gone.close()
        time.sleep(0.3)
        may.set()
        assert first.result()[0] == 200
        assert server.search(questions="river")[0] == 200
        until_waiting(server, 0.0)  # the figure falls when the next batch is taken
        assert seen == ["garden", "river"]


def until_waiting(server: Server, count: float) -> None:
    """Waits until so many questions wait or are in work."""
    figure = f"gnn_encoder_questions_waiting {count}".encode()
    wait_for(lambda: figure in server.send("GET", "/metrics")[2], 20)


@pytest.mark.slow
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


def test_a_connection_sends_at_once() -> None:
    with listening_at("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with socket.create_server(("127.0.0.1", 0)) as plain:  # control
        assert not plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_the_page_needs_no_token_and_says_nothing(bundles: dict[str, Path]) -> None:
    with serving(bundles["vectors"], token=TOKEN) as server:
        for path, words in (
            ("/", b"<form"),
            ("/page.js", b"search("),
            ("/server.js", b"fetch("),
            ("/page.css", b"prefers-color-scheme"),
        ):
            status, headers, body = server.send("GET", path)
            assert status == 200 and words in body and "default-src 'self'" in headers["content-security-policy"]
        assert server.send("GET", "/about")[0] == 401 == server.send("POST", "/feedback", b"{}", JSON)[0]
        status, _, body = server.send("GET", "/about", headers={"Authorization": f"Bearer {TOKEN}"})
        facts = json.loads(body)
        assert status == 200 and facts["passages"] == len(Bundle.read(bundles["vectors"]).passages)
        assert facts["feedback"] is facts["rerank"] is False


def test_feedback_is_labels_of_the_next_training(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "labels.jsonl"

    def vote(server: Server, **wrong: Any) -> tuple[int, Any]:
        status, _, body = server.send("POST", "/feedback", json.dumps(wrong).encode(), JSON)
        return status, json.loads(body)

    with serving(bundles["vectors"], labels=file) as server:
        assert read_labels(file) == []
        for form, passage, count in ((" {} ", "p1", 1), ("{}\n", "p2", 2), ("\ufeff{}\u200b", "p1", 2)):
            question = form.format("where is the river")
            assert vote(server, question=question, passage_id=passage) == (200, {"labels": count})
        first, second = read_labels(file)
        assert (first.query, first.passage_id, second.passage_id) == ("where is the river", "p1", "p2")
        assert first.query_id == second.query_id == new_query_id(first.query) and first.added
        for wrong, words in (
            ({"question": "a", "passage_id": "nowhere"}, "no such passage"),
            ({"question": " ", "passage_id": "p1"}, "question: empty"),
            ({"question": "\u200b", "passage_id": "p1"}, "question: empty"),
            ({"question": "\ud800", "passage_id": "p1"}, "surrogate"),
            ({"question": "a", "passage_id": "\ud800"}, "unicode"),
            ({"question": "a", "passage_id": "p1", "relevant": 1}, "relevant: "),
        ):
            status, answer = vote(server, **wrong)
            assert status == 422 and words in answer["detail"], wrong
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: vote(server, question=f"question {n}", passage_id="p3"), range(40)))
    assert len(read_labels(file)) == 42
    with serving(bundles["vectors"], labels=file) as server:  # a restart goes on from the file
        other = "Where  is the riv\u00ader"
        assert vote(server, question=other, passage_id="p1", relevant=False) == (200, {"labels": 41})
    assert read_labels(file)[0] == second
    with serving(bundles["vectors"]) as server:
        status, answer = vote(server, question="a", passage_id="p1")
        assert status == 403 and "--labels" in answer["detail"]
    with monkeypatch.context() as patch, serving(bundles["vectors"], labels=file) as server:
        patch.setattr(feedback, "MOST", 41)
        status, answer = vote(server, question="one more", passage_id="p1")
        assert status == 507 and "41 labels" in answer["detail"] and len(read_labels(file)) == 41

        def fail(path: Path, labels: list[AddedLabel]) -> None:
            raise OSError(ENOSPC, os.strerror(ENOSPC))

        patch.setattr(feedback, "MOST", 42)
        patch.setattr(feedback, "write_labels", fail)
        status, answer = vote(server, question="one more", passage_id="p1")
        assert status == 507 and "cannot be kept: No space left" in answer["detail"] and len(read_labels(file)) == 41
    kept = file.read_bytes()
    with serving(bundles["vectors"], labels=file) as server:  # another program damages the file meanwhile
        file.write_text("no label\n")
        status, answer = vote(server, question="a", passage_id="p1")
        assert status == 503 and "labels is damaged" in answer["detail"] and str(tmp_path) not in answer["detail"]
        assert f"{file} line 1 is no added label" in capsys.readouterr().err and file.read_text() == "no label\n"
        file.write_bytes(kept)
        assert vote(server, question="a", passage_id="p1") == (200, {"labels": 42}), "once it is restored"
    file.write_text("no label\n")
    with pytest.raises(UserError, match="no added label"), serving(bundles["vectors"], labels=file):
        pass


def test_labels_that_another_program_removes_are_not_written_back(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    labels = feedback.Feedback(file)
    for number in range(3):
        labels.mark(f"question {number}", "p1", True)
    write_labels(file, read_labels(file)[1:])
    assert labels.mark("question 1", "p1", True) == 2, "known already"
    assert labels.mark("question 3", "p1", True) == 3
    assert [label.query for label in read_labels(file)] == ["question 1", "question 2", "question 3"]
    with replacing(file) as partial:
        write_labels(partial, read_labels(file)[1:])
    assert labels.mark("question 3", "p1", False) == 1
    file.unlink()
    assert labels.mark("question 4", "p1", True) == 1


def test_a_question_that_the_service_refuses_costs_no_other_its_answer(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, questions = "a question of too many words " * 3, ["garden", "old river", "winter", "violin"]
    with service_of(tiny_backbone) as service:
        encoder = AddressEncoder.at(service.address)
        vectors = encoder.encode(tiny_dataset.passages.take(np.arange(len(tiny_dataset.passages))).full_texts())
        with drafting(tmp_path / "bundle", "bundle") as draft:
            fill_bundle(draft, vectors, tiny_dataset, encoder.save)
        with serving(tmp_path / "bundle") as server:
            service.longest = 60
            asks = [Ask(question, 3) for question in (*questions[:2], refused, *questions[2:])]
            answers = answers_of(server.followed.current, asks)
            assert [isinstance(answer.hits, RefusedText) for answer in answers] == [False, False, True, False, False]
            expected = server.followed.current.retriever.search(questions, 3)
            hits = [answer.hits for answer in answers if isinstance(answer.hits, list)]
            assert [[hit["passage_id"] for hit in one] for one in hits] == [
                [hit.passage_id for hit in one] for one in expected
            ]
            status, answer = server.search(questions=refused)
            assert status == 422 and "refuses" in answer["detail"] and "http" not in answer["detail"]
            status, answer = server.search(questions=[*questions[:2], refused])
            assert status == 422 and answer["detail"].startswith("question 3 of 3: ")
            requests, answered = list[str](), service.answer
            monkeypatch.setattr(service, "answer", lambda *sent: requests.append("") or answered(*sent))
            many = [f"garden {i}" for i in range(64)]
            many[7], many[40], many[41] = refused, f"{refused} again", refused
            answers = answers_of(server.followed.current, [Ask(question, 3) for question in many])
            assert [i for i, one in enumerate(answers) if isinstance(one.hits, RefusedText)] == [7, 40, 41]
            assert len(requests) <= 50, "21 as a rule; at most 24 to find a refused text, twice, and two for the others"
            service.longest = 0
            assert server.search(questions="garden of today")[0] == 503, "not the question's fault: it refuses any"
            service.fails_after, service.longest = 0, 1 << 30
            assert server.search(questions="another garden")[0] == 503, "control: it answers nobody"
