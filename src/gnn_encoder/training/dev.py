"""How a model does on some dev queries after each epoch: a curve, not the final figure.

The queries are ranked against a pool, their positives and a seeded draw of other passages, so that an
epoch's look costs seconds whatever the corpus size. The figures lie above those over the whole corpus.
"""

import numpy as np

from gnn_encoder.artifacts import Dataset, KnownPositives
from gnn_encoder.settings.shared import WatchedTraining


class DevPool:
    """`queries` int32 [u] dataset rows, `passages` int32 [c] dataset rows, ascending. Empty without dev labels."""

    def __init__(self, dataset: Dataset, settings: WatchedTraining) -> None:
        generator = np.random.default_rng(settings.seed)
        labels = dataset.split_qrels("dev").positive()
        queries = np.unique(labels.query)
        self.queries = np.sort(generator.permutation(queries)[: settings.dev_queries]).astype(np.int32)
        positives = np.unique(labels.passage[np.isin(labels.query, self.queries)])
        others = generator.permutation(len(dataset.passages))[: settings.dev_pool]
        self.passages = np.union1d(positives, others).astype(np.int32)
        known = KnownPositives(labels.query, labels.passage)
        self.relevant = known.contains(self.queries[:, None], self.passages[None, :])

    def __bool__(self) -> bool:
        return len(self.queries) > 0

    def measure(self, queries: np.ndarray, passages: np.ndarray) -> dict[str, float]:
        """Mean reciprocal rank at 10 and recall at 20 in the pool.

        Args:
            queries: vectors [u, d] of `self.queries`.
            passages: vectors [c, d] of `self.passages`.
        """
        scores = queries @ passages.T
        hits = np.take_along_axis(self.relevant, np.argsort(-scores, axis=1, kind="stable"), axis=1)
        recall = hits[:, :20].sum(1) / hits.sum(1)
        return {"dev_pool/RR_at_10": reciprocal_rank(hits), "dev_pool/R_at_20": float(recall.mean())}


def reciprocal_rank(hits: np.ndarray, cutoff: int = 10) -> float:
    """Mean reciprocal rank of the first hit in bool [n, k], 0 where it lies beyond the cut-off."""
    first = np.argmax(hits, axis=1)
    return float(np.where(hits.any(axis=1) & (first < cutoff), 1.0 / (first + 1), 0.0).mean())
