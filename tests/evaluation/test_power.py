"""The smallest difference that a test finds: simulated tests find it as often as they should."""

import numpy as np
import pytest
from scipy import stats

from gnn_encoder.evaluation.power import POWER, detectable, deviation
from gnn_encoder.evaluation.significance import SIGNIFICANT, paired_t


def share_found(difference: float, spread: float, queries: int, skewed: bool) -> float:
    """The share of simulated paired t-tests that find a true difference of means."""
    generator = np.random.default_rng(0)
    if skewed:  # most queries do not differ, as with reciprocal ranks
        noise = generator.standard_normal((queries, 4000)) * (generator.random((queries, 4000)) < 0.3) / np.sqrt(0.3)
    else:
        noise = generator.standard_normal((queries, 4000))
    return float((paired_t(difference + spread * noise) < SIGNIFICANT).mean())


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize(("queries", "spread"), [(50, 0.3), (300, 0.08)])
def test_the_detectable_difference_is_found_in_four_of_five_tests(queries: int, spread: float, skewed: bool) -> None:
    difference = detectable(spread, queries)
    assert difference is not None
    assert share_found(difference, spread, queries, skewed) == pytest.approx(POWER, abs=0.03)
    # Controls: half of it is found less often, and none at all as often as the level says.
    assert share_found(difference / 2, spread, queries, skewed) < 0.4
    assert share_found(0.0, spread, queries, skewed) == pytest.approx(SIGNIFICANT, abs=0.015)


def test_it_is_the_formula_of_the_normal_distribution() -> None:
    z = stats.norm.ppf(1 - SIGNIFICANT / 2) + stats.norm.ppf(POWER)
    assert detectable(0.3, 100) == pytest.approx(z * 0.03) and z == pytest.approx(2.8, abs=0.01)
    assert detectable(0.3, 0) is None and detectable(0.0, 5) == 0.0


def test_the_deviation_is_of_a_sample() -> None:
    values = np.random.default_rng(0).random(20)
    assert deviation(values) == pytest.approx(float(np.std(values, ddof=1)))
    assert deviation(values[:1]) == deviation(values[:0]) == 0.0
