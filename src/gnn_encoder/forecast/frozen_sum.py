"""Ranks queries by the frozen sum: without any training, the labelled queries' vectors are added to a passage's vector.

The vector of a passage is v + w · s at unit length: v is the vector of the text by an untrained encoder, s the sum of
the vectors of the training queries that are labelled with the passage, w a weight. The graph neural network learns a
better mix of the same vectors, so the sum shows whether there is anything to gain from them.

A training query is ranked without its own labels and those of its twins, as in masked training: each sum leaves out
what the query itself added. That is cross-validation with one group of twins left out at a time, and costs no more
than ranking a dev query, because only the query's own positives change.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from gnn_encoder.artifacts import Dataset, pair_keys
from gnn_encoder.artifacts.arrays import at_unit_length
from gnn_encoder.artifacts.tables import find_pairs
from gnn_encoder.forecast.sample import Sample

WEIGHTS = (0.1, 0.3, 1.0)
"""w. With 1 a passage's own text counts as much as one query."""
CUTOFF = 10
CHUNK = 256
"""Queries whose scores of all passages are in memory at a time."""
TIE = 1e-6
"""A passage is above a relevant one if its score is higher by more than this; other differences are of rounding."""


@dataclass(frozen=True)
class Labels:
    """What training queries add to the passages of a sample.

    sums       fp32 [c, d], s of each passage
    own_sums   fp32 [r, d], the part of s of each relevant pair that the pair's query and its twins added
    warm       bool [a], whether another training query is labelled with a relevant passage of each query
    """

    sums: np.ndarray
    own_sums: np.ndarray
    warm: np.ndarray


def training_pairs(dataset: Dataset, sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs [l] of train that have a relevant label: dataset row of the query, index in the sample."""
    labels = dataset.split_qrels("train").positive()
    inside = np.isin(labels.passage, sample.passages)
    return labels.query[inside], np.searchsorted(sample.passages, labels.passage[inside])


def labels_of(dataset: Dataset, sample: Sample, queries: np.ndarray, vectors: np.ndarray) -> Labels:
    """Returns the sums, given the `vectors` [n, d] of the training queries at the dataset rows `queries` [n]."""
    query, passage = training_pairs(dataset, sample)
    column, groups = np.searchsorted(queries, query), dataset.groups
    ones = np.ones(len(query), np.float32)
    sums = csr_array((ones, (passage, column)), shape=(len(sample.passages), len(queries))) @ vectors
    keys, key = np.unique(pair_keys(groups[query], passage), return_inverse=True)
    by_group = csr_array((ones, (key, column)), shape=(len(keys), len(queries))) @ vectors
    key_row = find_pairs(keys, groups[sample.queries][sample.row], sample.relevant)
    own_sums = np.zeros((len(key_row), vectors.shape[1]), np.float32)
    own_sums[key_row >= 0] = by_group[key_row[key_row >= 0]]
    asking = np.bincount(keys & 0xFFFFFFFF, minlength=len(sample.passages))  # groups with a label on each passage
    warm = np.zeros(len(sample.queries), bool)
    np.logical_or.at(warm, sample.row, asking[sample.relevant] > (key_row >= 0))
    return Labels(sums, own_sums, warm)


def reciprocal_ranks(sample: Sample, passages: np.ndarray, queries: np.ndarray, labels: Labels) -> np.ndarray:
    """Returns RR@10 float64 [a, 1 + weights] of each query, first without the sums, then with each of `WEIGHTS`.

    The rank of a query's best relevant passage is 1 + the weights of the other passages above it. So for a sample of
    the corpus the rank is an estimate, and it is exact for the whole corpus. Ties are counted in favour.

    Args:
        passages: fp32 [c, d], v. queries: fp32 [a, d], the queries' vectors.
    """
    values = np.empty((len(queries), 1 + len(WEIGHTS)))
    for column, weight in enumerate((0.0, *WEIGHTS)):
        mixed = at_unit_length(passages + weight * labels.sums)
        others = labels.sums[sample.relevant] - labels.own_sums
        relevant_vectors = at_unit_length(passages[sample.relevant] + weight * others)
        best = np.full(len(queries), -np.inf)
        np.maximum.at(best, sample.row, np.einsum("rd,rd->r", queries[sample.row], relevant_vectors).astype(np.float64))
        for start in range(0, len(queries), CHUNK):
            stop = min(start + CHUNK, len(queries))
            above = queries[start:stop] @ mixed.T > best[start:stop, None] + TIE
            pairs = slice(*np.searchsorted(sample.row, [start, stop]))
            above[sample.row[pairs] - start, sample.relevant[pairs]] = False
            if sample.same is not None:
                alike = np.flatnonzero(sample.same[start:stop] >= 0)
                above[alike, sample.same[start:stop][alike]] = False
            rank = 1 + above @ sample.weight
            values[start:stop, column] = np.where(rank <= CUTOFF, 1 / rank, 0.0)
    return values
