"""Orders the first hits by the sum of the first stage's score and the re-ranker's, with a weight chosen on dev."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, Run, pair_keys
from gnn_encoder.artifacts.tables import System
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.tuning import weighted_run
from gnn_encoder.retrieval.reranking import served_facts, weighed
from gnn_encoder.settings.reranking import WeighReranker
from gnn_encoder.settings.systems import FIRST_AND_RERANKED


@step(run="run")
def weigh_reranker(
    context: Context, settings: WeighReranker, dataset: Path, first_run: Path, ranking: Path, run: Draft
) -> Metrics:
    """Writes the sum of `first_run` and of its first hits' scores in `ranking`, which a re-ranker has reordered."""
    data, depth = Dataset(dataset), settings.depth
    first, other = (Run.read(path).of(evaluated_queries(data)) for path in (first_run, ranking))
    scores = scores_of(other, first.where(first.rank <= depth))
    total, weight, tuned = weighted_run(
        data, settings.reranker_weights, settings.measure, weighed, first, depth, scores, _alike
    )
    served = served_facts(System.of(ranking), weight=weight)
    total.write(run, FIRST_AND_RERANKED, reranker_weight=weight, **tuned, **served)
    return {"weight": weight, "headline": f"weight {weight:.2f} on the re-ranker's scores of {len(scores):,} hits"}


def _alike(weight: float, other: float) -> bool:
    """Whether sums have the same scale: with weight 1 `weighed` returns the re-ranker's own scores."""
    return (weight == 1) == (other == 1)


def scores_of(run: Run, hits: Run) -> np.ndarray:
    """Returns the scores float32 [r] in a run of the hits [r] of another one, all of which it has."""
    keys = pair_keys(run.query, run.passage)
    order = np.argsort(keys)
    scores: np.ndarray = run.score[order][np.searchsorted(keys[order], pair_keys(hits.query, hits.passage))]
    return scores
