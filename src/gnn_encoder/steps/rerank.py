"""Re-ranks the first hits of a run by a pair scorer; later hits keep their order.

A task that shares the work re-ranks the hits of its share of the queries.
"""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, Run
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.task_figures import reranking_figures
from gnn_encoder.retrieval.reranking import reranked, served_facts
from gnn_encoder.retrieval.scorers import LateInteractionScorer, load_scorer
from gnn_encoder.settings.outcome import Rerank


@step(run="run")
def rerank(context: Context, settings: Rerank, dataset: Path, first_run: Path, scorer: Path, run: Draft) -> Metrics:
    """Orders each query's first `depth` hits by the scorer's scores."""
    data, model = Dataset(dataset), load_scorer(scorer)
    if isinstance(model, LateInteractionScorer):
        model.token_vectors = settings.token_vectors
    queries = evaluated_queries(data)
    ranking = Run.read(first_run).of(queries[settings.share(len(queries))])
    pairs = int((ranking.rank <= settings.depth).sum())
    progress = context.progress("scoring", pairs, "pairs")
    result = reranked(model, data, ranking, settings.depth, progress=progress, **settings.speed)
    served = served_facts(System.of(first_run), weight=1.0, depth=settings.depth, **settings.speed)
    result.write(run, settings.system, **served)
    return reranking_figures(len(np.unique(ranking.query)), pairs, progress.rate)
