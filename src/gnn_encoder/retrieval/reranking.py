"""The first hits of a run in the order of a scorer: how good a ranking of the same passages can be.

Hits below the depth keep their places, so that what was found stays found.
"""

import numpy as np

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.inference.scorers import Scorer
from gnn_encoder.tracking.progress import Progress


def reranked(
    scorer: Scorer,
    data: Dataset,
    run: Run,
    depth: int,
    *,
    precision: str = "auto",
    tokens_per_batch: int = 4096,
    progress: Progress | None = None,
) -> Run:
    """The run with each query's first `depth` hits ordered by the scorer, ties as they were.

    Below them scores count down from the lowest score above, by one a rank: they give an order and nothing else.
    """
    first = run.rank <= depth
    asked, query = np.unique(run.query[first], return_inverse=True)
    score = scorer.score(
        data, run.query[first], run.passage[first],
        precision=precision, tokens_per_batch=tokens_per_batch, progress=progress,
    )  # fmt: skip
    least = np.full(len(asked), np.inf, dtype=np.float32)
    np.minimum.at(least, query, score)
    scores = np.empty(len(run.query), dtype=np.float32)
    scores[first] = score
    # A hit below the depth has its query among those asked: ranks count from 1.
    scores[~first] = least[np.searchsorted(asked, run.query[~first])] - (run.rank[~first] - depth)
    order = np.lexsort((run.rank, -scores, run.query))
    return Run(run.query, run.passage[order], run.rank, scores[order])
