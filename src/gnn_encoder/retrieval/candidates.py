"""Candidate passages of training queries: what the retrievers found, merged."""

import numpy as np

from gnn_encoder.artifacts import Dataset, KnownPositives, Run


def negative_pool(dataset: Dataset, runs: list[Run], depth: int) -> np.ndarray:
    """The first `depth` candidates of each labelled train pair's query, int32 [e, depth], -1 for known positives."""
    queries, place = np.unique(dataset.split_qrels("train").positive().query, return_inverse=True)
    pool = merge_candidates(runs, queries, depth)
    known = KnownPositives.of(dataset, "train").contains(queries[:, None], pool)
    negatives: np.ndarray = np.where(known, -1, pool)[place]
    return negatives


def merge_candidates(runs: list[Run], queries: np.ndarray, depth: int) -> np.ndarray:
    """The first `depth` distinct passages [n, depth] of `queries` [n], -1 where fewer.

    The runs' hits are ordered by rank first and by the order of `runs` second, so that each run gives
    its best.
    """
    width = len(runs) * depth
    merged = np.stack([run.hits(queries, depth) for run in runs], axis=2).reshape(len(queries), width)
    # Later copies of a passage become -1: a stable sort puts a row's first copy first.
    order = np.argsort(merged, axis=1, kind="stable")
    ordered = np.take_along_axis(merged, order, axis=1)
    copy = np.zeros_like(ordered, dtype=bool)
    copy[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    again = np.zeros_like(copy)
    np.put_along_axis(again, order, copy, axis=1)
    merged[again] = -1
    keep = np.argsort(merged < 0, axis=1, kind="stable")[:, :depth]
    first: np.ndarray = np.take_along_axis(merged, keep, axis=1)
    return first
