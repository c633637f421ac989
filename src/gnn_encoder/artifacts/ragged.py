"""Rows of different lengths kept flat: all values one after another, and where each row begins."""

import numpy as np


def ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """arange(start, stop) of each pair of `starts` [n] and `stops` [n], one after another, int64 [Σ (stop − start)]."""
    counts = stops - starts
    before = np.cumsum(counts) - counts
    found: np.ndarray = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return found
