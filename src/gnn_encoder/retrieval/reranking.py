"""Orders the first hits of a run by a scorer of pairs."""

from typing import TYPE_CHECKING, Unpack

import numpy as np

from gnn_encoder.artifacts import Asked, Bundle, Run, Texts
from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.inference.encoding import ReadOptions
    from gnn_encoder.inference.scorers import Scorer


def reranked(scorer: "Scorer", data: Texts, run: Run, depth: int, **options: Unpack["ReadOptions"]) -> Run:
    """Returns the run with each query's first `depth` hits ordered by the scorer; ties keep their order.

    Later hits get scores below the query's lowest scorer score, one less per rank, so that their order is kept.
    """
    first = run.rank <= depth
    asked, query = np.unique(run.query[first], return_inverse=True)
    score = scorer.score(data, run.query[first], run.passage[first], **options)
    least = np.full(len(asked), np.inf, dtype=np.float32)
    np.minimum.at(least, query, score)
    scores = np.empty(len(run.query), dtype=np.float32)
    scores[first] = score
    # Each query has a hit at rank 1, so every query of a later hit is in `asked`.
    scores[~first] = least[np.searchsorted(asked, run.query[~first])] - (run.rank[~first] - depth)
    order = np.lexsort((run.rank, -scores, run.query))
    return Run(run.query, run.passage[order], run.rank, scores[order])


def reranked_hits(bundle: Bundle, question: str, run: Run, depth: int) -> Run:
    """Returns the hits of one question with the first `depth` of them ordered by the bundle's re-ranker.

    Raises UserError if the bundle has no re-ranker.
    """
    if bundle.reranker_path is None:
        raise UserError(
            f"{bundle.path} has no re-ranker: gnn-encoder rerank --first-stage ROOT/latest makes one with it"
        )
    from gnn_encoder.inference.scorers import load_scorer  # imports torch

    return reranked(load_scorer(bundle.reranker_path), Asked([question], bundle.passages), run, depth)
