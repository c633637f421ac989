"""Compares queries with queries generated from their negatives: similarity (SS-BERT Table 5)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

EDGES = (0.1, 0.3, 0.6)
RANGES = ("below 0.1", "0.1 to 0.3", "0.3 to 0.6", "above 0.6")
NAMES = ("similarity_below_0.1", "similarity_0.1_to_0.3", "similarity_0.3_to_0.6", "similarity_above_0.6")
"""Names of the metrics of `generate_queries`."""
PAPER = (20.17, 30.69, 39.02, 10.12)
"""SS-BERT Table 5, MS MARCO, in percent."""
PAPER_TRIPLES = 39_769_172


def distribution(similarity: np.ndarray) -> list[float]:
    """Returns the percentage of triples in each of `RANGES`, lower ends included."""
    counts = np.bincount(np.digitize(similarity, np.array(EDGES, dtype=similarity.dtype)), minlength=len(RANGES))
    percent: list[float] = (100.0 * counts / max(len(similarity), 1)).tolist()
    return percent


def beside_paper(metrics: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Returns (range, percent here, percent in the paper), from the metrics of `generate_queries`."""
    percentages = [float(metrics[name]) for name in NAMES]
    return list(zip(RANGES, percentages, PAPER, strict=True))
