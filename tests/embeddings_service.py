"""An embeddings service in OpenAI's form around sentence-transformers, for tests."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopback import Handler, served
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

    class Embeddings(Handler):
        def answer(self) -> None:
            status, answer = service.answer(self.path, json.loads(self.body() or "{}"), self.headers["Authorization"])
            self.send(status, json.dumps(answer).encode())

        do_GET = do_POST = answer

    with served(Embeddings) as server:
        service.address = f"http://127.0.0.1:{server.server_port}/v1"
        yield service
