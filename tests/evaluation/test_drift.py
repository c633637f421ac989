"""The bets on a change of a log, against plain loops, and false alarms of drawn logs."""

import numpy as np
import pytest
from scipy.stats import energy_distance as of_scipy
from scipy.stats import kstest

from gnn_encoder.evaluation import drift
from gnn_encoder.evaluation.drift import capital, energy_distance, p_values


def jumper(p: np.ndarray) -> float:
    """The Simple Jumper as in its paper's Algorithm 1."""
    bets = dict.fromkeys((-1, 0, 1), 1 / 3)
    for value in p:
        total = sum(bets.values())
        bets = {bet: (1 - drift.JUMP) * held + drift.JUMP / 3 * total for bet, held in bets.items()}
        bets = {bet: held * (1 + bet * (value - 0.5)) for bet, held in bets.items()}
    return sum(bets.values())


def test_the_capital_is_that_of_jumpers_that_start_later_and_later() -> None:
    p = np.random.default_rng(0).random(250) ** 2
    by_hand = [
        jumper(p[: t + 1]) / 2 + jumper(p[100 : t + 1]) / 6 + jumper(p[200 : t + 1]) / 12 + 1 / 4 for t in range(250)
    ]
    np.testing.assert_allclose(capital(p), by_hand, rtol=1e-9)
    assert len(capital(np.empty(0))) == 0


def test_p_values_are_ranks_among_all_before_and_uniform_also_with_equal_numbers() -> None:
    generator = np.random.default_rng(1)
    dev, log = generator.normal(size=30), generator.normal(size=20)
    for t, value in enumerate(p_values(dev, log)):
        before = np.concatenate([dev, log[:t]])
        below = (before < log[t]).sum()
        assert below / (len(before) + 1) <= value <= (below + 1) / (len(before) + 1)
    tied = generator.integers(3, size=6000).astype(float)
    assert kstest(p_values(tied[:100], tied[100:]), "uniform").pvalue > 0.01
    assert kstest(p_values(tied[:100] + 1, tied[100:]), "uniform").pvalue < 1e-3, "the control: other numbers"


@pytest.mark.parametrize(("length", "logs"), [(200, 300), (1500, 60)])
def test_an_unchanged_log_alarms_at_most_once_in_twenty(length: int, logs: int) -> None:
    generator = np.random.default_rng(2)
    numbers = (np.split(generator.normal(size=100 + length), [100]) for _ in range(logs))
    highest = capital(np.stack([p_values(dev, log) for dev, log in numbers])).max(axis=1)
    assert (highest >= drift.ONE_IN).mean() <= 1 / drift.ONE_IN
    assert (highest > 1).mean() > 0.1, "the bets are made"


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("before", [0, 1000])
def test_a_change_is_noticed_within_200_questions(side: int, before: int) -> None:
    """Half of the questions get other numbers, from the start or after a long unchanged log."""
    generator = np.random.default_rng(3)
    for _ in range(10):
        dev, log = np.split(generator.normal(size=300 + before), [100])
        log[before:] += side * 3 * (generator.random(200) < 0.5)
        reached = np.flatnonzero(capital(p_values(dev, log)) >= 2 * drift.ONE_IN)
        assert len(reached) and reached[0] >= before


def test_the_energy_distance_is_scipys_and_symmetric() -> None:
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=50), generator.normal(1, 2, size=70)
    assert energy_distance(x[:, None], y[:, None]) == pytest.approx(of_scipy(x, y))
    wide = generator.normal(size=(40, 6)), generator.normal(size=(30, 6))
    loops = [
        np.mean([np.linalg.norm(a - b) for a in one for b in other])
        for one, other in (wide, wide[:1] * 2, wide[1:] * 2)
    ]
    assert (
        energy_distance(*wide)
        == energy_distance(*wide[::-1])
        == pytest.approx(np.sqrt(2 * loops[0] - loops[1] - loops[2]))
    )
    assert energy_distance(x[:, None], x[:, None]) == pytest.approx(0, abs=1e-6)


def test_an_energy_distance_of_many_is_that_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.default_rng(5).normal(size=(2, 60, 3))
    monkeypatch.setattr(drift, "LARGEST", 20)
    assert energy_distance(x, y) == energy_distance(x[-20:], y[-20:]) != energy_distance(x[:20], y[:20])
