"""An encoder at an address: an embeddings service in OpenAI's form. Nothing is known of its model but the vectors.

`ADDRESS#MODEL`, such as `https://api.openai.com/v1#text-embedding-3-small`; without `#MODEL` the service's only model
is asked. The official client sends the requests and repeats those that fail for a while. A text that is too long for
the service is cut by halves until it fits. `settings.services` says where the key is sent.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from gnn_encoder.artifacts.arrays import at_unit_length
from gnn_encoder.artifacts.digests import WORDS, Finder, text_digests
from gnn_encoder.errors import Unreachable, one_line
from gnn_encoder.models.backbone import ADDRESS
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.models.service import Service

TEXTS, CHARACTERS = 32, 100_000
"""Most texts, and about the most characters, of a request."""
LONGEST, SHORTEST = 24_000, 200
"""Characters of a text that are sent at most, and to which a text that is refused is cut at least."""
TOO_LONG = (400, 413, 422)
"""What services answer if a text, or all texts of a request, are too long."""
THREADS = 4
"""Requests that are under way at a time."""
WAITS = {"max_retries": 6, "timeout": 120.0}
"""How often the client repeats a request that failed for a while, and how long it waits for an answer."""
QUESTION_WAITS = {"max_retries": 1, "timeout": 15.0}
"""The same where somebody waits for the answer."""
STORED = "stored_texts.npy", "stored_vectors.npy"
"""Digests uint64 [n, 2] of texts, and their vectors fp32 [n, d]."""


class AddressEncoder(TextEncoder):
    """Queries and passages are sent alike; there are no weights here, so nothing can be trained or exported.

    With an empty `address` no text can be encoded: vectors were given, and `model` says where.

    stored   finds the row of a digest in `vectors` [n, d], the vectors of texts that nobody is asked for again
    paid     the same for the texts of an interrupted attempt (`update.paid.Paid`), with each answer added
    """

    def __init__(self, address: str, model: str, width: int, normalize: bool) -> None:
        nn.Module.__init__(self)
        self.address, self.model, self.width, self.normalize = address, model, width, normalize
        self.backbone = self.tokenizer = self.head = None
        self.store(np.empty((0, 2), WORDS), np.empty((0, width), np.float32))
        self.paid: Any = None
        self._service, self._waits = Service(address), QUESTION_WAITS

    @classmethod
    def at(cls, name: str, normalize: str = "auto") -> "AddressEncoder":
        """Asks the service for its model, if `name` has none, and for the vector of one word.

        Raises:
            UserError: the address has a password or a query, or the service does not answer as OpenAI's would
                (`Unreachable`).
        """
        service, model = Service.named(name)
        asking = cls(service.address, model, 0, normalize == "yes")
        asking._service = service
        if not model:
            asking.model = asking._answer(service.only_model)
        encoder = cls(service.address, asking.model, asking._request(["word"]).shape[1], asking.normalize)
        encoder._service, encoder._waits = service, WAITS
        return encoder

    def store(self, digests: np.ndarray, vectors: np.ndarray) -> None:
        """Takes the digests uint64 [n, 2] of texts and their vectors [n, d]; `save` writes them."""
        self._digests, self.vectors, self.stored = digests, vectors, Finder(digests)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors fp32 [n, d] of texts.

        Raises:
            Unreachable: the service does not give them; `RefusedText`: it refuses one of them.
        """
        digests, vectors = text_digests(texts), np.empty((len(texts), self.width), np.float32)
        rows = self.stored(digests)
        vectors[rows >= 0] = self.vectors[rows[rows >= 0]]
        new = np.flatnonzero(rows < 0)
        if self.paid and len(new):
            is_paid, paid = self.paid.find(digests[new])
            vectors[new[is_paid]] = paid
            new = new[~is_paid]
        if len(new):
            distinct, first, position = np.unique(digests[new], axis=0, return_index=True, return_inverse=True)
            vectors[new] = self._ask([texts[row] for row in new[first].tolist()], distinct)[position.ravel()]
        return vectors

    def save(self, folder: Path) -> None:
        """Writes the address, the model's name and the stored vectors; the key is not among them."""
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"address": self.address, "model": self.model, "width": self.width, "normalize": self.normalize}
        (folder / ADDRESS).write_text(json.dumps(facts), encoding="utf-8")
        np.save(folder / STORED[0], self._digests, allow_pickle=False)
        np.save(folder / STORED[1], self.vectors, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> "AddressEncoder":
        """Reads what `save` wrote; nothing is sent."""
        encoder = cls(**json.loads((folder / ADDRESS).read_text("utf-8")))
        encoder.store(*(np.load(folder / name, mmap_mode="r") for name in STORED))
        return encoder

    @cached_property
    def _client(self) -> Any:
        return self._service.client("OpenAI", **self._waits)

    def _ask(self, texts: Sequence[str], digests: np.ndarray) -> np.ndarray:
        vectors, start = np.empty((len(texts), self.width), np.float32), 0
        threads = ThreadPoolExecutor(THREADS, "embeddings")
        try:
            for answered in threads.map(self._request, _requests([text[:LONGEST] or " " for text in texts])):
                stop = start + len(answered)
                vectors[start:stop] = answered
                if self.paid:
                    self.paid.add(digests[start:stop], answered)
                start = stop
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
        return vectors

    def _request(self, texts: Sequence[str]) -> np.ndarray:
        """Returns the vectors fp32 [n, d] of one request, or of several smaller ones."""
        try:
            answer = self._embeddings(texts)
            rows = sorted((one.index, one.embedding) for one in answer.data)
            vectors = np.array([vector for _, vector in rows], np.float32)
            if [index for index, _ in rows] != list(range(len(texts))) or vectors.ndim != 2:
                raise ValueError(f"{len(rows)} vectors for {len(texts)} texts")
        except RefusedText as error:
            if len(texts) > 1:
                half = len(texts) // 2
                return np.concatenate([self._request(texts[:half]), self._request(texts[half:])])
            if len(texts[0]) > SHORTEST:
                try:
                    return self._request([texts[0][: max(len(texts[0]) // 2, SHORTEST)]])
                except RefusedText as shorter:
                    shorter.text = texts[0]
                    raise
            try:
                self._embeddings(["word"])
            except RefusedText:  # a wrong model or parameter, for example
                raise Unreachable(str(error)) from None
            error.text = texts[0]
            raise
        except (AttributeError, TypeError, ValueError) as error:
            raise self._unreachable(f"its answer is not OpenAI's: {one_line(error)}") from None
        if self.width not in (0, vectors.shape[1]) or not np.isfinite(vectors).all():
            wrong = f"a vector of {vectors.shape[1]} numbers, or one that is not finite, instead of {self.width}"
            raise self._unreachable(wrong)
        return at_unit_length(vectors) if self.normalize else vectors

    def _embeddings(self, texts: Sequence[str]) -> Any:
        return self._answer(
            lambda client: client.embeddings.create(model=self.model, input=list(texts), encoding_format="float")
        )

    def _answer(self, request: Callable[[Any], Any]) -> Any:
        if not self.address:
            raise Unreachable(f"{self.model} has no vector of this text: name an encoder, as --encoder http://…#MODEL")
        client = self._client
        try:
            return request(client)
        except import_module("openai").APIStatusError as error:
            kind = RefusedText if error.status_code in TOO_LONG else Unreachable
            raise kind(str(self._unreachable(one_line(error)))) from None
        except (import_module("openai").OpenAIError, AttributeError, TypeError, ValueError) as error:
            raise self._unreachable(one_line(error)) from None

    def _unreachable(self, reason: str) -> Unreachable:
        return self._service.unreachable(self.model, "vectors", reason)


class RefusedText(Unreachable):
    """The service refuses a text, or a request with several texts; it may answer others."""

    text = ""
    """The first `LONGEST` characters of the text, where it is known."""


def _requests(texts: Sequence[str]) -> Iterator[list[str]]:
    request: list[str] = []
    size = 0
    for text in texts:
        if request and (len(request) == TEXTS or size + len(text) > CHARACTERS):
            yield request
            request, size = [], 0
        request.append(text)
        size += len(text)
    if request:
        yield request
