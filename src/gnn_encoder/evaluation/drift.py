"""Whether the questions of a service are still like the dev queries, at any moment of a log.

Each question has a number, such as the score of its first hit. Its conformal p-value is its rank among the dev queries
and the questions before it. While all are exchangeable, these p-values are independent and uniform, whatever the
numbers' distribution. The Simple Jumper bets against that, in both directions (Vovk, Petej, Nouretdinov, Ahlberg,
Carlsson and Gammerman, "Retrain or not retrain", COPA 2021). Its capital is a martingale that starts at 1, so it ever
reaches c with a probability of at most 1 / c (Ville): one may look after each question, for any length of the log.

The capital shrinks while nothing changes. So that a late change is noticed, too, it is divided: a further jumper starts
after every `EVERY` questions, the j-th with 1 / (j (j + 1)) of the capital, which sum to 1.
"""

import bisect

import numpy as np

EVERY = 100
JUMP = 0.01
"""Share of its capital that the Simple Jumper redistributes over its bets before each question."""
BETS = np.array([-1.0, 0.0, 1.0])
LARGEST = 2000
"""Vectors of an energy distance: all pairs of so many take 0.1 GB."""
ONE_IN = 20
"""An unchanged log raises a false alarm at most once in so many logs."""


def p_values(dev: np.ndarray, questions: np.ndarray, seed: int = 0) -> np.ndarray:
    """Returns the conformal p-values [t] of a log's numbers [t], small for low numbers; `dev` [n] is before the log."""
    random, known, values = np.random.default_rng(seed), sorted(dev.tolist()), np.empty(len(questions))
    for t, number in enumerate(questions.tolist()):
        lower, upper = bisect.bisect_left(known, number), bisect.bisect_right(known, number)
        values[t] = (lower + random.random() * (upper - lower + 1)) / (len(known) + 1)
        known.insert(upper, number)
    return values


def capital(p: np.ndarray) -> np.ndarray:
    """Returns the capital [..., t] after each of the p-values [..., t] of one log or several."""
    starts = np.arange(0, max(p.shape[-1], 1), EVERY)
    share = 1 / ((starts / EVERY + 1) * (starts / EVERY + 2))
    bets = np.tile(share[:, None] / len(BETS), (*p.shape[:-1], 1, len(BETS)))
    total = np.empty(p.shape)
    for t in range(p.shape[-1]):
        running = bets[..., : t // EVERY + 1, :]
        running[:] = (1 - JUMP) * running + JUMP * running.mean(axis=-1, keepdims=True)
        running *= 1 + BETS * (p[..., t, None, None] - 0.5)
        total[..., t] = bets.sum(axis=(-1, -2))
    total += 1 - share.sum()
    return total


def energy_distance(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the distance of the distributions of two samples, [n, d] and [m, d]: 0 if they are the same.

    It is √(2 E‖X − Y‖ − E‖X − X'‖ − E‖Y − Y'‖) over all pairs (Székely and Rizzo, 2013); of one dimension, that is
    `scipy.stats.energy_distance`. Of a larger sample, the last `LARGEST` are taken.
    """
    x, y = x[-LARGEST:], y[-LARGEST:]
    between, within_x, within_y = (_distances(a, b) for a, b in ((x, y), (x, x), (y, y)))
    return float(np.sqrt(max(2 * between - within_x - within_y, 0.0)))


def _distances(x: np.ndarray, y: np.ndarray) -> float:
    """The mean distance of all pairs."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    squared = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1) - 2 * x @ y.T
    return float(np.sqrt(np.maximum(squared, 0)).mean())
