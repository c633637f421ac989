"""Computes which differences a test of so many queries can show.

Webber, Moffat and Zobel ("Statistical power in retrieval experimentation", CIKM 2008) and Sakai ("Topic set size
design", Information Retrieval Journal 19, 2016): before a comparison of two systems, the standard deviation of the
per-query differences and the number of queries give the smallest true difference that a test is likely to find.
"""

from math import sqrt

import numpy as np

from gnn_encoder.evaluation.significance import SIGNIFICANT

POWER = 0.8
"""Probability that the test finds the difference."""
ASSUMED = 0.3
"""Standard deviation of per-query differences in RR@10 where nothing was measured. On the quickstart's test queries it
is 0.07 between the GNN-encoder and the dual encoder, 0.23 between the untrained and the trained encoder, and 0.43
between BM25 and the dual encoder."""


def detectable(deviation: float, queries: int) -> float | None:
    """Returns the smallest difference of means that a paired test finds with probability `POWER`; None without a query.

    That is (z(0.975) + z(0.8)) · s / √n in a two-sided test at the level `SIGNIFICANT`, z: quantiles of the normal
    distribution. With fewer than some 20 queries the t-test finds it less often.

    Args:
        deviation: s, the standard deviation of the differences of single queries.
        queries: n.
    """
    if queries < 1:
        return None
    from scipy.special import ndtri

    return float((ndtri(1 - SIGNIFICANT / 2) + ndtri(POWER)) * deviation / sqrt(queries))


def deviation(differences: np.ndarray) -> float:
    """Returns the standard deviation of per-query differences [n]; 0 with fewer than two queries."""
    return float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
