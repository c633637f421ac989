"""Assigns a split to each query.

A query must be in only one split; otherwise test figures would be measured on training data. So must a query and its
twins (`twins`). A hash of the query's text chooses the queries of a missing split and the draws of training and dev
queries, so the same data give the same splits.
"""

import hashlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.data.twins import twin_groups
from gnn_encoder.data.validation import FEWEST_TRAINING

TRAIN, DEV, TEST = range(len(SPLITS))
NONE = -1


def share(text: str, salt: str = "") -> float:
    """A text's pseudorandom number in [0, 1), which is the same for all texts that are equal when `folded`.

    Numbers under different salts are independent.
    """
    digest = hashlib.blake2b((salt + folded(text)).encode(), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") / 2**64)


def highest(file_split: np.ndarray, query: np.ndarray, split: np.ndarray) -> np.ndarray:
    """Each query's split int8 [n]: of its file and its labels, test before dev before train.

    `file_split` [n] is the split of the query's file, or NONE. `query` [r] and `split` int8 [r] belong to the labels.
    """
    best = file_split.copy()
    np.maximum.at(best, query, split)
    return best


def leaked(texts: pa.ChunkedArray, split: np.ndarray) -> np.ndarray:
    """bool [n]: queries with the text (`folded`) of a query in a later split (train < dev < test)."""
    groups = twin_groups(texts.to_pylist(), 0)
    latest = np.full(len(split), NONE, dtype=split.dtype)
    np.maximum.at(latest, groups, split)
    return np.asarray((split != NONE) & (split < latest[groups]))


def complete(
    split: np.ndarray, texts: pa.ChunkedArray, answered: np.ndarray, fraction: float, similarity: float = 0.0
) -> tuple[np.ndarray, list[str]]:
    """Returns the splits with missing splits filled in, and remarks on the changes.

    Without test, dev becomes test (papers report on MS MARCO's dev). Without both, `fraction` of train becomes test.
    Without dev, `fraction` of train becomes dev. Twins, by `similarity` as in `twin_groups`, stay together.

    Of few queries, chance could set apart none with a relevant passage (`answered`, bool [n]), or nearly all. Then the
    split gets one such query with its twins, or so many fewer that `FEWEST_TRAINING` stay in train.
    """
    split, remarks = split.copy(), []
    if TEST not in split and DEV in split:
        split[split == DEV] = TEST
        remarks.append("no test split: dev is used as test")
    missing = [part for part in (TEST, DEV) if part not in split]
    rows = np.flatnonzero(split == TRAIN)
    if len(rows) and missing:
        positions = _shares_of_groups(texts.take(pa.array(rows)).to_pylist(), similarity)
        useful = np.unique(positions[answered[rows]])  # one share for each group of twins
        spare = max(0, len(useful) - FEWEST_TRAINING)
        for i, part in enumerate(missing):
            inside = (positions >= i * fraction) & (positions < (i + 1) * fraction)
            useful_here = useful[(useful >= i * fraction) & (useful < (i + 1) * fraction)]
            inside &= ~np.isin(positions, useful_here[spare:])
            if fraction and spare and not len(useful_here):
                useful_here = useful[useful >= i * fraction][:1]
                inside |= np.isin(positions, useful_here)
            spare -= min(spare, len(useful_here))
            useful = np.setdiff1d(useful, useful_here)
            chosen = rows[inside & (split[rows] == TRAIN)]
            split[chosen] = part
            remarks.append(f"no {SPLITS[part]} split: {len(chosen):,} training queries were set apart for it")
    return split, remarks


def drawn(
    split: np.ndarray, texts: pa.ChunkedArray, answered: np.ndarray, most: Mapping[int, int], seed: int
) -> np.ndarray:
    """bool [n]: the queries to keep, of each split in `most` at most that many (0: all), and all of the others.

    Queries with a relevant passage (`answered`, bool [n]) come first, because other queries are of no use. Then a hash
    of seed and text decides the order, so if the data change, the draw changes only by added and removed queries.
    """
    keep = np.ones(len(split), dtype=bool)
    for code, count in most.items():
        rows = np.flatnonzero(split == code)
        if count and len(rows) > count:
            shares = np.array([share(text, f"draw {seed}: ") for text in texts.take(pa.array(rows)).to_pylist()])
            order = np.lexsort((shares, ~answered[rows]))
            keep[rows[order[count:]]] = False
    return keep


def _shares_of_groups(texts: list[str], similarity: float) -> np.ndarray:
    """The `share` of each text's group: of the group's first text by the alphabet, so that order does not matter."""
    groups, names = twin_groups(texts, similarity), np.array([folded(text) for text in texts], dtype=object)
    order = np.argsort(names, kind="stable")
    first = np.full(len(texts), len(texts))
    np.minimum.at(first, groups[order], np.arange(len(texts)))
    return np.array([share(name) for name in names[order[first[groups]]]])
