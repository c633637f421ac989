"""Tests whether two systems differ by more than chance, and computes confidence intervals of means over queries.

The paired randomization test (Fisher; recommended for retrieval by Smucker, Allan and Carterette, CIKM 2007): if two
systems were equally good, the two values of a query could be swapped. So the test compares the difference of the means
with the differences after random swaps. If several systems are compared with one baseline, some differ by chance;
Holm's correction accounts for this. Student's paired t-test is there for comparisons with papers that use it.

The percentile bootstrap (Efron, 1979): n queries are drawn from the n queries with replacement, many times. The 95 %
interval goes from the 2.5th to the 97.5th percentile of the means of the draws.
"""

import numpy as np

TESTS = {"randomization": "paired randomization test", "t": "paired t-test"}
"""`evaluate.test` → the test's name in texts."""
SIGNIFICANT = 0.05
"""Corrected p-values below this are marked as significant."""
SWAPS = 2**22
"""Number of swaps (permutations times queries) in memory at a time, 0.2 GB. The draws do not depend on it."""
CONFIDENCE = 0.95
DRAWS = 2**21
"""Number of draws (resamples times queries) in memory at a time."""


def paired_randomization(differences: np.ndarray, permutations: int, seed: int) -> np.ndarray:
    """Returns two-sided p-values [c] of c comparisons from their per-query differences [n, c].

    A swap of two values flips the sign of their difference. So one vector of n signs is permuted for all comparisons at
    once. If 2^n ≤ `permutations`, all swaps are tried and the p-value is exact. Otherwise swaps are drawn with `seed`,
    and the p-value is at least 2 / (permutations + 1).
    """
    n, comparisons = differences.shape
    if n < 2:  # one difference is as far from zero as its negative
        return np.ones(comparisons)

    def totals(signs: np.ndarray) -> np.ndarray:
        # Rounded, so that sums are equal if they differ in the order of additions only.
        return np.asarray(np.round(signs @ differences, 9))

    generator, observed = np.random.default_rng(seed), totals(np.ones((1, n)))
    exact = 2**n <= permutations
    drawn, batch = 2**n if exact else permutations, max(1, SWAPS // n)
    extreme = np.zeros((2, comparisons), np.int64)  # draws with a total at most, and at least, the observed one
    for start in range(0, drawn, batch):
        size = min(batch, drawn - start)
        if exact:
            swapped = np.arange(start, start + size)[:, None] >> np.arange(n) & 1
        else:
            # The last bit decides, as in scipy's permutation_test, which draws the same swaps query by query.
            swapped = ~generator.integers(2**32, size=(size, n), dtype=np.uint32) & 1
        null = totals(1.0 - 2.0 * swapped)
        extreme += (null <= observed).sum(axis=0), (null >= observed).sum(axis=0)
    # A drawn p-value counts the observed order among the draws, so that it is never 0.
    return np.asarray(np.minimum(2 * (extreme.min(axis=0) + (not exact)) / (drawn + (not exact)), 1.0))


def paired_t(differences: np.ndarray) -> np.ndarray:
    """Returns two-sided p-values [c] of Student's paired t-test from per-query differences [n, c].

    1 if there are fewer than two queries, or no difference at all.
    """
    n, comparisons = differences.shape
    if n < 2:
        return np.ones(comparisons)
    from scipy.special import stdtr

    # Rounded as in `paired_randomization`: differences that are equal but for rounding have no variance.
    mean = np.round(differences.mean(axis=0), 12)
    error = np.round(differences.std(axis=0, ddof=1), 12) / np.sqrt(n)
    t = np.divide(np.abs(mean), error, out=np.where(mean == 0, 0.0, np.inf), where=error > 0)
    return np.asarray(2 * stdtr(n - 1, -t))


def paired(differences: np.ndarray, test: str, permutations: int, seed: int) -> float:
    """Returns the two-sided p-value of one comparison from its per-query differences [n], by one of `TESTS`."""
    column = differences[:, None]
    return float((paired_t(column) if test == "t" else paired_randomization(column, permutations, seed))[0])


def holm(p_values: np.ndarray) -> np.ndarray:
    """Returns p-values [c] or [c, m] corrected for the c comparisons (Holm, 1979), separately for the m columns.

    If all comparisons with a corrected p-value below α are called significant, the probability of any wrong one among
    them is at most α, even if the comparisons depend on each other.
    """
    comparisons = len(p_values)
    order = np.argsort(p_values, axis=0, kind="stable")
    factors = np.arange(comparisons, 0, -1).reshape(-1, *[1] * (p_values.ndim - 1))
    rising = np.maximum.accumulate(np.take_along_axis(p_values, order, axis=0) * factors, axis=0)
    corrected = np.empty_like(rising)
    np.put_along_axis(corrected, order, np.minimum(rising, 1.0), axis=0)
    return corrected


def bootstrap_intervals(values: np.ndarray, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lower and upper ends [c] of the 95 % intervals of the means of `values` [n, c] over n queries.

    All c columns use the same draws, from `seed`, because the systems have the same queries.
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
