"""Adds to a re-ranker's scores how likely the query generator writes the query of a passage (SS-BERT 3.4)."""

from operator import eq
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, Run
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.evaluation.tuning import weighted_run
from gnn_encoder.inference.generation import log_likelihoods, query_ids
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.settings.reranking import EvaluatePassages


@step(run="run")
def evaluate_passages(
    context: Context, settings: EvaluatePassages, dataset: Path, ranking: Path, query_generator: Path, run: Draft
) -> Metrics:
    """Orders each query's first hits by s_passage + k_s · s_query, with k_s chosen on labelled dev queries."""
    data, generator = Dataset(dataset), QueryGenerator.load(query_generator)
    before, depth = Run.read(ranking).of(evaluated_queries(data)), settings.evaluation_depth
    first = before.rank <= depth
    query = before.query[first]
    progress = context.progress("evaluating", len(query), "pairs")
    likelihood = log_likelihoods(generator, data, query, before.passage[first], progress=progress, **settings.speed)
    if settings.length_normalised:
        queries, inverse = np.unique(query, return_inverse=True)
        likelihood = likelihood / query_ids(generator, data.query_texts(queries)).lengths[inverse]
    total, weight, tuned = weighted_run(
        data, settings.generator_weights, settings.measure, evaluated, before, depth, likelihood, eq
    )
    total.write(run, settings.system, generator_weight=weight, **tuned)
    return {
        "queries": len(np.unique(query)),
        "pairs": len(query),
        "pairs_per_second": progress.rate,
        "generator_weight": weight,
        "mean_log_likelihood": float(likelihood.mean()) if len(query) else 0.0,
        "headline": f"weight {weight:g}, {len(query):,} pairs, {progress.rate:,.0f} pairs/s",
    }


def evaluated(run: Run, depth: int, likelihood: np.ndarray, weight: float) -> Run:
    """Returns the run with each query's first `depth` hits ordered by the sum; `likelihood` [r] has a value per hit."""
    return run.reordered(depth, run.score[run.rank <= depth] + weight * likelihood)
