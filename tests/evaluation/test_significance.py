import itertools

import numpy as np
import pytest
from scipy.stats import kstest, permutation_test, ttest_rel

from gnn_encoder.evaluation import significance
from gnn_encoder.evaluation.significance import holm, paired_randomization, paired_t


def enumerated(differences: np.ndarray) -> float:
    """Share of all 2^n sign flips whose mean lies at least as far from zero."""
    flips = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    means = flips @ differences / len(differences)
    return float((np.abs(means) >= abs(differences.mean()) - 1e-9).mean())


@pytest.mark.parametrize("n", [1, 4, 9])
def test_few_queries_are_enumerated_exactly(n: int) -> None:
    generator = np.random.default_rng(n)
    # Recall-like steps make equal sums, which must count as "at least as far".
    differences = np.stack([generator.normal(size=n), generator.integers(-3, 4, n) / 3], axis=1)
    p = paired_randomization(differences, permutations=2**n, seed=0)
    assert p == pytest.approx([enumerated(differences[:, 0]), enumerated(differences[:, 1])], abs=1e-12)


def test_drawn_swaps_come_near_the_enumeration_and_follow_the_seed() -> None:
    differences = np.random.default_rng(3).normal(0.3, 1.0, size=(14, 1))
    exact = enumerated(differences[:, 0])
    drawn = paired_randomization(differences, permutations=8000, seed=1)
    assert drawn[0] == pytest.approx(exact, abs=0.02)
    assert drawn[0] != exact
    np.testing.assert_array_equal(paired_randomization(differences, permutations=8000, seed=1), drawn)
    assert paired_randomization(differences, permutations=8000, seed=2) != drawn


@pytest.mark.parametrize("n", [5, 13, 14, 150])
def test_p_equals_scipys_with_the_same_seed(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "SWAPS", 5000 * n)  # several batches
    generator = np.random.default_rng(n)
    differences = np.stack([generator.normal(0.1, size=n), generator.integers(-1, 2, n), np.zeros(n)], axis=1)

    def total(signs: np.ndarray, axis: int) -> np.ndarray:
        rounded: np.ndarray = np.round(signs @ differences, 9)
        return rounded

    same = {"permutation_type": "samples", "vectorized": True, "n_resamples": 9000, "batch": 5000}
    expected = permutation_test((np.ones(n),), total, rng=np.random.default_rng(7), **same).pvalue
    np.testing.assert_array_equal(paired_randomization(differences, 9000, seed=7), expected)


def test_p_is_uniform_where_systems_are_alike_and_small_where_they_are_not() -> None:
    generator = np.random.default_rng(0)
    alike = generator.normal(size=(60, 400))
    p = paired_randomization(alike, permutations=999, seed=0)
    assert kstest(p, "uniform").pvalue > 0.01
    assert kstest(paired_randomization(alike + 0.3, permutations=999, seed=0), "uniform").pvalue < 1e-6


@pytest.mark.parametrize("n", [2, 5, 300])
def test_the_t_test_equals_scipys(n: int) -> None:
    generator = np.random.default_rng(n)
    first, second = generator.random((n, 40)), generator.random((n, 40)) + np.linspace(0, 0.5, 40)
    expected = ttest_rel(first, second).pvalue
    np.testing.assert_allclose(paired_t(first - second), expected, rtol=1e-6)
    np.testing.assert_allclose(paired_t(second - first), expected, rtol=1e-6)
    # The controls: a one-sided test, and a test that does not pair the values.
    assert not np.allclose(ttest_rel(first, second, alternative="less").pvalue, expected)


def test_both_tests_agree_on_many_queries() -> None:
    differences = np.random.default_rng(0).normal(0.08, 1.0, (600, 12))
    by_t = ttest_rel(differences, np.zeros_like(differences)).pvalue
    assert by_t.min() < 0.01 < 0.1 < by_t.max()
    np.testing.assert_allclose(paired_randomization(differences, 20_000, 0), by_t, atol=0.015)


def test_the_t_test_without_variance() -> None:
    nothing, constant, rounded = np.zeros((9, 1)), np.full((9, 1), 0.25), np.tile([[0.1 + 0.2 - 0.3], [0.0]], (5, 1))
    assert paired_t(nothing).tolist() == [1.0] and paired_t(constant).tolist() == [0.0]
    assert paired_t(rounded).tolist() == [1.0]
    assert paired_t(np.ones((1, 2))).tolist() == paired_t(np.ones((0, 2))).tolist() == [1.0, 1.0]


def test_equal_systems_and_no_queries() -> None:
    assert paired_randomization(np.zeros((50, 2)), permutations=200, seed=0).tolist() == [1.0, 1.0]
    assert paired_randomization(np.zeros((0, 2)), permutations=200, seed=0).tolist() == [1.0, 1.0]


def test_both_directions_count_alike() -> None:
    differences = np.random.default_rng(5).normal(0.2, 1.0, size=(10, 3))
    up, down = (paired_randomization(sign * differences, permutations=1024, seed=0) for sign in (1, -1))
    np.testing.assert_allclose(up, down, atol=1e-12)


def test_the_batch_bounds_memory_and_changes_nothing_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = np.random.default_rng(6).normal(size=(8, 2))
    whole = paired_randomization(differences, permutations=256, seed=0)
    monkeypatch.setattr(significance, "SWAPS", 40)
    np.testing.assert_array_equal(paired_randomization(differences, permutations=256, seed=0), whole)


def holm_by_hand(p_values: list[float]) -> list[float]:
    """Holm's adjusted p-values, one after the other from the smallest."""
    corrected, largest = [0.0] * len(p_values), 0.0
    left = len(p_values)
    for p, i in sorted((p, i) for i, p in enumerate(p_values)):
        largest = max(largest, min(1.0, left * p))
        corrected[i] = largest
        left -= 1
    return corrected


@pytest.mark.parametrize("comparisons", [1, 2, 7])
def test_holm_equals_the_loop_column_by_column(comparisons: int) -> None:
    p = np.random.default_rng(comparisons).random((comparisons, 50)) ** 3
    p[:, ::7] = np.round(p[:, ::7], 1)  # ties
    corrected = holm(p)
    for column in range(p.shape[1]):
        assert corrected[:, column].tolist() == pytest.approx(holm_by_hand(p[:, column].tolist()), abs=1e-15)
    np.testing.assert_array_equal(holm(p[:, 0]), corrected[:, 0])


def test_holm_keeps_the_chance_of_any_error_where_raw_p_values_do_not() -> None:
    alike = np.random.default_rng(4).random((6, 4000))  # six comparisons in each of which nothing differs
    assert (holm(alike) < 0.05).any(axis=0).mean() == pytest.approx(0.05, abs=0.012)
    assert (alike < 0.05).any(axis=0).mean() > 0.2
