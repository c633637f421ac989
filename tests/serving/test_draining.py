"""After SIGTERM the last answer on a connection says that the connection closes."""

import asyncio
import http.client
import socket
import threading
import time
from typing import Any

import pytest
import uvicorn

from gnn_encoder.serving import draining
from gnn_encoder.serving.draining import DrainingServer


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """Answers after 0.8 seconds."""
    assert scope["type"] == "http"
    await asyncio.sleep(0.8)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def closes(kind: type[uvicorn.Server], delay: float) -> bool:
    """Whether an answer says that its connection closes, if the server is told to end `delay` s after the request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = kind(uvicorn.Config(slow, log_config=None, lifespan="off", timeout_graceful_shutdown=10))
        thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        connection = http.client.HTTPConnection(*listening.getsockname(), timeout=20)
        connection.connect()
        if delay < 0:  # the server is told first
            server.should_exit = True
            time.sleep(-delay)
        connection.request("GET", "/")
        time.sleep(max(0.0, delay))
        server.should_exit = True
        response = connection.getresponse()
        assert response.read() == b"ok"
        thread.join(20)
        assert not thread.is_alive()
        return response.will_close


@pytest.mark.parametrize("delay", [0.2, -0.3])
def test_a_request_in_work_and_one_on_its_way_are_answered(delay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "LAST_REQUESTS", 0.5)  # shorter than the answer takes
    assert closes(DrainingServer, delay)


def test_control_uvicorns_own_answer_does_not_say_so_and_a_request_on_its_way_is_lost() -> None:
    assert not closes(uvicorn.Server, 0.2)
    with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
        closes(uvicorn.Server, -0.3)
