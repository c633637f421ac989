"""Hard negatives: which candidates may be negatives of a query, and which of them a batch gets."""

import numpy as np

from gnn_encoder.artifacts import Dataset, KnownPositives, Run
from gnn_encoder.retrieval.first_stage import merge_candidates


def negative_pool(dataset: Dataset, runs: list[Run], depth: int) -> np.ndarray:
    """The first `depth` candidates for each labelled train pair, int32 [e, depth]; the query's positives become -1."""
    queries, place = np.unique(dataset.split_qrels("train").positive().query, return_inverse=True)
    pool = merge_candidates(runs, queries, depth)
    known = KnownPositives.of(dataset, "train").contains(queries[:, None], pool)
    negatives: np.ndarray = np.where(known, -1, pool)[place]
    return negatives


def draw_negatives(pool: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """`count` distinct entries of each row of `pool` [b, s] (-1: none), [b, count] with -1 where it has fewer."""
    if count == 0 or pool.shape[1] == 0:
        return np.empty((len(pool), 0), dtype=pool.dtype)
    keys = np.where(pool >= 0, generator.random(pool.shape), 2.0)
    chosen = np.argsort(keys, axis=1)[:, :count]
    drawn: np.ndarray = np.take_along_axis(pool, chosen, axis=1)
    return drawn
