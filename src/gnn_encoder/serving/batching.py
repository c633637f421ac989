"""Answers the questions of many clients together: all that wait while a batch is answered are the next batch.

A lone question waits for nobody, and under load the encoder reads many questions at a time.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")
RECENT = 0.2
"""Weight of the last batch in the mean time of a question."""


@dataclass(frozen=True)
class Ask:
    """One question, with the arguments of `Retriever.search`, or of `Retriever.explain`."""

    question: str
    k: int
    fuse: bool | None = None
    rerank: bool | None = None
    explain: bool = False
    filter: Mapping[str, Any] | None = None
    rights: Mapping[str, Any] | None = None
    min_confidence: float | None = None


class Busy(Exception):
    """Too many questions wait; `seconds` until there is room, by what questions took lately."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many questions wait: ask again after {seconds} s")
        self.seconds = seconds


class Batcher(Generic[Answer]):
    """A queue of questions and one thread that answers them."""

    def __init__(self, answer: Callable[[Sequence[Ask]], Sequence[Answer]], batch: int, most: int) -> None:
        """Starts nothing.

        Args:
            answer: returns the answer to each question; called in a thread of its own, once at a time.
            batch: questions that are answered together; a request with more is a batch of its own.
            most: questions that may wait or be in work.
        """
        self._answer, self._batch, self._most = answer, batch, most
        self._requests: deque[tuple[Sequence[Ask], asyncio.Future[list[Answer]]]] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._seconds_each = 0.01
        self.waiting = 0
        """Questions that wait or are in work."""

    async def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """Returns the answers to the questions of one request; raises Busy, or what `answer` raised for the batch."""
        if self.waiting and self.waiting + len(asks) > self._most:
            raise Busy(max(1, math.ceil(self.waiting * self._seconds_each)))
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._requests.append((asks, future))
        self.waiting += len(asks)
        self._arrived.set()
        return await future

    async def work(self) -> None:
        """Answers batch after batch, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            requests = self._next()
            if not self._requests:
                self._arrived.clear()
            if not requests:
                continue
            asks = [ask for queries, _ in requests for ask in queries]
            began = time.perf_counter()
            try:
                answers = list(await loop.run_in_executor(self._thread, self._answer, asks))
            except Exception as error:  # the clients of this batch get it, and the next batch is answered
                for _, future in requests:
                    if not future.done():
                        future.set_exception(error)
                continue
            finally:
                self.waiting -= len(asks)
            self._seconds_each += RECENT * ((time.perf_counter() - began) / len(asks) - self._seconds_each)
            for queries, future in requests:
                own_answers, answers = answers[: len(queries)], answers[len(queries) :]
                if not future.done():  # the client did not go away meanwhile
                    future.set_result(own_answers)

    def _next(self) -> list[tuple[Sequence[Ask], asyncio.Future[list[Answer]]]]:
        """Takes the next requests, with at most `batch` questions unless the first has more.

        Requests whose clients went away are dropped.
        """
        requests: list[tuple[Sequence[Ask], asyncio.Future[list[Answer]]]] = []
        questions = 0
        while self._requests:
            asks, future = self._requests[0]
            if future.done():
                self.waiting -= len(asks)
            elif requests and questions + len(asks) > self._batch:
                break
            else:
                requests.append((asks, future))
                questions += len(asks)
            self._requests.popleft()
        return requests

    def close(self) -> None:
        """Lets the thread end after the batch in work."""
        self._thread.shutdown(wait=False)
