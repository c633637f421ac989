"""Examples for a learned fusion: candidates of queries, from parts that know nothing of these queries' labels.

Training queries are in folds, a fold for each round: the parts of a round have no label of the fold's queries, nor of
their twins. Of dev queries the parts know no label anyway. Nothing of a test query is looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, KnownPositives
from gnn_encoder.artifacts.arrays import Rows
from gnn_encoder.artifacts.labelled_queries import labelled_pairs
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.evaluation.tuning import folds_of
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.retrieval import best_vectors
from gnn_encoder.retrieval.adapter import Moments, left_out
from gnn_encoder.retrieval.best_vectors import nearest_rows
from gnn_encoder.retrieval.identical import search_without
from gnn_encoder.retrieval.parts import Parts

AT_ONCE = 1000
"""Queries whose hard negatives are in memory at a time."""
MOST_TRIED = 1000
"""Training queries that choose the adapter's strength, taken evenly from all."""
MOST_COMPARED = 2**31
"""Pairs of a labelled query and a passage that are compared to find hard negatives; 1.6 TFLOP with 384 dimensions."""
DEPTH = 10


@dataclass(frozen=True)
class Examples:
    """Candidates [r] of queries [n], grouped by query.

    features  fp32 [r, f]
    relevant  bool [r]: whether the candidate is a positive of its query or of a twin, or a copy of one
    sizes     int64 [n]: candidates of each query
    fold      int64 [n]
    warm      bool [n]: whether a positive has a label that the parts know
    """

    features: np.ndarray
    relevant: np.ndarray
    sizes: np.ndarray
    fold: np.ndarray
    warm: np.ndarray

    @classmethod
    def read(cls, folder: Path) -> "Examples":
        """Opens what `write` wrote, memory-mapped."""
        return cls(*(np.load(folder / f"{field.name}.npy", mmap_mode="r") for field in fields(cls)))

    def write(self, folder: Path) -> None:
        """Writes an array for each field into a folder, which must not exist."""
        folder.mkdir()
        for field in fields(self):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name), allow_pickle=False)

    def of(self, queries: np.ndarray) -> "Examples":
        """Returns the examples of some queries, bool [n]."""
        rows = np.repeat(queries, self.sizes)
        of_queries = (array[queries] for array in (self.sizes, self.fold, self.warm))
        return Examples(self.features[rows], self.relevant[rows], *of_queries)

    def reciprocal_ranks(self, scores: np.ndarray) -> np.ndarray:
        """Returns 1 / rank of each query's first positive among its first ten candidates by scores [r], else 0; [n]."""
        owner = np.repeat(np.arange(len(self.sizes)), self.sizes)
        order = np.lexsort((np.arange(len(scores)), -scores, owner))
        rank = 1 + np.arange(len(order)) - (np.cumsum(self.sizes) - self.sizes)[owner]
        hits = self.relevant[order] & (rank <= DEPTH)
        best = np.zeros(len(self.sizes))
        np.maximum.at(best, owner[hits], 1 / rank[hits])
        return best


@dataclass(frozen=True)
class Labelled:
    """The training queries that have a label, and their pairs.

    rows     int32 [q]: rows of the queries in the data, ascending
    query    int64 [e]: position in `rows` of each pair's query. passage int64 [e]
    weights  fp64 [e]: ω of the pairs in the adapter, 1 / n^α for a passage with n labels
    """

    rows: np.ndarray
    query: np.ndarray
    passage: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, data: Dataset, hub_exponent: float = 0.0) -> "Labelled":
        """The labelled training queries of a dataset."""
        position, passage = labelled_pairs(data)
        positions, query = np.unique(position, return_inverse=True)
        weights = cls.weight_of(passage, len(data.passages), hub_exponent)[passage]
        return cls(data.query_rows("train")[positions], query, passage, weights)

    @staticmethod
    def weight_of(passage: np.ndarray, passages: int, hub_exponent: float) -> np.ndarray:
        """The weight [m] of a label of each passage."""
        return np.asarray(np.maximum(np.bincount(passage, minlength=passages), 1.0) ** -hub_exponent)


def hard_negative_pulls(
    data: Dataset,
    labelled: Labelled,
    vectors: Rows,
    queries: Rows,
    margin: float,
    negatives: int,
    of: np.ndarray | None = None,
) -> np.ndarray | None:
    """Returns γ (p̄ − n̄) of each labelled query for the adapter, fp32 [q, d] in an unlinked file; None: too many pairs.

    Hard negatives of some queries alone would be worse than none: the others would stay where they are.

    Args:
        margin: γ. negatives: the first hits that are no positive of the query, of which n̄ is the mean; none: no pull.
        of: the passage of each vector, if some have several (`best_vectors`); the one nearest to the query counts.
    """
    count, depth = len(labelled.rows), min(4 * negatives, len(data.passages))
    if count * len(vectors) > MOST_COMPARED or not margin:
        return None
    pulls, known = scratch(count, vectors.shape[1]), KnownPositives.of(data, "train")
    for start in range(0, count, AT_ONCE):
        block = slice(start, start + AT_ONCE)
        rows = labelled.rows[block]
        search = partial(best_vectors.search, vectors, of, queries[block])
        _, hits = search_without(search, data.identical[rows], depth)
        negative = (hits >= 0) & ~known.contains(rows[:, None], hits)
        negative &= negative.cumsum(axis=1) <= negatives
        pairs = np.flatnonzero((labelled.query >= start) & (labelled.query < start + AT_ONCE))
        mean = np.zeros((2, len(rows), vectors.shape[1]), np.float32)
        positive = labelled.query[pairs] - start, labelled.passage[pairs]
        for side, (owner, passage) in enumerate((positive, (np.nonzero(negative)[0], hits[negative]))):
            nearest = nearest_rows(vectors, of, queries[block], owner, passage)
            np.add.at(mean[side], owner, np.asarray(vectors[nearest], np.float32))
            mean[side] /= np.maximum(np.bincount(owner, minlength=len(rows)), 1)[:, None]
        pulls[block] = margin * negative.any(axis=1)[:, None] * (mean[0] - mean[1])
    return pulls


def chosen_strength(
    data: Dataset,
    labelled: Labelled,
    vectors: Rows,
    queries: Rows,
    moments: Moments,
    strengths: tuple[float, ...],
    pulls: Rows | None = None,
    of: np.ndarray | None = None,
) -> tuple[float, dict[float, float]]:
    """Returns the adapter's strength with the highest MRR@10 of training queries, each left out with its twins.

    Args:
        vectors: of the passages [m, d]. queries: vectors [q, d] of `labelled.rows`. moments: of all pairs and `pulls`.
        strengths: the weakest adapter first; it wins among equal figures. of: as in `hard_negative_pulls`.
    """
    count, groups = len(labelled.rows), data.groups[labelled.rows]
    tried = np.linspace(0, count - 1, min(count, MOST_TRIED)).astype(int)
    pairs = np.flatnonzero(np.isin(groups[labelled.query], groups[tried]))
    query, passage = labelled.query[pairs], labelled.passage[pairs]
    first = np.searchsorted(query, tried, sorter=(order := np.argsort(query, kind="stable")))
    known, rows, figures = KnownPositives.of(data, "train"), labelled.rows[tried], {}
    nearest = nearest_rows(vectors, of, queries, query, passage)
    targets = np.asarray(vectors[nearest], np.float32) + (0 if pulls is None else pulls[query])
    for strength in strengths:
        every = left_out(queries[query], targets, groups[query], strength, labelled.weights[pairs], moments)
        search = partial(best_vectors.search, vectors, of, every[order[first]])
        _, hits = search_without(search, data.identical[rows], min(DEPTH, len(data.passages)))
        relevant = known.contains(rows[:, None], hits) & (hits >= 0)
        figures[strength] = float(np.where(relevant.any(axis=1), 1 / (1 + relevant.argmax(axis=1)), 0.0).mean())
    return max(figures, key=lambda strength: round(figures[strength], 12)), figures


def examples_of(
    data: Dataset,
    parts: Parts,
    labelled: Labelled,
    moments: Moments,
    strength: float,
    *,
    weight_of: np.ndarray | None = None,
    folds: int,
    most: int,
    done: Callable[[], None] = lambda: None,
) -> Examples:
    """Returns the examples of at most `most` training queries, drawn from all that have a label.

    Args:
        parts: with all labels; their queries are those of `labelled`, in order. moments: of all pairs.
        weight_of: as of `Parts.without`. done: called after each fold.
    """
    generator, count = np.random.default_rng(0), len(labelled.rows)
    drawn = np.sort(generator.permutation(count)[:most])
    group = data.groups[labelled.rows]
    fold = folds_of(group[drawn], folds, generator)
    known, of_folds = KnownPositives.of(data, "train"), []
    for number in range(folds):
        inside = drawn[fold == number]
        if not len(inside):
            continue
        of_fold = parts.without(np.isin(group, group[inside]), moments, strength, weight_of)
        rows = labelled.rows[inside]
        candidates = of_fold.candidates(parts.texts(inside), parts.labels.vectors[inside], data.identical[rows])
        relevant = known.contains(rows[candidates.query], candidates.passage)
        of_inside = np.isin(labelled.query, inside)
        is_known = of_inside & np.isin(labelled.passage, of_fold.labels.passages)
        warm = np.isin(inside, labelled.query[is_known])
        of_folds.append(
            Examples(candidates.features, relevant, np.diff(candidates.starts), np.full(len(inside), number), warm)
        )
        done()
    return Examples(*(np.concatenate([getattr(one, field.name) for one in of_folds]) for field in fields(Examples)))


def dev_examples(data: Dataset, parts: Parts, vectors: np.ndarray, folds: int) -> Examples:
    """Returns the examples of all labelled dev queries, whose `vectors` [n, d] are in the order of their rows."""
    rows = labelled_queries(data.split_qrels("dev"))
    candidates = parts.candidates(data.query_texts(rows), vectors, data.identical[rows])
    relevant = KnownPositives.of(data, "dev").contains(rows[candidates.query], candidates.passage)
    labels = data.split_qrels("dev").positive()
    warm = np.isin(rows, labels.query[np.isin(labels.passage, parts.labels.passages)])
    fold = folds_of(data.groups[rows], folds, np.random.default_rng(0))
    return Examples(candidates.features, relevant, np.diff(candidates.starts), fold, warm)
