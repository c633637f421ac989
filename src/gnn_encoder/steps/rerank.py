"""Re-ranks the first hits of a run by a pair scorer; later hits keep their order."""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, Run
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.runs.step import Context, Metrics, step
from gnn_encoder.settings.outcome import Rerank

if TYPE_CHECKING:
    from gnn_encoder.inference.encoding import ReadOptions
    from gnn_encoder.inference.scorers import Scorer


@step(run="run")
def rerank(context: Context, settings: Rerank, dataset: Path, first_run: Path, scorer: Path, run: Draft) -> Metrics:
    """Orders each query's first `depth` hits by the scorer's scores; with depth 0 the run is empty."""
    data, ranking = Dataset(dataset), Run.read(first_run)
    if not settings.depth:
        ranking.of(evaluated_queries(data), 0).write(run, settings.system)
        return {"pairs": 0, "headline": "not asked for"}
    from gnn_encoder.inference.scorers import LateInteractionScorer, load_scorer  # imports torch

    model = load_scorer(scorer)
    if isinstance(model, LateInteractionScorer):
        model.token_vectors = settings.token_vectors
    ranking = ranking.of(evaluated_queries(data))
    pairs = int((ranking.rank <= settings.depth).sum())
    progress = context.progress("scoring", pairs, "pairs")
    result = reranked(model, data, ranking, settings.depth, progress=progress, **settings.speed)
    result.write(run, settings.system)
    return {"pairs": pairs, "headline": f"{pairs:,} pairs, {progress.rate:,.0f} pairs/s"}


def reranked(scorer: "Scorer", data: Dataset, run: Run, depth: int, **options: Unpack["ReadOptions"]) -> Run:
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
