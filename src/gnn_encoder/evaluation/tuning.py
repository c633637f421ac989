"""Chooses the weight of a sum of two scores on dev queries.

A query's figure with a weight that it has helped to choose is too high. So each dev query may be ranked by the weight
that the other ones choose (`held_out_places`): by these figures a run compares its systems.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.evaluation.measures import labelled_queries, measured_by

FOLDS = 5
Summed = Callable[[Run, int, np.ndarray, float], Run]
"""Orders each query's first `depth` hits by the sum of a run's scores and others of these hits [r], with a weight."""


def folds_of(group: np.ndarray, folds: int, generator: np.random.Generator) -> np.ndarray:
    """Returns the fold int64 [n] of queries in groups [n] of twins, each of which has one fold."""
    groups, of_query = np.unique(group, return_inverse=True)
    return np.asarray((generator.permutation(len(groups)) % folds)[of_query])


def first_best(values: np.ndarray) -> int:
    """Returns the place of the row of `values` [w, n] with the highest mean, the first of equal ones."""
    return int(np.round(values.mean(axis=1), 12).argmax())


def held_out_places(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Returns for each query [n] the place of the best row of `values` [w, n] by the queries of other folds.

    Twins, those of one group [n], are in one fold. A query that has no others gets the first row.
    """
    fold = folds_of(group, FOLDS, np.random.default_rng(0))
    folds = np.zeros(len(group), np.int64)
    for number in range(FOLDS):
        if (others := fold != number).any():
            folds[~others] = first_best(values[:, others])
    return folds


def chosen_weight(
    data: Dataset, weights: Sequence[float], measure: str, summed: Summed, run: Run, depth: int, scores: np.ndarray
) -> tuple[float, dict[str, Any]]:
    """Returns the first of `weights` with the highest measure, and facts about the choice for the run.

    Without labelled dev queries, it is the middle weight, without facts. run, depth, scores: as `summed` takes them.
    """
    qrels = data.judged("dev")
    dev = labelled_queries(qrels)
    if len(weights) == 1 or not len(dev):
        return weights[len(weights) // 2], {}
    measured = measured_by(measure, data, qrels)
    of_dev = run.of(dev), depth, scores[np.isin(run.query[run.rank <= depth], dev)]
    figures = {weight: float(measured(summed(*of_dev, weight), dev).mean()) for weight in weights}
    best = max(weights, key=lambda weight: round(figures[weight], 12))
    return best, {"tuned_on": "dev", "tuned_by": measure, "figures": figures, "in_sample": best > 0}
