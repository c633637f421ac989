"""Means over queries from few human labels and many of a judge that may err: prediction-powered inference.

Angelopoulos, Bates, Fannjiang, Jordan and Zrnic ("Prediction-powered inference", Science 382, 2023); λ as in PPI++
(Angelopoulos, Duchi and Zrnic, arXiv 2311.01453). Y_i is a query's figure by human labels, f_i the same figure by the
judge. n queries have both, N others have f alone:

    θ = λ · mean_N(f) + mean_n(Y − λ f)          variance = λ² · var_N(f) / N + var_n(Y − λ f) / n

θ is unbiased for the mean of Y whatever the judge's errors are, if the n queries are a random draw of all: the second
term measures the errors and takes them off. λ = 0 is the mean of the human figures alone. The λ in [0, 1] with the
least estimated variance is taken, and 0 if the interval would be wider than that of the human figures alone. So a judge
that says nothing about Y changes little.

The library ppi-python computes the same (a test holds its figures), and would bring numba, statsmodels and gdown for
these lines. It divides by n and takes normal quantiles, which is too narrow for 20 queries. Here the variance divides
by n − 1, and the quantiles are Student's with n − 1 degrees of freedom; n − 2 for both if λ is from the same figures.

What that is worth with few queries: of 4,000 draws of the tests' population, the 95 % interval has the mean of one
system in 93 % with n = 20 (Student's of the human figures alone: 95 %) and in 87 % with 10 (94 %), and the gain of
one system over another in 93 % (93 %) and 90 % (89 %). If 70 % of the gains are set to 0, neither interval can be
trusted: 77 % (79 %) with 20, 92 % (90 %) with 60. λ from all figures but a query's own (cross-fitting: Zrnic and
Candès, 2024) covered at most 4 points more there, with wider intervals.
"""

from dataclasses import dataclass
from math import inf, nan, sqrt

import numpy as np

from gnn_encoder.evaluation.significance import CONFIDENCE


@dataclass(frozen=True)
class Interval:
    """An estimate of a mean and its 95 % interval, from minus to plus infinity if fewer than two queries are known."""

    estimate: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether zero is outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Corrected:
    """A mean in three ways.

    weight     λ, the share of the judge in `corrected`
    corrected  the prediction-powered estimate
    human      of the human figures alone
    judged     of the judge's figures alone, for all n + N queries: its errors are in it, and no width covers them
    """

    weight: float
    corrected: Interval
    human: Interval
    judged: Interval


def corrected_mean(
    human: np.ndarray, judged: np.ndarray, judged_alone: np.ndarray, weight: float | None = None
) -> Corrected:
    """Returns the mean of a figure over queries, such as RR@10, or the paired difference of two systems in it.

    Args:
        human: [n] figures by human labels.
        judged: [n] figures of the same queries by the judge.
        judged_alone: [N] figures by the judge of further queries; fewer than two: the human figures alone count.
        weight: λ; None: the one with the least estimated variance.
    """
    n, unlabelled = len(human), len(judged_alone)
    human, judged, judged_alone = (np.asarray(part, np.float64) for part in (human, judged, judged_alone))
    alone, of_judge = _interval(human), _interval(np.concatenate([judged, judged_alone]))
    if n < 3 or unlabelled < 2:
        return Corrected(0.0, alone, alone, of_judge)
    variance_alone, fitted = judged_alone.var(ddof=1) / unlabelled, int(weight is None)
    if weight is None:
        covariance = np.cov(human, judged)
        spread = variance_alone + covariance[1, 1] / n
        weight = float(np.clip(covariance[0, 1] / n / spread, 0, 1)) if spread else 0.0
    if not weight:
        return Corrected(0.0, alone, alone, of_judge)
    rectified = human - weight * judged
    error = sqrt(rectified.var(ddof=1 + fitted) / n + weight**2 * variance_alone)
    estimate = weight * judged_alone.mean() + rectified.mean()
    corrected = _around(float(estimate), error, n - 1 - fitted)
    if fitted and corrected.high - corrected.low >= alone.high - alone.low:
        return Corrected(0.0, alone, alone, of_judge)
    return Corrected(weight, corrected, alone, of_judge)


def corrected_sample(
    human: np.ndarray, judged: np.ndarray, chance: np.ndarray, judged_all: np.ndarray, sampled_from: int
) -> Corrected:
    """Returns the mean of a figure over N queries of which n have human labels, drawn with unequal chances.

    Active statistical inference (Zrnic and Candès, arXiv 2403.03208): queries are drawn more often where a label is
    expected to change more, and each counts as one divided by its chance. Here the mean of Y − λ f is the weighted sum
    divided by the sum of the weights (Hájek), over the M queries that can be drawn; Y is 0 for the others. The variance
    of the draw is that of `judging.order`'s, in which the queries' weights are uncorrelated; that of the N queries
    themselves is added, because the interval is for all queries of the kind. λ as in `corrected_mean`. Equal figures of
    the n queries say nothing of the others' spread: then the interval has no ends, as for fewer than two queries.

    Args:
        human, judged: [n] figures of the drawn queries by human labels, and by the judge (0 without a judge).
        chance: [n] of each, in (0, 1]; all are 1 if all M are drawn.
        judged_all: [N] figures of all queries by the judge.
        sampled_from: M, number of queries that can be drawn. Y and f of the others must be 0.
    """
    human, judged, chance, judged_all = (np.asarray(part, np.float64) for part in (human, judged, chance, judged_all))
    n, of_judge, share = len(human), _interval(judged_all), sampled_from / max(1, len(judged_all))
    if n < 2 or (np.ptp(human) == 0 and chance.min() < 1):
        unknown = Interval(float(share * human.mean()) if n else nan, -inf, inf)
        return Corrected(0.0, unknown, unknown, of_judge)
    count = 1 / chance
    spread = (1 - chance) * count**2 / count.sum() ** 2

    def mean(values: np.ndarray) -> float:
        return float(np.average(values, weights=count))

    of_queries = max(0.0, share * mean(human**2) - (share * mean(human)) ** 2) / len(judged_all)

    def around(weight: float, freedom: int) -> Interval:
        rest = human - weight * judged
        draw = share**2 * float(spread @ (rest - mean(rest)) ** 2) * n / freedom
        return _around(weight * judged_all.mean() + share * mean(rest), sqrt(draw + of_queries), freedom)

    alone, centred = around(0.0, n - 1), judged - mean(judged)
    variance = float(spread @ centred**2)
    weight = float(np.clip(spread @ (centred * (human - mean(human))) / variance, 0, 1)) if variance else 0.0
    corrected = around(weight, n - 2) if weight and n > 2 else alone
    if corrected.high - corrected.low >= alone.high - alone.low:
        return Corrected(0.0, alone, alone, of_judge)
    return Corrected(weight, corrected, alone, of_judge)


def _interval(values: np.ndarray) -> Interval:
    """Returns the mean of values [n] with Student's interval."""
    n = len(values)
    if not n:
        return Interval(nan, -inf, inf)
    return _around(float(values.mean()), float(values.std(ddof=1)) / sqrt(n) if n > 1 else inf, n - 1)


def _around(estimate: float, error: float, freedom: int) -> Interval:
    from scipy.special import stdtrit

    width = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error if freedom else inf
    return Interval(estimate, estimate - width, estimate + width)
