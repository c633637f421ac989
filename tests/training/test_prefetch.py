"""Prefetching changes neither what comes nor in which order, and an error comes where its item would have."""

import threading
from collections.abc import Iterator

import pytest

from gnn_encoder.training.prefetch import prefetched


@pytest.mark.parametrize("count", [0, 1, 7])
def test_same_items(count: int) -> None:
    assert list(prefetched(iter(range(count)))) == list(range(count))


def test_made_ahead_and_not_by_the_consumer() -> None:
    made: list[int] = []
    threads: set[int] = set()

    def items() -> Iterator[int]:
        for number in range(10):
            made.append(number)
            threads.add(threading.get_ident())
            yield number

    stream = prefetched(items(), ahead=3)
    assert next(stream) == 0
    stream.close()  # waits for what is being made
    assert 3 <= len(made) <= 4 and threads and threading.get_ident() not in threads


def test_an_error_keeps_its_place() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("no third")

    stream = prefetched(items())
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(ValueError, match="no third"):
        next(stream)
