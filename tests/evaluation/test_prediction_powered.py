"""Prediction-powered means: against ppi-python's figures, and by resampling with a judge that errs."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import ttest_1samp

from gnn_encoder.evaluation.prediction_powered import corrected_mean

RESAMPLINGS = 100


def library_example() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The numbers that ppi-python 0.2.3 was given."""
    random = np.random.default_rng(7)
    human = random.random(400)
    judged = human + 1.5 * random.random(400)
    return human, judged, random.random(5000) + 1.5 * random.random(5000)


LIBRARY = {
    None: (0.5087551500919797, 0.48481328440859583, 0.5326970157753635),
    0.0: (0.5041773468190749, 0.4755393359246176, 0.5328153577135322),
    0.5: (0.5123297411463639, 0.4863477605777178, 0.53831172171501),
    1.0: (0.520482135473653, 0.4771920968793833, 0.5637721740679226),
}
"""λ → `ppi_mean_pointestimate` and `ppi_mean_ci(alpha=0.05)` of ppi-python 0.2.3; None: λ as it chooses it."""


@pytest.mark.parametrize("weight", LIBRARY)
def test_the_estimate_and_its_interval_are_those_of_ppi_python(weight: float | None) -> None:
    estimate, low, high = LIBRARY[weight]
    corrected = corrected_mean(*library_example(), weight).corrected
    exact = weight is not None  # the library estimates the judge's variance from both groups of queries together
    assert corrected.estimate == pytest.approx(estimate, abs=1e-12 if exact else 1e-3)
    # It divides by n, and takes a normal quantile.
    assert corrected.high - corrected.low == pytest.approx(high - low, rel=7e-3)


def test_lambda_has_the_least_variance_and_zero_is_a_t_interval() -> None:
    human, judged, alone = (part[:60] for part in library_example())
    alone = alone[:37]

    def width(weight: float) -> float:
        interval = corrected_mean(human, judged, alone, weight).corrected
        return interval.high - interval.low

    best = minimize_scalar(width, bounds=(0, 1), method="bounded").x
    assert corrected_mean(human, judged, alone).weight == pytest.approx(best, abs=1e-4)
    reference = ttest_1samp(human, 0).confidence_interval(0.95)
    estimate = corrected_mean(human, judged, alone, 0.0)
    assert (estimate.corrected.low, estimate.corrected.high) == pytest.approx(tuple(reference), abs=1e-12)
    assert estimate.corrected == estimate.human


def population(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A figure such as RR@10 of 1,000 queries by human labels, and by a judge that is kind to bad hits."""
    human = random.choice([0, 0.1, 0.25, 0.5, 1], 1000, p=[0.3, 0.1, 0.1, 0.15, 0.35])
    kind = random.random(1000) < 0.5
    return human, np.where(kind, np.maximum(human, random.choice([0.5, 1.0], 1000)), human)


def covered(drawn: int, *, paired: bool) -> tuple[int, int, bool, float]:
    """How often, of `RESAMPLINGS`, the corrected interval and the judge's alone have the full human figure; whether the
    first is never wider than that of the human figures alone; the mean ratio of the two widths."""
    random = np.random.default_rng(5)
    human, judged = population(random)
    if paired:
        other, judged_other = population(random)
        human, judged = human - np.minimum(other, human), judged - np.minimum(judged_other, judged)
    inside, of_judge, narrower, ratios = 0, 0, True, []
    for _ in range(RESAMPLINGS):
        order = random.permutation(1000)
        few, rest = order[:drawn], order[drawn:]
        result = corrected_mean(human[few], judged[few], judged[rest])
        inside += result.corrected.low <= human.mean() <= result.corrected.high
        of_judge += result.judged.low <= human.mean() <= result.judged.high
        widths = [interval.high - interval.low for interval in (result.corrected, result.human)]
        narrower &= widths[0] <= widths[1] + 1e-12
        ratios.append(widths[0] / widths[1])
    return inside, of_judge, narrower, float(np.mean(ratios))


@pytest.mark.parametrize("paired", [False, True], ids=["one system", "two systems"])
@pytest.mark.parametrize("drawn", [20, 50, 200])
def test_intervals_cover_the_full_human_figure_and_the_judge_alone_does_not(drawn: int, paired: bool) -> None:
    inside, of_judge, narrower, ratio = covered(drawn, paired=paired)
    assert inside >= 90
    assert narrower
    assert ratio < 0.95, "the judge says something about the human figure, so the interval is narrower"
    assert of_judge < 50, "a biased judge without the correction must miss the figure"


def test_a_judge_that_says_nothing_changes_nothing_much() -> None:
    random = np.random.default_rng(0)
    human, judged, alone = random.random(30), random.random(30), random.random(500)
    estimate = corrected_mean(human, judged, alone)
    assert estimate.weight < 0.3
    same = corrected_mean(human, np.full(30, 0.5), np.full(500, 0.5))
    assert same.weight == 0 and same.corrected == same.human


def test_too_few_queries_promise_nothing() -> None:
    one = corrected_mean(np.array([1.0]), np.array([1.0]), np.ones(10))
    assert (one.corrected.low, one.corrected.high) == (-np.inf, np.inf)
    assert not one.corrected.excludes_zero
    no_others = corrected_mean(np.array([1.0, 0.5, 0.7]), np.ones(3), np.array([]))
    assert no_others.corrected == no_others.human
    alone = corrected_mean(np.array([1.0, 0.5, 0.7]), np.array([1.0, 0.4, 0.8]), np.array([0.5]))
    assert alone.weight == 0 and alone.corrected == alone.human
