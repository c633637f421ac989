"""A hub that cannot be reached is asked once, and not five times for every file."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from gnn_encoder.models.backbone_files import own_file
from gnn_encoder.models.hub import ask_hub


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    ask_hub.cache_clear()
    yield
    ask_hub.cache_clear()


def test_without_a_hub_the_cache_alone_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert own_file("nobody/nothing", "config.json") is None and own_file("nobody/nothing", "modules.json") is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("http://127.0.0.1:9 cannot be reached") and line.endswith("read from the cache alone")
    assert constants.is_offline_mode() and os.environ["HF_HUB_OFFLINE"] == "1", "steps in other processes know it, too"


def test_any_answer_is_an_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        ask_hub()
        server.shutdown()
    assert not constants.is_offline_mode() and not capsys.readouterr().err
