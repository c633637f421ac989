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
    tasks += [asyncio.create_task(batcher.ask(each)) for each in requests]
    await asyncio.sleep(0.05)
    answering.may.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    working.cancel()
    batcher.close()
    return found


def test_what_waits_is_one_batch_and_requests_are_not_split() -> None:
    answering = Answering()
    batcher = Batcher(answering, batch=4, most=100)
    found = asyncio.run(while_busy(answering, batcher, asks("a", "b"), asks("c"), asks("d", "e"), asks(*"vwxyz")))
    assert found == [["FIRST"], ["A", "B"], ["C"], ["D", "E"], [*"VWXYZ"]]
    assert answering.batches == [["first"], ["a", "b", "c"], ["d", "e"], [*"vwxyz"]]
    assert batcher.waiting == 0


def test_too_many_are_told_when_to_come_again() -> None:
    answering = Answering()
    found = asyncio.run(while_busy(answering, Batcher(answering, batch=4, most=3), asks("a", "b"), asks("c")))
    assert found[:2] == [["FIRST"], ["A", "B"]] and isinstance(found[2], Busy) and found[2].seconds >= 1


def test_a_failure_is_its_batchs_alone() -> None:
    answering = Answering()
    batcher = Batcher(answering, batch=1, most=100)
    found = asyncio.run(while_busy(answering, batcher, asks("bad"), asks("good")))
    assert isinstance(found[1], RuntimeError) and found[2] == ["GOOD"] and batcher.waiting == 0


def test_a_client_that_went_away_does_not_stop_the_others() -> None:
    async def main(answering: Answering) -> list[str]:
        batcher = Batcher(answering, batch=1, most=100)
        working = asyncio.create_task(batcher.work())
        gone = [asyncio.create_task(batcher.ask(asks(name))) for name in ("in work", "waits", "waits too")]
        await asyncio.sleep(0.05)
        for each in gone:
            each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await each
        answering.may.set()
        found = await batcher.ask(asks("here"))
        working.cancel()
        assert batcher.waiting == 0
        return found

    answering = Answering()
    assert asyncio.run(main(answering)) == ["HERE"]
    assert answering.batches == [["in work"], ["here"]], "nothing is computed for a client that went away"
