"""The positives that training knows of: (query, passage) pairs, shared by the queries of a group."""

import numpy as np

from gnn_encoder.artifacts.dataset import Dataset
from gnn_encoder.artifacts.ragged import ranges
from gnn_encoder.artifacts.tables import find_pairs, pair_keys

NONE = np.empty(0, dtype=np.int32)


class KnownPositives:
    """Which (query, passage) pairs are positives: labelled, or denoised by the cross-encoder.

    A positive of one query is a positive of its twins too (`Dataset.groups`). Otherwise one question would learn both
    that a passage answers it and that the passage does not.

    Args:
        query: dataset rows [r] of the pairs. A pair of -1 is left out: a generated query shares nothing.
        passage: dataset rows [r].
        groups: int [n], the group of every query of the dataset. None: each query is a group of its own.
    """

    def __init__(self, query: np.ndarray, passage: np.ndarray, groups: np.ndarray | None = None) -> None:
        self._groups = groups
        asked = query >= 0
        self._keys = np.unique(pair_keys(self._shared(query[asked]), passage[asked]))

    @classmethod
    def of(cls, dataset: Dataset, split: str, query: np.ndarray = NONE, passage: np.ndarray = NONE) -> "KnownPositives":
        """The labelled positives of a split, and further pairs [r], such as those of the training examples."""
        labels = dataset.split_qrels(split).positive()
        pairs = np.concatenate([labels.query, query]), np.concatenate([labels.passage, passage])
        return cls(*pairs, dataset.groups)

    def _shared(self, query: np.ndarray) -> np.ndarray:
        return query if self._groups is None else np.where(query >= 0, self._groups[query], -1)

    def contains(self, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Bool of the broadcast shape: is (query, passage) a known positive?"""
        return find_pairs(self._keys, self._shared(query), passage) >= 0

    def excluded(self, query: np.ndarray, passages: np.ndarray, positive: np.ndarray) -> np.ndarray:
        """(query, passage) pairs [2, x] int64, places in the batch: known positives other than the one trained on.

        Args:
            query: dataset rows [b], -1 for a generated query (which has but its own positive).
            passages: distinct dataset rows [c], ascending.
            positive: [b], index into `passages`.
        """
        first = pair_keys(self._shared(query), np.zeros_like(query))
        starts, stops = np.searchsorted(self._keys, first), np.searchsorted(self._keys, first + (1 << 32))
        row, known = np.repeat(np.arange(len(query)), stops - starts), self._keys[ranges(starts, stops)] & 0xFFFFFFFF
        column = np.minimum(np.searchsorted(passages, known), len(passages) - 1)
        others = (passages[column] == known) & (column != positive[row])
        return np.stack([row[others], column[others]])
