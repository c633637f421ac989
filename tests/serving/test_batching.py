"""Questions that wait together are answered together, and each client gets its own answers."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from gnn_encoder.serving.batching import Ask, Batcher, Busy


class Answering:
    """Answers each question by itself in capitals, when it may."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may = threading.Event()

    def __call__(self, asks: Sequence[Ask]) -> list[str]:
        assert self.may.wait(20)
        self.batches.append([ask.question for ask in asks])
        if any(ask.question == "bad" for ask in asks):
            raise RuntimeError("bad")
        return [ask.question.upper() for ask in asks]


def asks(*questions: str) -> list[Ask]:
    return [Ask(question, 1) for question in questions]


async def while_busy(answering: Answering, batcher: Batcher[str], *requests: list[Ask]) -> list:
    """The results of requests that come while the first one is in work."""
    working = asyncio.create_task(batcher.work())
    tasks = [asyncio.create_task(batcher.ask(asks("first")))]
    while batcher._requests or not batcher.waiting:
        await asyncio.sleep(0.01)
    tasks += [asyncio.create_task(batcher.ask(request)) for request in requests]
    await asyncio.sleep(0.05)
    answering.may.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    working.cancel()
    batcher.close()
    return answers


def test_what_waits_is_one_batch_and_requests_are_not_split() -> None:
    answering = Answering()
    batcher = Batcher(answering, batch=4, most=100)
    answers = asyncio.run(while_busy(answering, batcher, asks("a", "b"), asks("c"), asks("d", "e"), asks(*"vwxyz")))
    assert answers == [["FIRST"], ["A", "B"], ["C"], ["D", "E"], [*"VWXYZ"]]
    assert answering.batches == [["first"], ["a", "b", "c"], ["d", "e"], [*"vwxyz"]]
    assert batcher.waiting == 0


def test_too_many_are_told_when_to_come_again() -> None:
    answering = Answering()
    answers = asyncio.run(while_busy(answering, Batcher(answering, batch=4, most=3), asks("a", "b"), asks("c")))
    assert answers[:2] == [["FIRST"], ["A", "B"]] and isinstance(answers[2], Busy) and answers[2].seconds >= 1


def test_a_failure_is_its_batchs_alone() -> None:
    answering = Answering()
    batcher = Batcher(answering, batch=1, most=100)
    answers = asyncio.run(while_busy(answering, batcher, asks("bad"), asks("good")))
    assert isinstance(answers[1], RuntimeError) and answers[2] == ["GOOD"] and batcher.waiting == 0


def test_a_client_that_went_away_does_not_stop_the_others() -> None:
    async def main(answering: Answering) -> list[str]:
        batcher = Batcher(answering, batch=1, most=100)
        working = asyncio.create_task(batcher.work())
        gone = [asyncio.create_task(batcher.ask(asks(name))) for name in ("in work", "waits", "waits too")]
        await asyncio.sleep(0.05)
        for task in gone:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        answering.may.set()
        answers = await batcher.ask(asks("here"))
        working.cancel()
        assert batcher.waiting == 0
        return answers

    answering = Answering()
    assert asyncio.run(main(answering)) == ["HERE"]
    assert answering.batches == [["in work"], ["here"]], "nothing is computed for a client that went away"
