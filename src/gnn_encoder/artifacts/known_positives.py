"""The pairs of a query and a passage that labels, or a cross-encoder, call relevant."""

import numpy as np

from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.artifacts.dataset import Dataset, Qrels
from gnn_encoder.artifacts.tables import find_pairs, pair_keys

NONE = np.empty(0, dtype=np.int32)


class KnownPositives:
    """The (query, passage) pairs that training knows as positives: labelled, or denoised by the cross-encoder.

    A positive of a query is also a positive of the query's twins (`Dataset.groups`). Otherwise a model would learn for
    queries with the same meaning both that a passage is relevant and that the passage is not relevant. For the same
    reason a copy of a positive is a positive, too (`Dataset.passage_groups`). The passage that is the query itself
    (`Dataset.identical`) is among the pairs, so that it is no negative of the query.

    `query`, `passage` are dataset rows [r]. Rows with query -1 are ignored: a generated query shares no positive.
    `groups` int [n] is the group of every query of the dataset, `passage_groups` int [m] that of every passage; None:
    each is alone in its group.
    """

    def __init__(
        self,
        query: np.ndarray,
        passage: np.ndarray,
        groups: np.ndarray | None = None,
        passage_groups: np.ndarray | None = None,
    ) -> None:
        self._groups, self._passage_groups = groups, passage_groups
        in_dataset = query >= 0
        self._keys = np.unique(pair_keys(self._group(query[in_dataset]), self._text(passage[in_dataset])))

    @classmethod
    def of(cls, dataset: Dataset, split: str, query: np.ndarray = NONE, passage: np.ndarray = NONE) -> "KnownPositives":
        """The labelled positives of a split, and further pairs [r], such as the pairs of training examples."""
        labels, same = dataset.split_qrels(split).positive(), dataset.identical
        alike = np.flatnonzero(same >= 0)
        of_queries, of_passages = (labels.query, alike, query), (labels.passage, same[alike], passage)
        pairs = np.concatenate(of_queries), np.concatenate(of_passages)
        return cls(*pairs, dataset.groups, dataset.passage_groups)

    def _group(self, query: np.ndarray) -> np.ndarray:
        return query if self._groups is None else np.where(query >= 0, self._groups[query], -1)

    def _text(self, passage: np.ndarray) -> np.ndarray:
        return passage if self._passage_groups is None else np.where(passage >= 0, self._passage_groups[passage], -1)

    def contains(self, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Whether each (query, passage) is a known positive, bool of the broadcast shape."""
        return find_pairs(self._keys, self._group(query), self._text(passage)) >= 0

    def excluded(self, query: np.ndarray, passages: np.ndarray, positive: np.ndarray) -> np.ndarray:
        """Pairs int64 [2, x] of indices (query, passage) in the batch that are no negatives: known positives and copies
        of the query's positive, but not this positive itself.

        `query` [b] are dataset rows; -1: a generated query, which has only one positive. `passages` [c] are distinct
        dataset rows, ascending. `positive` [b] are indices into `passages`.
        """
        text = self._text(passages)
        order = np.argsort(text, kind="stable")
        first = pair_keys(self._group(query), np.zeros_like(query))
        starts, stops = np.searchsorted(self._keys, first), np.searchsorted(self._keys, first + (1 << 32))
        row, known = np.repeat(np.arange(len(query)), stops - starts), self._keys[ranges(starts, stops)] & 0xFFFFFFFF
        if self._passage_groups is not None:
            generated = np.flatnonzero(query < 0)
            row, known = np.append(row, generated), np.append(known, text[positive[generated]])
        starts, stops = (np.searchsorted(text, known, side, sorter=order) for side in ("left", "right"))
        row, column = np.repeat(row, stops - starts), order[ranges(starts, stops)]
        others = column != positive[row]
        return np.stack([row[others], column[others]])


def warm_labels(dataset: Dataset, split: str) -> tuple[Qrels, np.ndarray]:
    """The positive labels of a split [r], and which of them are warm, bool [r].

    A label is warm if another query, one of train, has a positive label of its passage. A twin of the query does not
    count, because it leaves the graph together with the query. For labels of dev and test, the queries of train are
    those of `Dataset.seen_labels`, as in the strata.
    """
    labels = dataset.split_qrels(split).positive()
    train = (dataset.split_qrels("train") if split == "train" else dataset.seen_labels).positive()
    asking = np.unique(pair_keys(dataset.groups[train.query], train.passage)) & 0xFFFFFFFF
    groups = np.bincount(asking, minlength=len(dataset.passages))
    return labels, groups[labels.passage] > (split == "train")
