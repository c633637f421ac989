"""The first hits of a ranking in the cross-encoder's order: how good a ranking of the same passages can be.

The cross-encoder reads query and passage together, which no index can serve. Hits below the depth keep their
places, so that what was found stays found.
"""

import numpy as np

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.inference.scoring import PairTokens, score_pairs
from gnn_encoder.inference.tokens import Tokens, tokens_at
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.tracking.progress import Progress

PAIRS = 100_000
"""Pairs whose [CLS] vectors, which nobody asked for, are in memory at a time."""


def reranked(
    model: CrossEncoder,
    data: Dataset,
    run: Run,
    depth: int,
    *,
    precision: str = "auto",
    tokens_per_batch: int = 4096,
    progress: Progress | None = None,
) -> Run:
    """The run with each query's first `depth` hits ordered by M_ce's score, ties as they were.

    Below them scores count down from the least of M_ce's, one a rank: they say an order and nothing else.
    """
    first = run.rank <= depth
    asked, query = np.unique(run.query[first], return_inverse=True)
    rows, passage = np.unique(run.passage[first], return_inverse=True)
    texts, places = tokens_at(model.tokenizer, data.passages, rows, model.max_length)
    questions = Tokens.of(model.tokenizer, data.query_texts(asked), model.max_length)
    pairs, places = PairTokens(model.tokenizer, questions, texts, model.max_length), places[passage]
    score = np.empty(len(query), dtype=np.float32)
    for start in range(0, len(query), PAIRS):
        part = slice(start, start + PAIRS)
        unused = np.empty((len(query[part]), model.width), dtype=np.float16)
        score_pairs(
            model, pairs, query[part], places[part], score[part], unused,
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
