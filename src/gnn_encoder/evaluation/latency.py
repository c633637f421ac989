"""How long one question takes: encoding it, and searching the passages with its vector.

Systems are asked each question in turn, and who goes first changes from question to question, so that a machine
that is busy with something else disturbs all of them alike. One question at a time, as a user asks them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

QUERIES = 200
"""At most."""
HITS = 10
"""Asked for by each search."""
WARM_UP = 3
"""Questions asked before the clock runs: first calls load code and touch memory."""
BUDGET_SECONDS = 6.0
"""No further question is asked after that."""


@dataclass(frozen=True)
class QueryPath:
    """A dense system as a question goes through it."""

    encode: Callable[[str], np.ndarray]
    """A text → its vector [1, d]."""
    search: Callable[[np.ndarray], Any]
    """A vector [1, d] → hits."""


def measure_latency(
    systems: Mapping[str, QueryPath],
    questions: Sequence[str],
    *,
    budget: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """{"queries": n, "systems": {system: {"encode_ms", "search_ms"}}}, medians over n questions.

    The warm-up counts towards `budget` [seconds]; at least one question is measured.
    """
    until = clock() + budget
    for question in questions[:WARM_UP]:
        for path in systems.values():
            path.search(path.encode(question))
        if clock() > until:
            break
    seconds: dict[str, list[tuple[float, float]]] = {system: [] for system in systems}
    names = list(systems)
    for turn, question in enumerate(questions[:QUERIES]):
        for system in names if turn % 2 == 0 else reversed(names):
            began = clock()
            vector = systems[system].encode(question)
            encoded = clock()
            systems[system].search(vector)
            seconds[system].append((encoded - began, clock() - encoded))
        if clock() > until:
            break
    systems_ms = {}
    for system, taken in seconds.items():
        encode, search = 1000 * np.median(taken, axis=0)
        systems_ms[system] = {"encode_ms": float(encode), "search_ms": float(search)}
    return {"queries": len(seconds[names[0]]), "systems": systems_ms}
