"""A server of a bundle, for tests."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from gnn_encoder.serving.app import create_app
from gnn_encoder.serving.feedback import Feedback
from gnn_encoder.serving.following import Followed
from gnn_encoder.serving.guard import PROBLEM, Limits
from gnn_encoder.serving.judging import PeoplesJudging
from gnn_encoder.serving.questions import QuestionLog
from gnn_encoder.serving.rights import Rights

JSON = {"Content-Type": "application/json"}


class Server:
    """A server in a thread of this process."""

    def __init__(
        self,
        followed: Followed,
        limits: Limits,
        token: str,
        feedback: Feedback | None,
        judging: PeoplesJudging | None,
        rights: Rights | None = None,
        log: QuestionLog | None = None,
    ) -> None:
        self.followed = followed
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        # Without uvicorn's log settings: they close the handlers of this process, pytest's among them.
        local = not token and not rights
        config = uvicorn.Config(
            create_app(followed, limits, token, feedback, local, judging, rights, log),
            log_config=None,
            access_log=False,
        )
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
        reply = response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        connection.close()
        return reply

    def search(self, **question: Any) -> tuple[int, Any]:
        status, headers, body = self.send("POST", "/search", json.dumps(question).encode(), JSON)
        assert headers["content-type"] == ("application/json" if status == 200 else PROBLEM)
        return status, json.loads(body)


@contextmanager
def serving(
    name: Path | str,
    root: Path = Path("none"),
    token: str = "",
    labels: Path | None = None,
    judge: Path | None = None,
    rights: Rights | None = None,
    log: QuestionLog | None = None,
    **limits: Any,
) -> Iterator[Server]:
    feedback, judging = Feedback(labels) if labels else None, PeoplesJudging(judge) if judge else None
    followed = Followed(str(name), root, rights.field if rights else None)
    server = Server(followed, Limits(**limits), token, feedback, judging, rights, log)
    try:
        yield server
    finally:
        server.stop()
        if judging:
            judging.close()


def ids(result: dict) -> list[str]:
    """The passages of a question's hits."""
    return [hit["passage_id"] for hit in result["hits"]]
