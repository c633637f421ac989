"""A chat service in OpenAI's form, for tests: it counts what it was asked, and fails as it is told."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from loopback import Handler, served

MODEL = "tiny"


@dataclass
class Service:
    """`reply`: prompt → answer. `faults`: how the next requests fail: a status, `break`, `drip`, `text` or `other`."""

    reply: Callable[[str], str]
    address: str = ""
    faults: list[int | str] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    """How often a prompt's answer was sent, and so paid."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    refused: tuple[str, ...] = ()
    """Parameters that the model does not take."""
    repeats_the_key: bool = False
    seconds: float = 0.0
    """How long it thinks."""
    most: int = 0
    """Requests that were under way at a time."""
    _now: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def answer(self, body: dict[str, Any], key: str) -> tuple[int | str, dict[str, Any]]:
        """A status or fault, and what is sent."""
        with self.lock:
            self.keys.add(key)
            self.requests.append(body)
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self.seconds)
        with self.lock:
            self._now -= 1
            if fault := self.faults.pop(0) if self.faults else 0:
                return fault, {"error": {"message": f"it is told to fail {key * self.repeats_the_key}"}}
            for name in self.refused:
                if name in body:
                    return 400, {"error": {"message": f"Unsupported parameter: '{name}'", "param": name}}
            prompt = body["messages"][-1]["content"]
            text = self.reply(prompt)
            self.answered[prompt] += 1
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        facts = {"id": "1", "object": "chat.completion", "created": 0, "model": MODEL}
        return 200, {**facts, "choices": choices, "usage": usage}


@contextmanager
def chat_service(reply: Callable[[str], str], port: int = 0) -> Iterator[Service]:
    """A service in a thread of this process."""
    service = Service(reply)

    class Chat(Handler):
        def do_GET(self) -> None:
            self._answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

        def do_POST(self) -> None:
            self._answer(*service.answer(json.loads(self.body()), self.headers["Authorization"]))

        def _answer(self, status: int | str, answer: dict[str, Any]) -> None:
            content = json.dumps(answer).encode()
            if status in ("text", "other"):
                content = b"<html>Welcome</html>" if status == "text" else b'{"choices": []}'
            is_broken = status == "break"
            self.send_response(status if isinstance(status, int) else 200)
            self.send_header("Content-Type", "text/html" if status == "text" else "application/json")
            self.send_header("Content-Length", str(len(content)))
            if status == 429:
                self.send_header("Retry-After", "0.05")
            self.end_headers()
            with suppress(ConnectionError):  # the client has given up, or was killed
                for byte in content if status == "drip" else b"":
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.05)
                self.wfile.write(content[: len(content) // 2] if is_broken else content)
            self.close_connection = True

    with served(Chat, port) as server:
        service.address = f"http://127.0.0.1:{server.server_port}/v1"
        yield service
