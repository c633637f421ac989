"""How sure is a mean over queries? The percentile bootstrap's answer (Efron, 1979).

Had other queries been asked, the mean would be another. What it might be is seen by drawing the queries
anew from those there are, with replacement, many times: between the 2.5th and the 97.5th percentile of these
means lies the 95 % interval.
"""

import numpy as np

CONFIDENCE = 0.95
BATCH = 2**21
"""Draws (resamples times queries) held in memory at a time."""


def bootstrap_intervals(values: np.ndarray, resamples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper ends [c] of the 95 % intervals of the means of c figures over n queries [n, c].

    All figures are resampled with the same draws, made from `seed`: systems see the same queries. A draw is no more
    than how often each query is in it, so the means of a batch are one matrix product.
    """
    n, columns = values.shape
    if n == 0:
        return np.zeros(columns), np.zeros(columns)
    generator = np.random.default_rng(seed)
    means = np.empty((resamples, columns))
    batch = max(1, BATCH // n)
    for start in range(0, resamples, batch):
        size = min(batch, resamples - start)
        drawn = generator.integers(n, size=(size, n))
        drawn += np.arange(size)[:, None] * n
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        means[start : start + size] = times.astype(np.float64) @ values / n
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high
