"""The query adapter against a gradient descent, and leaving out against fitting again."""

import numpy as np
import pytest

from gnn_encoder.retrieval.adapter import Moments, left_out

D, PAIRS = 6, 40


def pairs(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    queries, passages = generator.normal(size=(2, PAIRS, D)).astype(np.float32)
    return queries, passages, generator.uniform(0.2, 1.0, PAIRS).astype(np.float32)


def descended(queries: np.ndarray, passages: np.ndarray, weights: np.ndarray, ridge: float) -> np.ndarray:
    """Minimises Σ ω ‖qW − p‖² + λ ‖W − I‖² by gradient descent."""
    a, b, w = queries.astype(float), passages.astype(float), np.eye(D)
    rate = 0.5 / (np.linalg.eigvalsh(a.T @ (a * weights[:, None]))[-1] + ridge)
    for _ in range(20_000):
        w -= rate * 2 * (a.T @ ((a @ w - b) * weights[:, None]) + ridge * (w - np.eye(D)))
    return w


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
def test_the_solution_is_the_minimum(strength: float) -> None:
    queries, passages, weights = pairs()
    moments = Moments.of(queries, passages, weights)
    reference = descended(queries, passages, weights, moments.ridge(strength))
    assert np.abs(moments.adapter(strength) - reference).max() < 1e-5


def test_control_another_penalty_has_another_minimum() -> None:
    queries, passages, weights = pairs()
    moments = Moments.of(queries, passages, weights)
    reference = descended(queries, passages, weights, 2 * moments.ridge(1.0))
    assert np.abs(moments.adapter(1.0) - reference).max() > 1e-3


def test_with_hard_negatives_the_solution_is_the_minimum_with_the_margin() -> None:
    """Against a descent of Σ ω (‖qW − p‖² − 2 γ qW (p̄ − n̄)ᵀ) + λ ‖W − I‖²; every other query has hard negatives."""
    queries, passages, weights = pairs()
    pulls = np.random.default_rng(1).normal(size=(PAIRS, D)).astype(np.float32)
    pulls[::2] = 0
    every = np.arange(PAIRS)
    moments = Moments.of_pairs(queries, every, passages, every, weights, pulls)
    ridge, w, a = moments.ridge(1.0), np.eye(D), queries.astype(float)
    rate = 0.5 / (np.linalg.eigvalsh(a.T @ (a * weights[:, None]))[-1] + ridge)
    for _ in range(20_000):
        of_fit, of_margin = a.T @ ((a @ w - passages) * weights[:, None]), -a.T @ (pulls * weights[:, None])
        w -= rate * 2 * (of_fit + of_margin + ridge * (w - np.eye(D)))
    assert np.abs(moments.adapter(1.0) - w).max() < 1e-5
    assert np.abs(Moments.of(queries, passages, weights).adapter(1.0) - w).max() > 1e-2  # control: without negatives


def test_a_large_penalty_or_no_pair_leaves_queries_as_they_are() -> None:
    queries, passages, _ = pairs()
    moments = Moments.of(queries, passages)
    assert np.array_equal(moments.adapter(np.inf), np.eye(D))
    assert np.abs(moments.adapter(1e9) - np.eye(D)).max() < 1e-5
    assert np.array_equal(Moments.of(queries[:0], passages[:0]).adapter(1.0), np.eye(D))
    assert np.array_equal(left_out(queries, passages, np.arange(PAIRS), np.inf), queries)


@pytest.mark.parametrize("size", [3, 9])
@pytest.mark.parametrize("weighted", [False, True])
def test_leaving_out_equals_fitting_again(weighted: bool, size: int) -> None:
    queries, passages, weights = pairs()
    group = np.arange(PAIRS) // size  # fewer rows than dimensions, and more
    queries[1] = queries[0]  # two labels of one query
    omega = weights if weighted else None
    moments = Moments.of(queries, passages, omega)
    ridge = moments.ridge(2.0)
    mapped = left_out(queries, passages, group, 2.0, omega)
    for number in np.unique(group):
        rows = group == number
        rest = moments - Moments.of(queries[rows], passages[rows], omega if omega is None else omega[rows])
        again = np.eye(D) + np.linalg.solve(rest.square + ridge * np.eye(D), rest.cross)
        assert np.abs(mapped[rows] - queries[rows] @ again).max() < 1e-4
    some = group < 2
    alone = left_out(queries[some], passages[some], group[some], 2.0, omega if omega is None else omega[some], moments)
    assert np.abs(alone - mapped[some]).max() < 1e-5
    with_own = queries @ moments.adapter(2.0)
    assert np.abs(mapped - with_own).max() > 1e-2  # the test would see labels that stayed
