"""Which split each query belongs to.

A query must stand in one split only, or its test figure is a figure on training data. Where a split
is missing it is set apart by a hash of the query's text, so that the same data gives the same splits.
"""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts.dataset import SPLITS

TRAIN, DEV, TEST = range(len(SPLITS))
NONE = -1


def share(text: str) -> float:
    """A text's fixed place in [0, 1), as good as random; letter case and outer blanks do not count."""
    digest = hashlib.blake2b(text.strip().casefold().encode(), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") / 2**64)


def highest(own: np.ndarray, query: np.ndarray, split: np.ndarray) -> np.ndarray:
    """Each query's split: its own or those of its labels; of several, test before dev before train.

    Args:
        own: int8 [n], a split that the query's file gave it, or NONE.
        query: int64 [r], the query of each label.
        split: int8 [r], the split of each label.
    """
    best = own.copy()
    np.maximum.at(best, query, split)
    return best


def leaked(texts: pa.ChunkedArray, split: np.ndarray) -> np.ndarray:
    """bool [n]: queries whose words are also those of a query in a later split (train < dev < test)."""
    if not len(split):
        return np.zeros(0, dtype=bool)
    words = pc.utf8_lower(pc.utf8_trim_whitespace(texts.combine_chunks()))
    groups = words.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    latest = np.full(groups.max() + 1, NONE, dtype=split.dtype)
    np.maximum.at(latest, groups, split)
    found: np.ndarray = (split != NONE) & (split < latest[groups])
    return found


def complete(split: np.ndarray, texts: pa.ChunkedArray, fraction: float) -> tuple[np.ndarray, list[str]]:
    """Splits with those that were missing, and what was done, in words.

    No test but dev: dev becomes test (MS MARCO's dev is what papers report on). No test at all: as
    much as dev is set apart from train. No dev: `fraction` of train is.
    """
    split, remarks = split.copy(), []
    there = set(np.unique(split).tolist())
    if TEST not in there and DEV in there:
        split[split == DEV] = TEST
        there = there - {DEV} | {TEST}
        remarks.append("no test split: dev is used as test")
    missing = [part for part in (TEST, DEV) if part not in there]
    if TRAIN in there and missing:
        rows = np.flatnonzero(split == TRAIN)
        places = np.array([share(text.as_py()) for text in texts.take(pa.array(rows))])
        for i, part in enumerate(missing):
            chosen = rows[(places >= i * fraction) & (places < (i + 1) * fraction)]
            split[chosen] = part
            remarks.append(f"no {SPLITS[part]} split: {len(chosen):,} training queries were set apart for it")
    return split, remarks
