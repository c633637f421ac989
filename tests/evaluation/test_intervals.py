import numpy as np
import pytest
from scipy.stats import bootstrap

from gnn_encoder.evaluation import significance
from gnn_encoder.evaluation.significance import bootstrap_intervals


def skewed(n: int) -> np.ndarray:
    """A few large figures among many small ones: the distribution of their mean leans to one side."""
    return np.random.default_rng(0).lognormal(-2.0, 1.2, n)


def scipys(values: np.ndarray, method: str) -> list[float]:
    rng = np.random.default_rng(5)
    interval = bootstrap((values,), np.mean, n_resamples=40_000, method=method, rng=rng, batch=2000).confidence_interval
    return [float(interval.low), float(interval.high)]


def test_ends_are_those_of_scipy() -> None:
    values = np.stack([skewed(15), np.random.default_rng(1).normal(0.4, 0.2, 15)], axis=1)
    low, high = bootstrap_intervals(values, resamples=40_000, seed=0)
    for column in range(2):
        assert [low[column], high[column]] == pytest.approx(scipys(values[:, column], "percentile"), abs=0.004)
    # The control: the basic bootstrap's ends lie elsewhere where the figure is skewed.
    assert [low[0], high[0]] != pytest.approx(scipys(values[:, 0], "basic"), abs=0.015)


def test_intervals_hold_the_true_mean_nineteen_times_in_twenty() -> None:
    values = np.random.default_rng(2).beta(0.5, 0.5, size=(200, 500))
    low, high = bootstrap_intervals(values, resamples=600, seed=0)
    assert np.mean((low <= 0.5) & (high >= 0.5)) == pytest.approx(0.95, abs=0.03)
    half = (high - low) / 4
    assert np.mean((low + half <= 0.5) & (high - half >= 0.5)) < 0.8  # the control: half as wide is too narrow


def test_draws_follow_the_seed_and_not_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).random((30, 2))
    whole = bootstrap_intervals(values, resamples=100, seed=1)
    np.testing.assert_array_equal(bootstrap_intervals(values, resamples=100, seed=1), whole)
    assert not np.array_equal(bootstrap_intervals(values, resamples=100, seed=2), whole)
    monkeypatch.setattr(significance, "DRAWS", 70)
    np.testing.assert_allclose(bootstrap_intervals(values, resamples=100, seed=1), whole, rtol=0, atol=1e-12)


def test_equal_figures_and_no_queries() -> None:
    np.testing.assert_allclose(bootstrap_intervals(np.full((9, 1), 0.25), 50, 0), [[0.25], [0.25]])
    assert np.array(bootstrap_intervals(np.zeros((0, 3)), 50, 0)).tolist() == [[0.0] * 3] * 2
