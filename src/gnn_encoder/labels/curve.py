"""Measures what training labels gain: dev figures with growing shares of the labelled training queries in the graph.

The stored models stay as they are, and only the propagation is repeated, so a point takes seconds. That is the limit,
too: the models were trained with all labels. With fewer labels a training would give other models, so the curve shows
the value of labels to a trained model, and not the figures of a training with fewer labels.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnn_encoder.artifacts import Qrels, Run
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.evaluation.significance import bootstrap_intervals
from gnn_encoder.labels.nodes import FinishedRun, encoded
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.query_graph.propagation import Propagation
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.identical import search_without

MEASURE, DEPTH = "RR@10", 10
SHARES = (0.0, 0.125, 0.25, 0.5, 1.0)
RESAMPLES = 2000


@dataclass(frozen=True)
class DevQueries:
    """The labelled dev queries of a run: rows [a], vectors E_Q(q) fp32 [a, d], and labels of passages in the corpus.

    A query may have none, because its relevant passages are missing (`Dataset.judged`): its figure is 0.
    """

    rows: np.ndarray
    vectors: np.ndarray
    qrels: Qrels

    @classmethod
    def of(cls, run: FinishedRun) -> "DevQueries":
        """Encodes the queries; raises UserError if there are none."""
        data = run.sources.dataset
        qrels, rows = data.split_qrels("dev"), labelled_queries(data.judged("dev"))
        if not len(labelled_queries(qrels)):
            raise UserError(f"{data.path} has no labelled dev query, so the value of labels cannot be measured")
        return cls(rows, encoded(run.bundle, data.query_texts(rows)), qrels)

    def figures(self, run: FinishedRun, vectors: np.ndarray, part: slice | np.ndarray = slice(None)) -> np.ndarray:
        """The measure of each query with passage vectors [m, d], float64 [a], or of some queries."""
        rows = self.rows[part]
        left_out, depth = run.sources.dataset.identical[rows], min(DEPTH, len(vectors))
        scores, hits = search_without(partial(exact.search, vectors, self.vectors[part]), left_out, depth)
        ranking = Run.from_hits(rows, hits, scores)
        return per_query(ranking, self.qrels, rows, run.known.passage_ids, [MEASURE])[:, 0]

    def warm(self, passages: np.ndarray) -> np.ndarray:
        """Whether one of `passages` is relevant to each query, bool [a]."""
        labels = self.qrels.positive()
        return np.isin(self.rows, labels.query[np.isin(labels.passage, passages)])


@dataclass(frozen=True)
class Point:
    """Dev figures with a share of the training queries in the graph, means over the draws of these queries.

    `queries`, `labels`: in the graph. `warm`: share of the dev queries with a relevant passage that one of these
    queries is labelled with. `gain`: of the mean over no query in the graph, with its 95 % interval `low` to `high`
    over dev queries. `warm_gain`, `cold_gain`: of warm and cold queries alone; NaN without such queries.
    """

    share: float
    queries: int
    labels: float
    warm: float
    mean: float
    gain: float
    low: float
    high: float
    warm_gain: float
    cold_gain: float
    seconds: float


def label_curve(run: FinishedRun, dev: DevQueries, draws: int) -> list[Point]:
    """Returns a point for each of `SHARES` of the training queries; the queries of a draw are nested.

    Labels that were added after the run are left out.

    Raises:
        UserError: the model has no layer, so no query changes a vector.
    """
    sources = run.sources
    gnn, graph, encoding = sources.gnn.to(device()), sources.graph, sources.encoding
    if not gnn.config.layers:
        raise UserError(f"{run.bundle.path}: its model has no layer (train_gnn.layers: 0), so labels change no vector")
    n, m = len(graph.queries), len(encoding.passages)
    train = sources.dataset.split_qrels("train").positive()
    every = Propagation(gnn, graph, encoding.queries, sources.cached_passages)
    shape, dtype = encoding.passages.shape, encoding.passages.dtype  # as the bundle's vectors
    plain, vectors = scratch(*shape, dtype=dtype), scratch(*shape, dtype=dtype)
    every.only(np.zeros(n, bool)).write(plain, np.arange(m), encoding.passages)
    before = dev.figures(run, plain)
    generator = np.random.default_rng(0)
    orders = [generator.permutation(n) for _ in range(draws)]
    points = []
    for share in SHARES:
        began, count = time.perf_counter(), round(share * n)
        values, warm, labels = [], [], []
        for order in orders if 0 < count < n else orders[:1]:
            kept = np.zeros(n, bool)
            kept[order[:count]] = True
            vectors[:] = plain
            reached = np.unique(graph.edges[kept])
            every.only(kept).write(vectors, reached[reached >= 0].astype(np.int64), encoding.passages)
            kept_labels = train.where(np.isin(train.query, graph.queries[kept]))
            values.append(dev.figures(run, vectors) - before)
            warm.append(dev.warm(kept_labels.passage))
            labels.append(len(kept_labels.query))
        gains, is_warm = np.stack(values), np.stack(warm)
        (low,), (high,) = bootstrap_intervals(gains.mean(axis=0)[:, None], RESAMPLES, 0)
        points.append(
            Point(
                share, count, float(np.mean(labels)), float(is_warm.mean()), float(before.mean() + gains.mean()),
                float(gains.mean()), float(low), float(high), _mean(gains[is_warm]), _mean(gains[~is_warm]),
                time.perf_counter() - began,
            )
        )  # fmt: skip
    return points


def extrapolated(points: Sequence[Point]) -> tuple[int, float, float]:
    """Returns the number of queries, the gain and the warm share if the number of queries doubled.

    It continues the curve as between half of the queries and all. That is an assumption and no measurement.
    """
    half, whole = points[-2:]
    return 2 * whole.queries, 2 * whole.gain - half.gain, min(1.0, 2 * whole.warm - half.warm)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
