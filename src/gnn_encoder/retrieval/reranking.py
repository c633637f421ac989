"""Re-ranking the first hits of a run by a scorer; hits below the depth keep their places, so that recall stays."""

from typing import Unpack

import numpy as np

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.inference.encoding import ReadOptions
from gnn_encoder.inference.scorers import Scorer


def reranked(scorer: Scorer, data: Dataset, run: Run, depth: int, **options: Unpack[ReadOptions]) -> Run:
    """The run with each query's first `depth` hits ordered by the scorer, ties as they were.

    The scores of later hits fall by 1 per rank from the lowest score of the scorer: they only keep the order.
    """
    first = run.rank <= depth
    asked, query = np.unique(run.query[first], return_inverse=True)
    score = scorer.score(data, run.query[first], run.passage[first], **options)
    least = np.full(len(asked), np.inf, dtype=np.float32)
    np.minimum.at(least, query, score)
    scores = np.empty(len(run.query), dtype=np.float32)
    scores[first] = score
    # Each query of a later hit is in `asked`, because ranks start at 1.
    scores[~first] = least[np.searchsorted(asked, run.query[~first])] - (run.rank[~first] - depth)
    order = np.lexsort((run.rank, -scores, run.query))
    return Run(run.query, run.passage[order], run.rank, scores[order])
