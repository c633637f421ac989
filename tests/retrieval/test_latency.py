import numpy as np
import pytest

from gnn_encoder.retrieval import latency
from gnn_encoder.retrieval.latency import QueryPath, measure_latency


class World:
    """A clock that only what is measured moves, and a record of who was asked what."""

    def __init__(self) -> None:
        self.now, self.slower = 0.0, 1.0
        self.asked: list[tuple[str, str]] = []

    def path(self, system: str, encode: float, search: float) -> QueryPath:
        def encoded(question: str) -> np.ndarray:
            self.asked.append((system, question))
            self.now += encode * self.slower
            return np.zeros((1, 4))

        def searched(vector: np.ndarray) -> None:
            self.now += search * self.slower

        return QueryPath(encoded, searched)

    def measure(self, questions: int, budget: float = 1e9) -> dict:
        systems = {"a": self.path("a", 0.010, 0.002), "b": self.path("b", 0.010, 0.003)}
        return measure_latency(systems, [f"q{i}" for i in range(questions)], budget=budget, clock=lambda: self.now)


def test_medians_of_each_part_in_milliseconds() -> None:
    latency = World().measure(20)
    assert latency["queries"] == 20
    assert latency["systems"]["a"] == pytest.approx({"encode_ms": 10, "search_ms": 2})
    assert latency["systems"]["b"] == pytest.approx({"encode_ms": 10, "search_ms": 3})


def test_systems_take_turns_after_the_warm_up() -> None:
    world = World()
    world.measure(4)
    measured = world.asked[2 * 3 :]
    assert measured == [(s, f"q{i}") for i, turn in enumerate(("ab", "ba", "ab", "ba")) for s in turn]


def test_a_machine_that_slows_down_disturbs_both_alike() -> None:
    world = World()
    original = world.path

    def path(system: str, encode: float, search: float) -> QueryPath:
        plain = original(system, encode, search)

        def encoded(question: str) -> np.ndarray:
            world.slower = 5.0 if world.now > 0.4 else 1.0
            return plain.encode(question)

        return QueryPath(encoded, plain.search)

    world.path = path  # type: ignore[method-assign]
    systems = world.measure(60)["systems"]
    assert systems["a"]["encode_ms"] == pytest.approx(systems["b"]["encode_ms"])
    assert systems["a"]["encode_ms"] > 10


@pytest.mark.parametrize(("budget", "queries"), [(0.0, 1), (0.5, 17), (1e9, latency.QUERIES)])
def test_it_ends_in_time(budget: float, queries: int) -> None:
    assert World().measure(1000, budget)["queries"] == queries
