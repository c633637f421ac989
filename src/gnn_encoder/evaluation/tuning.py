"""Chooses the weight of a sum of two scores on dev queries."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.evaluation.documents import documents_of
from gnn_encoder.evaluation.measures import labelled_queries, per_query


def chosen_weight(
    data: Dataset, weights: Sequence[float], measure: str, ranked: Callable[[np.ndarray, float], Run]
) -> tuple[float, dict[str, Any]]:
    """Returns the first of `weights` with the highest measure, and facts about the choice for the run.

    Without labelled dev queries, it is the middle weight, without facts.

    Args:
        ranked: returns the ranking of some queries [n] with a weight.
    """
    qrels = data.judged("dev")
    dev = labelled_queries(qrels)
    if len(weights) == 1 or not len(dev):
        return weights[len(weights) // 2], {}
    ids, documents = data.judged_ids(), documents_of(data, (measure,))
    figures = {
        weight: float(per_query(ranked(dev, weight), qrels, dev, ids, (measure,), documents).mean())
        for weight in weights
    }
    best = max(weights, key=lambda weight: round(figures[weight], 12))
    return best, {"tuned_on": "dev", "tuned_by": measure, "figures": figures}
