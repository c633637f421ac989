"""The threshold of a first hit's score, against a plain loop and by simulation."""

import numpy as np
import pytest

from gnn_encoder.artifacts.calibration import FirstHits
from gnn_encoder.evaluation.confidence import answered, curve, threshold


def drawn(generator: np.random.Generator, n: int, wrong: float = 0.6) -> FirstHits:
    """Wrong first hits have lower scores, with a large overlap."""
    is_wrong = generator.random(n) < wrong
    return FirstHits(generator.normal(size=n) - is_wrong, is_wrong)


def by_loop(hits: FirstHits, risk: float) -> float:
    """The lowest score with (n R̂ + 1) / (n + 1) ≤ α, of all candidates."""
    n, lowest = len(hits.score), np.inf
    for candidate in [*sorted(hits.score, reverse=True), -np.inf]:
        losses = sum(score > candidate and wrong for score, wrong in zip(hits.score, hits.wrong, strict=True))
        if (losses + 1) / (n + 1) > risk + 1e-12:
            break
        lowest = candidate
    return lowest


@pytest.mark.parametrize("risk", [0.0, 0.005, 0.05, 0.1, 0.3, 1.0])
def test_the_threshold_is_that_of_a_loop_over_all_scores(risk: float) -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        hits = drawn(generator, 100)
        above = threshold(hits, risk)
        shown = by_loop(hits, risk)
        np.testing.assert_array_equal(hits.score[hits.wrong] > above, hits.score[hits.wrong] > shown)
        assert above <= shown and answered(hits, above).wrong <= risk


def test_the_risk_of_later_questions_is_at_most_the_stated_one_and_nearly_reaches_it() -> None:
    """Of 4,000 calibrations. The control: without the correction by one query the risk is too high."""
    generator, n, risk = np.random.default_rng(1), 100, 0.1
    reached, uncorrected = [], []
    for _ in range(4000):
        hits, later = drawn(generator, n), drawn(generator, 500)
        reached.append(answered(later, threshold(hits, risk)).wrong)
        uncorrected.append(answered(later, threshold(hits, (risk * n + 1) / (n + 1) + 1 / (n + 1))).wrong)
    error = 3 * np.std(reached) / np.sqrt(len(reached))
    assert risk - 2 / (n + 1) - error <= np.mean(reached) <= risk + error
    assert np.mean(uncorrected) > risk + error


def test_few_queries_show_nothing_and_few_errors_all() -> None:
    hits = FirstHits(np.arange(5.0), np.array([True, False, False, False, False]))
    assert threshold(hits, 0.1) == np.inf and answered(hits, np.inf) == (0, 0, 0)
    assert threshold(hits, 0.5) == -np.inf and answered(hits, -np.inf) == (1, 0.2, 0.2)


def test_the_curve_is_of_every_threshold_and_equal_scores_are_shown_together() -> None:
    hits = FirstHits(np.array([3.0, 1.0, 2.0, 2.0]), np.array([False, True, True, False]))
    assert curve(hits) == [(0.25, 0.0), (0.75, 0.25), (1.0, 0.5)]
    assert [answered(hits, above)[:2] for above in (2.0, 1.0, -np.inf)] == curve(hits)
    some = FirstHits(np.array([3.0, -np.inf, 2.0, -np.inf]), np.array([False, True, True, True]))
    assert curve(some) == [(0.25, 0.0), (0.5, 0.25)] and curve(some)[-1] == answered(some, -np.inf)[:2]
    assert curve(FirstHits(np.array([-np.inf]), np.array([True]))) == []
