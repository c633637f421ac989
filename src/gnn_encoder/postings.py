"""BM25's index, built as a stream: the same arrays that bm25s builds from all texts' tokens in memory.

Two passes over the tokens of some texts at a time: the first counts the passages of each term, which says where its
postings begin, the second puts each passage's scores there. Tokens and postings lie in unlinked files.
"""

import tempfile
from array import array
from collections.abc import Iterator
from typing import Any

import bm25s
import numpy as np

from gnn_encoder.scratch import scratch

TEXTS = 20_000
"""Texts whose tokens are in memory together."""


class FlatTokens:
    """Token ids of n texts: `ids` int32 [total], memory-mapped, and `offsets` int64 [n + 1]."""

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets

    @classmethod
    def gather(cls, texts: Iterator[list[int]]) -> "FlatTokens":
        """From a stream of lists, of which some are held at a time."""
        ids, lengths = array("i"), array("q", [0])
        with tempfile.TemporaryFile() as file:
            for text in texts:
                lengths.append(len(text))
                ids.extend(text)
                if len(lengths) % TEXTS == 0:
                    ids.tofile(file)
                    del ids[:]
            ids.tofile(file)
            offsets = np.cumsum(np.frombuffer(lengths, dtype=np.int64))
            file.flush()
            mapped = np.memmap(file, np.int32, mode="r") if offsets[-1] else np.empty(0, np.int32)
        return cls(mapped, offsets)

    def counts(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Text, term and how often it stands there, int64 [e] each, sorted by the two: `TEXTS` texts at a time."""
        for start in range(0, len(self.offsets) - 1, TEXTS):
            bounds = self.offsets[start : start + TEXTS + 1]
            ids = self.ids[bounds[0] : bounds[-1]].astype(np.int64)
            text = np.repeat(np.arange(start, start + len(bounds) - 1), np.diff(bounds))
            keys, often = np.unique(text << 32 | ids, return_counts=True)
            yield keys >> 32, keys & 0xFFFFFFFF, often


def bm25_index(tokens: FlatTokens, vocabulary: int, *, k1: float, b: float) -> bm25s.BM25:
    """bm25s's index over n texts, in Lucene's variant; `vocabulary`: number of terms."""
    lengths = np.diff(tokens.offsets)
    n, mean = len(lengths), lengths.mean()
    passages = np.zeros(vocabulary, np.int64)
    for _, term, _ in tokens.counts():
        passages += np.bincount(term, minlength=vocabulary)
    idf = np.log(1 + (n - passages + 0.5) / (passages + 0.5)).astype(np.float32)
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(passages)])
    scores, texts = scratch(int(begins[-1])), scratch(int(begins[-1]), dtype=np.int32)
    free = begins[:-1].copy()
    for text, term, often in tokens.counts():
        frequency = often / (k1 * (1 - b + b * lengths[text] / mean) + often)
        order = np.argsort(term, kind="stable")
        term, text = term[order], text[order]
        place = free[term] + np.arange(len(term)) - np.searchsorted(term, term)
        scores[place], texts[place] = idf[term] * frequency[order], text
        free += np.bincount(term, minlength=vocabulary)
    index: Any = bm25s.BM25(method="lucene", k1=k1, b=b)
    index.scores = {"data": scores, "indices": texts, "indptr": begins, "num_docs": n}
    index.nonoccurrence_array = None  # only the variants need it that score what does not occur
    return index
