"""An embeddings service in OpenAI's form around sentence-transformers, for tests."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

MODEL = "tiny"


@dataclass
class Service:
    """What the service was sent, and how it answers; `fails_after`: texts after which it answers with `status`."""

    model: SentenceTransformer
    address: str = ""
    texts: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    fails_after: int = 1 << 30
    status: int = 403
    longest: int = 1 << 30
    """Characters of a text above which a request is refused."""
    repeats_the_key: bool = False
    failures: int = 1 << 30
    """How many requests fail."""
    lock: Any = field(default_factory=threading.Lock)

    def answer(self, path: str, body: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.keys.add(key)
            if path.endswith("/models"):
                return 200, {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": ""}]}
            texts = body["input"]
            if body["model"] != MODEL:
                return 404, {"error": {"message": f"no model {body['model']}"}}
            if max(map(len, texts)) > self.longest:
                return 400, {"error": {"message": "this model's maximum context length is exceeded"}}
            if self.texts.total() + len(texts) > self.fails_after and self.failures:
                self.failures -= 1
                return self.status, {"error": {"message": f"the quota is used up {key * self.repeats_the_key}"}}
            self.texts.update(texts)
            vectors = self.model.encode(texts).tolist()
        rows = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        # In another order than asked: the index says which text a vector is of.
        return 200, {"object": "list", "data": rows[::-1], "model": MODEL, "usage": usage}


@contextmanager
def service_of(backbone: Path) -> Iterator[Service]:
    """A service in a thread of this process."""
    service = Service(SentenceTransformer(str(backbone), device="cpu"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answered({})

        def do_POST(self) -> None:
            self._answered(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answered(self, body: dict[str, Any]) -> None:
            status, answer = service.answer(self.path, body, self.headers["Authorization"])
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.address = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
