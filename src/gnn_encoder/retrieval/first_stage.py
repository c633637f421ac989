"""What the first-stage retrievers share: every split searched to its depth, and how well on dev."""

from collections.abc import Callable

import numpy as np

from gnn_encoder.artifacts import Dataset, Run, pair_keys

Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""(query rows [n], k) → scores [n, k], passage rows [n, k] with -1 pads."""


def search_splits(dataset: Dataset, search: Search, *, train_depth: int, eval_depth: int) -> Run:
    """One run over all queries: train to `train_depth`, dev and test to `eval_depth`."""
    runs = []
    evaluated = np.concatenate([dataset.query_rows("dev"), dataset.query_rows("test")])
    for queries, depth in ((dataset.query_rows("train"), train_depth), (evaluated, eval_depth)):
        scores, passages = search(queries, min(depth, len(dataset.passages)))
        runs.append(Run.from_hits(queries, passages, scores))
    return Run.concatenate(runs)


def dev_figures(dataset: Dataset, run: Run) -> dict[str, float]:
    """R@100 and MRR@10 of a run, averaged over the dev queries that have a positive; none without any."""
    labels = dataset.split_qrels("dev").positive()
    queries, positives = np.unique(labels.query, return_counts=True)
    if len(queries) == 0:
        return {}
    hits = run.hits(queries, 100)
    relevant = np.isin(pair_keys(queries[:, None], hits), pair_keys(labels.query, labels.passage))
    first = np.argmax(relevant, axis=1)
    found = relevant[:, :10].any(axis=1)
    return {
        "dev/R_at_100": float((relevant.sum(axis=1) / positives).mean()),
        "dev/RR_at_10": float(np.where(found, 1.0 / (first + 1), 0.0).mean()),
    }
