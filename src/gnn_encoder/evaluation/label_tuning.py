"""Chooses how labelled queries are used: on dev queries, or by cross-validation over training queries.

A trial ranks its queries with every use in question. Passages without a label are searched once for all uses, because a
use changes only the vectors of labelled passages. Warm queries must not gain at the cost of cold
ones: a use by which either lose (`recommendation.falls`) is not chosen. Nor is a use that may gain over the dual
encoder by chance alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np

from gnn_encoder.artifacts import Dataset, Qrels, Run
from gnn_encoder.artifacts.arrays import rows_of
from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse, labelled_pairs
from gnn_encoder.evaluation.measures import labelled_queries, measured_by
from gnn_encoder.evaluation.recommendation import Rule, falls
from gnn_encoder.evaluation.significance import paired
from gnn_encoder.evaluation.tuning import folds_of
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.retrieval.best_vectors import best_of_blocks
from gnn_encoder.retrieval.hits import Hits, merge
from gnn_encoder.retrieval.identical import run_by
from gnn_encoder.retrieval.labelled_vectors import in_blocks, label_blocks
from gnn_encoder.retrieval.memory import Labelled, Memory, find_labelled
from gnn_encoder.retrieval.query_index import nearest_queries
from gnn_encoder.settings.labels import EncodeWithLabels
from gnn_encoder.settings.measures import COLD, WARM, depth_of
from gnn_encoder.settings.systems import DUAL_ENCODER

QUERIES = 1000
"""Most queries that decide, taken evenly from all."""
P_VALUE = partial(paired, test="randomization", permutations=10_000, seed=0)
"""Of gains [n] in the paired test."""
COPIED = 65_536
"""Vectors in memory at a time while they are copied."""


def candidate_uses(settings: EncodeWithLabels) -> list[LabelUse]:
    """Returns the uses that the settings name for their kind, those of the smallest weight first."""
    uses = []
    if settings.kind == "sum":
        uses = [LabelUse("sum", weight) for weight in settings.sum_weights]
    elif settings.kind == "clusters":
        uses = [LabelUse("clusters", w, clusters=c) for w in settings.cluster_weights for c in settings.clusters]
    elif settings.kind == "memory":
        for weight in settings.memory_weights:
            if "max" in settings.memory_forms:
                uses.append(LabelUse("max", weight))
            if "softmax" in settings.memory_forms:
                uses += [
                    LabelUse("softmax", weight, neighbours=neighbours, temperature=temperature, threshold=threshold)
                    for neighbours in settings.memory_neighbours
                    for temperature in settings.memory_temperatures
                    for threshold in settings.memory_thresholds
                ]
    off = [use for use in uses if not use.weight][:1]  # without a weight all are one
    return off + sorted((use for use in uses if use.weight), key=lambda use: use.weight)


@dataclass(frozen=True)
class Trial:
    """Queries [n] with their vectors [n, d], and the labels that they may use; `depth`: hits that are measured.

    `vectors`: of all passages [m, d], possibly memory-mapped. `left_out`: passage row [n] that is no hit of each query,
    such as `Dataset.identical`; -1: none. `of`: the passage of each vector, if some have several (`best_vectors`).
    """

    queries: np.ndarray
    query_vectors: np.ndarray
    labels: LabelledQueries
    vectors: np.ndarray
    depth: int
    left_out: np.ndarray | None = None
    of: np.ndarray | None = None
    _plain_hits: dict[bool, Hits] = field(default_factory=dict)
    _labelled: dict[int, list[Labelled]] = field(default_factory=dict)

    def ranked(self, use: LabelUse) -> Run:
        """Returns the ranking of the queries with a use of the labels."""
        return run_by(partial(self._searched, use), self.queries, self.left_out, self.depth)

    def _searched(self, use: LabelUse, k: int) -> Hits:
        """Returns the `k` best passages; `k` is the same in all calls."""
        if not use.weight or not len(self.labels):
            return self._plain(k, labelled=True)
        if use.method == "softmax":
            if use.neighbours not in self._labelled:
                near = nearest_queries(self.labels, None, self.query_vectors, use.neighbours)
                plain = self._plain(k, labelled=True)
                self._labelled[use.neighbours] = find_labelled(
                    self.labels, self.vectors, self.query_vectors, plain, near, self.of
                )
            return Memory(self.labels, use).lift(self._labelled[use.neighbours])
        blocks = label_blocks(use, self.vectors, self.labels, self.labels.passages, self.of)
        lifted = best_of_blocks(blocks, self.query_vectors, k)
        return merge(*self._plain(k, labelled=False), *lifted)

    def warm(self, qrels: Qrels) -> np.ndarray:
        """Returns whether a relevant passage of each query has a label of this trial, bool [n]."""
        known = qrels.where((qrels.relevance >= 1) & np.isin(qrels.passage, self.labels.passages))
        return np.isin(self.queries, known.query)

    def _plain(self, k: int, labelled: bool) -> Hits:
        """Returns the best passages as they are, of all or of those without a label."""
        if labelled not in self._plain_hits:
            every = np.arange(len(self.labels.by_passage.indptr) - 1)
            rows = every if labelled else np.setdiff1d(every, self.labels.passages)
            self._plain_hits[labelled] = best_of_blocks(map(self._block, in_blocks(rows)), self.query_vectors, k)
        return self._plain_hits[labelled]

    def _block(self, passages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the vectors [r, d] of `passages` [b], and the passage [r] of each."""
        owner, rows = rows_of(self.of, passages)
        return np.asarray(self.vectors[rows]), passages[owner]


def chosen_use(
    data: Dataset,
    settings: EncodeWithLabels,
    vectors: np.ndarray,
    of_train: np.ndarray,
    encoded: Callable[[np.ndarray], np.ndarray],
    tried: Callable[[], None] = lambda: None,
    of: np.ndarray | None = None,
) -> tuple[LabelUse, dict[str, Any]]:
    """Returns the first of the settings' uses with the highest measure, and facts about the choice.

    Uses by which warm or cold queries lose are left out. If all are, it is the first use, and so it is if the first use
    has no weight and the best one's gain is not significant. Without a choice, or without labelled training queries, it
    is the first use, too, without facts.

    Args:
        vectors: M_de's vectors of all passages [m, d]. of_train: of the training queries [t, d], in their order.
        encoded: returns M_de's vectors of the queries at some rows.
        tried: called after each use. of: as in `Trial`.
    """
    uses, pairs = candidate_uses(settings), labelled_pairs(data)
    if len(uses) == 1 or not len(pairs[0]):
        return uses[0], {}
    depth = min(depth_of(settings.measure), len(data.passages))
    dev = labelled_queries(data.judged("dev"))
    if len(dev) >= max(settings.smallest_dev, 1):
        queries = _evenly(dev)
        labels = LabelledQueries.of(*pairs, len(data.passages), of_train)
        left_out = data.identical[queries]
        trials, qrels = [Trial(queries, encoded(queries), labels, vectors, depth, left_out, of)], data.judged("dev")
        tuned_on = "dev"
    else:
        trials = fold_trials(data, settings.folds, pairs, vectors, of_train, depth, of)
        qrels, tuned_on = data.split_qrels("train"), f"training queries in {len(trials)} folds"
    measured = measured_by(settings.measure, data, qrels)

    def values_of(use: LabelUse) -> np.ndarray:
        return np.concatenate([measured(trial.ranked(use), trial.queries) for trial in trials])

    values = []
    for use in uses:
        values.append(values_of(use))
        tried()
    figures = [float(of_use.mean()) for of_use in values]
    gains = np.stack(values) - values_of(LabelUse("sum", 0.0))
    warm = np.concatenate([trial.warm(qrels) for trial in trials])
    order = np.argsort(-np.round(figures, 12), kind="stable").tolist()
    losing = list(takewhile(lambda index: _loses(gains[index], warm, settings), order))
    best = order[len(losing)] if len(losing) < len(order) else 0
    gained = P_VALUE(gains[best])
    by_chance = uses[best].weight > 0 and not uses[0].weight and gained > settings.significance
    facts = {
        "tuned_on": tuned_on,
        "tuned_by": settings.measure,
        "tuned_queries": sum(len(trial.queries) for trial in trials),
        "figures": {str(use): figure for use, figure in zip(uses, figures, strict=True)},
        "figure": figures[0 if by_chance else best],
        "left_out": [str(uses[index]) for index in losing],
        "by_chance": f"{uses[best]}: {figures[best]:.3f}, p {gained:.2f}" if by_chance else "",
    }
    return uses[0 if by_chance else best], facts


def fold_trials(
    data: Dataset,
    folds: int,
    pairs: tuple[np.ndarray, np.ndarray],
    vectors: np.ndarray,
    of_train: np.ndarray,
    depth: int,
    of: np.ndarray | None = None,
) -> list[Trial]:
    """Returns a trial per fold of labelled training queries: its queries, and the labels of all queries of other folds.

    Twins (`Dataset.groups`) are in one fold, because the label of a twin would be the answer.

    Args:
        pairs: places [e] of training queries, and passages [e]; the rest as in `chosen_use` and `Trial`.
    """
    query, passage = pairs
    labelled, train = np.unique(query), data.query_rows("train")
    fold = folds_of(data.groups[train[labelled]], folds, np.random.default_rng(0))
    tried, fold_of_pair, trials = _evenly(np.arange(len(labelled))), fold[np.searchsorted(labelled, query)], []
    for number in range(folds):
        inside = tried[fold[tried] == number]
        others = fold_of_pair != number
        if len(inside):
            rows, position = np.unique(query[others], return_inverse=True)
            kept = _on_disk(of_train, rows)
            labels = LabelledQueries.grouped(position, passage[others], len(data.passages), kept)
            queries, query_vectors = train[labelled[inside]], of_train[labelled[inside]]
            trials.append(Trial(queries, query_vectors, labels, vectors, depth, data.identical[queries], of))
    return trials


def _on_disk(vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the vectors [t, d] at some rows in an unlinked file: all folds together have many times as many."""
    kept = scratch(len(rows), vectors.shape[1])
    for start in range(0, len(rows), COPIED):
        block = slice(start, start + COPIED)
        kept[block] = vectors[rows[block]]
    return kept


def _evenly(rows: np.ndarray) -> np.ndarray:
    """Returns at most `QUERIES` of the rows, spread over all of them."""
    return np.asarray(rows[np.linspace(0, len(rows) - 1, min(len(rows), QUERIES)).astype(int)])


def _loses(gains: np.ndarray, warm: np.ndarray, settings: EncodeWithLabels) -> bool:
    """Returns whether warm or cold queries lose by a use; `gains` [n] over the dual encoder, `warm` bool [n]."""
    rule = Rule(settings.margin, floor_significance=settings.floor_significance)
    return any(falls(gains, DUAL_ENCODER, {WARM: warm, COLD: ~warm}, P_VALUE, rule))
