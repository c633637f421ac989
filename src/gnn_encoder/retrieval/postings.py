"""BM25's index, built as a stream: the same arrays that bm25s builds from all texts' tokens in memory.

Two passes over the tokens of some texts at a time: the first counts the passages of each term, which says where its
postings begin, the second puts each passage's scores there. Tokens and postings lie in unlinked files.
"""

from collections.abc import Iterator
from typing import Any

import bm25s
import numpy as np

from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.machine.scratch import scratch

ARRAYS = ("data", "indices", "indptr")
"""What bm25s calls scores, texts and where each term's postings begin, in the order in which it loads them."""
TEXTS = 20_000
"""Texts whose terms are counted together."""


def _counts(tokens: Tokens) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Text, term and how often it stands there, int64 [e] each, sorted by the two: `TEXTS` texts at a time."""
    for start in range(0, len(tokens), TEXTS):
        bounds = tokens.offsets[start : start + TEXTS + 1]
        ids = tokens.ids[bounds[0] : bounds[-1]].astype(np.int64)
        text = np.repeat(np.arange(start, start + len(bounds) - 1), np.diff(bounds))
        keys, often = np.unique(text << 32 | ids, return_counts=True)
        yield keys >> 32, keys & 0xFFFFFFFF, often


def bm25_index(tokens: Tokens, vocabulary: int, *, k1: float, b: float) -> bm25s.BM25:
    """bm25s's index over n texts: of each term in each text idf · tf / (k1 · (1 − b + b · length / mean length) + tf),
    idf = ln(1 + (n − df + ½) / (df + ½)), fp32 (Lucene's variant, accurate lengths; Kamphuis et al., 2020).

    Args:
        tokens: ids below `vocabulary`, the number of terms.

    Raises:
        OSError: no room for the postings, 8 bytes for each distinct term of each text.
    """
    lengths = tokens.lengths
    n, mean = len(lengths), lengths.mean()
    passages = np.zeros(vocabulary, np.int64)
    for _, term, _ in _counts(tokens):
        passages += np.bincount(term, minlength=vocabulary)
    idf = np.log(1 + (n - passages + 0.5) / (passages + 0.5)).astype(np.float32)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(passages)])
    scores, texts = scratch(int(begins[-1])), scratch(int(begins[-1]), dtype=np.int32)
    free = begins[:-1].copy()
    for text, term, often in _counts(tokens):
        frequency = often / (k1 * (1 - b + b * lengths[text] / mean) + often)
        order = np.argsort(term, kind="stable")
        term, text = term[order], text[order]
        place = free[term] + np.arange(len(term)) - np.searchsorted(term, term)
        scores[place], texts[place] = idf[term] * frequency[order], text
        free += np.bincount(term, minlength=vocabulary)
    index = empty_index(k1=k1, b=b)
    index.scores = {"data": scores, "indices": texts, "indptr": begins, "num_docs": n}
    return index


def empty_index(*, k1: float, b: float) -> bm25s.BM25:
    """bm25s's index in Lucene's variant, without its arrays: `scores` is to be set, or `load_scores` to be called."""
    index: Any = bm25s.BM25(method="lucene", k1=k1, b=b)
    index.nonoccurrence_array = None  # only the variants need it that score what does not occur
    return index
