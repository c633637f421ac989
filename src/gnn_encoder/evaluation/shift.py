"""Whether the dev queries lie as near to the training queries as the test queries, which stand for those to come.

What labels give depends on how near a query is to a labelled one. Where dev queries are nearer, as templates are to
each other, a choice on dev promises what other questions do not get. Then dev queries are weighted by the ratio of both
densities, as under a covariate shift (Shimodaira, 2000): the test queries' similarities are cut into `BINS` ranges of
equal counts, and a dev query has the ratio of the shares of its range, at most `LARGEST`. Only texts are compared: no
label of a test query is read.
"""

from typing import NamedTuple

import numpy as np

from gnn_encoder.artifacts.arrays import Rows, at_unit_length
from gnn_encoder.retrieval import exact

AT_ONCE = 65_536
"""Training queries in memory at a time."""
BINS, LARGEST = 5, 10.0
SIGNIFICANCE, FEWEST = 0.01, 20
"""Dev queries are weighted if chance does not explain the difference (Kolmogorov and Smirnov's test), and both sides
have so many queries."""


class Shift(NamedTuple):
    """Weights fp64 [n] of the dev queries, mean 1; and both medians of the similarity to the nearest training query."""

    weights: np.ndarray
    dev: float
    test: float

    def __str__(self) -> str:
        return (
            "dev queries are weighted, as they are not as near to the training queries as the test queries are "
            f"(median similarity {self.dev:.2f} and {self.test:.2f})"
        )


def nearest(training: Rows, queries: np.ndarray) -> np.ndarray:
    """Returns the cosine [n] of each query's vector [n, d] and the nearest training query's [t, d], at least one.

    training: may lie on the disk; a part of it is in memory at a time.
    """
    best, queries = np.full(len(queries), -1.0, np.float32), at_unit_length(np.asarray(queries, np.float32))
    for start in range(0, len(training), AT_ONCE):
        known = at_unit_length(np.asarray(training[start : start + AT_ONCE], np.float32))
        np.maximum(best, exact.search(known, queries, 1)[0][:, 0], out=best)
    return best


def shift(dev: np.ndarray, test: np.ndarray) -> Shift | None:
    """Returns the weights of dev queries, or None if they stand for the test queries.

    dev, test: similarity of each query to the nearest training query, [n] and [m].
    """
    from scipy.stats import ks_2samp  # takes half a second

    if min(len(dev), len(test)) < FEWEST or ks_2samp(dev, test).pvalue > SIGNIFICANCE:
        return None
    edges = np.quantile(test, np.linspace(0, 1, BINS + 1))
    shares = [np.bincount(_ranges(edges, values), minlength=BINS + 2) / len(values) for values in (test, dev)]
    weights = np.minimum(shares[0] / np.maximum(shares[1], 1e-12), LARGEST)[_ranges(edges, dev)]
    if not weights.any():  # none is like the test queries, so none says more than another
        weights[:] = 1
    return Shift(weights / weights.mean(), float(np.median(dev)), float(np.median(test)))


def _ranges(edges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the range of each value: from 1 on, the last edge included; 0 below the first edge, one more above."""
    return np.asarray(np.searchsorted(edges, values, side="right") - (values == edges[-1]))
