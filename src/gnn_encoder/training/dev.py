"""Measures a model on some dev queries after each epoch: for a curve and the choice of the best epoch, not a report."""

from collections.abc import Callable

import numpy as np

from gnn_encoder.artifacts import Dataset, KnownPositives, Run
from gnn_encoder.retrieval.first_stage import merge_candidates
from gnn_encoder.settings.shared import MeasuredTraining, WatchedTraining

MRR = "dev_pool/RR_at_10"
"""Name of the curve that a retriever's kept epoch is chosen by."""
CANDIDATES = 20
"""Candidates of a dev query that are re-ranked."""


class DevPool:
    """Dev queries and a pool of passages in which a retriever has to find the positives. Empty without dev labels.

    The pool has the queries' positives and a seeded draw of other passages, so that measuring takes seconds for any
    size of the corpus. Figures in the pool are higher than figures over the whole corpus.

    Attributes:
        queries: dataset rows int32 [u]. passages: dataset rows int32 [c], ascending.
    """

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
        self._same = dataset.identical[self.queries][:, None] == self.passages  # no hit: the query itself

    def __len__(self) -> int:
        return len(self.queries)

    def measure(self, queries: np.ndarray, passages: np.ndarray) -> dict[str, float]:
        """Mean reciprocal rank at 10 and recall at 20 in the pool, for vectors of queries [u, d], passages [c, d]."""
        scores = np.where(self._same, -np.inf, queries @ passages.T)
        hits = np.take_along_axis(self.relevant, np.argsort(-scores, axis=1, kind="stable"), axis=1)
        recall = hits[:, :20].sum(1) / hits.sum(1)
        return {MRR: reciprocal_rank(hits), "dev_pool/R_at_20": float(recall.mean())}


class DevCandidates:
    """Dev queries with their first candidates, which a scorer of pairs re-ranks. Empty without dev labels.

    Args:
        runs: the sources of the candidates; re-ranking is compared with the order of the first run.
    """

    def __init__(self, dataset: Dataset, runs: list[Run], settings: MeasuredTraining) -> None:
        labels = dataset.split_qrels("dev").positive()
        generator, known = np.random.default_rng(settings.seed), KnownPositives(labels.query, labels.passage)
        self.queries = generator.permutation(np.unique(labels.query))[: settings.dev_queries]
        self.candidates = merge_candidates(runs, self.queries, CANDIDATES)
        self.relevant = known.contains(self.queries[:, None], self.candidates)
        self.retrieved = known.contains(self.queries[:, None], runs[0].hits(self.queries, CANDIDATES))
        self.positives = np.array([(labels.query == query).sum() for query in self.queries], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Dataset rows of the queries [r] and of their candidates [r]."""
        query, column = np.nonzero(self.candidates >= 0)
        return self.queries[query], self.candidates[query, column]

    def measure(self, score: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> dict[str, float]:
        """Figures of the first `CANDIDATES` candidates after re-ranking by `score` (query, passage rows [r] → [r]).

        They are the mean reciprocal rank at 10, after and before re-ranking, and the mean average precision after.
        """
        ranked = np.full(self.candidates.shape, -np.inf, dtype=np.float32)
        ranked[self.candidates >= 0] = score(*self.pairs)
        hits = np.take_along_axis(self.relevant, np.argsort(-ranked, axis=1, kind="stable"), axis=1)
        return {
            "dev/reranked_RR_at_10": reciprocal_rank(hits),
            "dev/retrieved_RR_at_10": reciprocal_rank(self.retrieved),
            "dev/reranked_AP": average_precision(hits, self.positives),
        }


def average_precision(hits: np.ndarray, positives: np.ndarray) -> float:
    """Mean average precision of the hits bool [n, k] of queries with `positives` [n] relevant passages."""
    precision = hits.cumsum(axis=1) / np.arange(1, hits.shape[1] + 1)
    return float(((precision * hits).sum(axis=1) / positives).mean())


def reciprocal_rank(hits: np.ndarray) -> float:
    """Mean reciprocal rank of the first hit in bool [n, k]; 0 for a first hit beyond rank 10."""
    first = np.argmax(hits, axis=1)
    return float(np.where(hits.any(axis=1) & (first < 10), 1.0 / (first + 1), 0.0).mean())
