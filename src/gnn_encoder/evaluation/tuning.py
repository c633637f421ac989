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


def weighted_run(
    data: Dataset,
    weights: Sequence[float],
    measure: str,
    summed: Summed,
    run: Run,
    depth: int,
    scores: np.ndarray,
    alike: Callable[[float, float], bool] = lambda one, other: True,
) -> tuple[Run, float, dict[str, Any]]:
    """Returns a run summed with the first of `weights` that has the highest measure, the weight, and facts about it.

    Dev queries are ranked by the weights that the others choose among those whose sums have the same scale: the scores
    of a run's first hits are compared with each other. If there is no other, the facts say `in_sample`. Without
    labelled dev queries, the weight is the middle one, without facts.

    Args:
        run, depth, scores: as `summed` takes them.
        alike: whether the sums with two weights have the same scale.
    """
    qrels = data.judged("dev")
    dev = labelled_queries(qrels)
    if len(weights) == 1 or not len(dev):
        weight = weights[len(weights) // 2]
        return summed(run, depth, scores, weight), weight, {}
    measured, of_score = measured_by(measure, data, qrels), run.query[run.rank <= depth]

    def of(queries: np.ndarray, weight: float) -> Run:
        return summed(run.of(queries), depth, scores[np.isin(of_score, queries)], weight)

    values = np.stack([measured(of(dev, weight), dev) for weight in weights])
    weight, figures = weights[first_best(values)], dict(zip(weights, values.mean(axis=1).tolist(), strict=True))
    same_scale = [index for index, other in enumerate(weights) if alike(weight, other)]
    chosen = np.take(same_scale, held_out_places(values[same_scale], data.groups[dev]))
    kept = summed(run, depth, scores, weight)
    parts = [kept.where(~np.isin(kept.query, dev))]
    parts += [of(dev[chosen == index], weights[index]) for index in np.unique(chosen).tolist()]
    facts = {
        "tuned_on": "dev",
        "tuned_by": measure,
        "figures": figures,
        "in_sample": weight > 0 and len(same_scale) == 1,
    }
    return Run.concatenate(parts), weight, facts
