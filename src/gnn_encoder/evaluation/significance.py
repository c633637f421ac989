"""Is one system better than another, or were the queries kind to it?

The paired randomization test (Fisher's; recommended for retrieval by Smucker, Allan and Carterette,
CIKM 2007): if two systems were alike, a query's two figures could be swapped, so the difference of
the means is compared with what random swaps give.
"""

import numpy as np
from scipy.stats import permutation_test

SIGNIFICANT = 0.05
"""p-values below are marked. They are not corrected for the number of comparisons."""
BATCH = 2**20
"""Swaps (permutations times queries) held in memory at a time."""


def paired_randomization(differences: np.ndarray, permutations: int, seed: int) -> np.ndarray:
    """Two-sided p-values [c] of c comparisons from their per-query differences [n, c].

    Swapping two figures flips the sign of their difference, so what is permuted is one vector of n
    signs, for all comparisons at once. Where 2^n is at most `permutations` all swaps are tried and
    the p-value is exact; otherwise they are drawn, from `seed`, and it is at least 2 / (permutations + 1).
    """
    n, comparisons = differences.shape
    if n < 2:  # one difference lies as far from zero as its negative
        return np.ones(comparisons)

    def totals(signs: np.ndarray, axis: int) -> np.ndarray:
        # Rounded, so that sums that only the order of additions tells apart compare as equal.
        rounded: np.ndarray = np.round(signs @ differences, 9)
        return rounded

    result = permutation_test(
        (np.ones(n),),
        totals,
        permutation_type="samples",
        vectorized=True,
        n_resamples=permutations,
        batch=max(1, BATCH // n),
        alternative="two-sided",
        rng=np.random.default_rng(seed),
    )
    p_values: np.ndarray = np.atleast_1d(result.pvalue)
    return p_values
