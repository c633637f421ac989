"""Is one system better than another, or were the queries kind to it? And how certain is a mean over queries?

The paired randomization test (Fisher's; recommended for retrieval by Smucker, Allan and Carterette, CIKM 2007): if two
systems were alike, a query's two figures could be swapped, so the difference of the means is compared with those after
random swaps. Of several systems compared with one baseline some differ by luck alone; Holm's correction allows for it.

The percentile bootstrap (Efron, 1979): queries are drawn from those there are, with replacement, many times. Between
the 2.5th and the 97.5th percentile of the means of these draws lies the 95 % interval.
"""

import numpy as np

SIGNIFICANT = 0.05
"""Corrected p-values below are marked."""
SWAPS = 2**20
"""Swaps (permutations times queries) held in memory at a time."""
CONFIDENCE = 0.95
DRAWS = 2**21
"""Draws (resamples times queries) held in memory at a time."""


def paired_randomization(differences: np.ndarray, permutations: int, seed: int) -> np.ndarray:
    """Two-sided p-values [c] of c comparisons from their per-query differences [n, c].

    Swapping two figures flips the sign of their difference, so one vector of n signs is permuted, for all comparisons
    at once. If 2^n is at most `permutations` all swaps are tried and the p-value is exact; otherwise they are drawn,
    from `seed`, and it is at least 2 / (permutations + 1).
    """
    n, comparisons = differences.shape
    if n < 2:  # one difference is as far from zero as its negative
        return np.ones(comparisons)

    def totals(signs: np.ndarray, axis: int) -> np.ndarray:
        # Rounded, so that sums compare as equal if only the order of additions differs.
        rounded: np.ndarray = np.round(signs @ differences, 9)
        return rounded

    from scipy.stats import permutation_test  # a second of processor time, which a search need not pay

    result = permutation_test(
        (np.ones(n),),
        totals,
        permutation_type="samples",
        vectorized=True,
        n_resamples=permutations,
        batch=max(1, SWAPS // n),
        alternative="two-sided",
        rng=np.random.default_rng(seed),
    )
    p_values: np.ndarray = np.atleast_1d(result.pvalue)
    return p_values


def holm(p_values: np.ndarray) -> np.ndarray:
    """p-values [c] or [c, m] corrected for the c comparisons (Holm, 1979), each of the m columns by itself.

    The smallest is multiplied by c, the next by c - 1, and so on, and none is less than the one before it. If those
    below α are called significant, at least one of them is wrong with a probability of at most α, however they depend
    on each other.
    """
    comparisons = len(p_values)
    order = np.argsort(p_values, axis=0, kind="stable")
    factors = np.arange(comparisons, 0, -1).reshape(-1, *[1] * (p_values.ndim - 1))
    rising = np.maximum.accumulate(np.take_along_axis(p_values, order, axis=0) * factors, axis=0)
    corrected = np.empty_like(rising)
    np.put_along_axis(corrected, order, np.minimum(rising, 1.0), axis=0)
    return corrected


def bootstrap_intervals(values: np.ndarray, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends [c] of the 95 % intervals of the means of c figures over n queries [n, c].

    All figures are resampled with the same draws, from `seed`: systems have the same queries. A draw is how often each
    query is in it, so the means of a batch are one matrix product.
    """
    n, columns = values.shape
    if n == 0:
        return np.zeros(columns), np.zeros(columns)
    generator = np.random.default_rng(seed)
    means = np.empty((resamples, columns))
    batch = max(1, DRAWS // n)
    for start in range(0, resamples, batch):
        size = min(batch, resamples - start)
        drawn = generator.integers(n, size=(size, n))
        drawn += np.arange(size)[:, None] * n
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        means[start : start + size] = times.astype(np.float64) @ values / n
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high
