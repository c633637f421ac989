"""Computes cross-encoder scores and [CLS] vectors of text pairs in one pass.

Each query and passage is tokenized once. The tokens of a pair are joined from the two flat arrays when the batch is
read, so n·k pairs never exist as text.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol, Unpack

import numpy as np
from torch import nn

from gnn_encoder.artifacts import Dataset, PassageTable
from gnn_encoder.inference.encoding import ReadOptions, read_rows
from gnn_encoder.inference.tokens import Tokens, passage_tokens, tokens_at
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.published_reranker import PublishedReranker


class Pairs(Protocol):
    """Pairs of two texts, as arrays for a model."""

    def lengths(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Tokens of each pair, int64 [r]."""

    def padded(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, ...]:
        """The model's arguments for the pairs (first[i], second[i]), int64 [b, ...]."""


class PairTokens:
    """Token pairs `[CLS] first [SEP] second [SEP]`. The first is cut to half the length, the second to what remains."""

    def __init__(self, tokenizer: Any, first: Tokens, second: Tokens, max_length: int) -> None:
        self.pad = tokenizer.pad_token_id or 0
        self.first, self.second, self.max_length = first, second, max_length
        one, two = tokenizer("a")["input_ids"], tokenizer("a", "a")["input_ids"]
        self.middle: list[int] = two[len(one) : len(two) - (len(one) - 1)]
        """Tokens between two texts, after the first text's last token: none for BERT, one for RoBERTa."""

    def lengths(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Tokens of each pair, int64 [r]."""
        head = np.minimum(self.first.lengths[first], self.max_length // 2)
        return np.asarray(np.minimum(head + len(self.middle) + self.second.lengths[second] - 1, self.max_length))

    def padded(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, ...]:
        """Ids, mask and token types (0 first, 1 second), int64 [b, l], of the pairs (first[i], second[i])."""
        head = np.minimum(self.first.lengths[first], self.max_length // 2)
        lengths = self.lengths(first, second)
        columns = np.arange(int(lengths.max(initial=0)))[None, :]
        mask = columns < lengths[:, None]
        in_head = columns < head[:, None]
        tail = head + len(self.middle)
        in_tail = mask & (columns >= tail[:, None])
        ids = np.full(mask.shape, self.pad, dtype=np.int64)
        ids[in_head] = self.first.ids[(self.first.offsets[first][:, None] + columns)[in_head]]
        for i, token in enumerate(self.middle):
            np.put_along_axis(ids, (head + i)[:, None], token, axis=1)
        # The 1 skips the [CLS] of the second text (position 0).
        position = self.second.offsets[second][:, None] + 1 + columns - tail[:, None]
        ids[in_tail] = self.second.ids[position[in_tail]]
        # A cut text ends with [SEP], too.
        rows = np.arange(len(ids))
        ids[rows, head - 1] = self.first.ids[self.first.offsets[first + 1] - 1]
        ids[rows, lengths - 1] = self.second.ids[self.second.offsets[second + 1] - 1]
        return ids, mask.astype(np.int64), in_tail.astype(np.int64)


class PublishedPairs:
    """Pairs as a published re-ranker writes them, from texts, when a batch is read. `second` counts `rows`."""

    def __init__(
        self, model: PublishedReranker, queries: Sequence[str], passages: PassageTable, rows: np.ndarray
    ) -> None:
        self._model, self._queries, self._passages, self._rows = model, queries, passages, rows
        self._first = Tokens.of(model.tokenizer, queries, model.max_length).lengths
        tokens, index = tokens_at(model.tokenizer, passages, rows, model.max_length)
        self._second = tokens.lengths[index]
        self._writing = Lock()  # a tokenizer serves one thread

    def lengths(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Tokens of each pair, int64 [r]; those of a template are about right."""
        whole = self._first[first] + self._second[second] + self._model.added_tokens
        return np.asarray(np.minimum(whole, self._model.max_length))

    def padded(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, ...]:
        """The arguments of `PublishedReranker.forward` for the pairs (first[i], second[i])."""
        different, index = np.unique(self._rows[second], return_inverse=True)
        texts = self._passages.take(different).full_texts()
        with self._writing:
            return self._model.arrays([(self._queries[i], texts[j]) for i, j in zip(first, index, strict=True)])


def pair_tokens(model: CrossEncoder, dataset: Dataset, generated: Sequence[str] = ()) -> PairTokens:
    """Tokenizes all queries and passages of a dataset for this cross-encoder; `generated` are further queries."""
    texts = [*dataset.queries.column("text").to_pylist(), *generated]
    queries = Tokens.of(model.tokenizer, texts, model.max_length)
    passages = passage_tokens(model.tokenizer, dataset.passages, model.max_length)
    return PairTokens(model.tokenizer, queries, passages, model.max_length)


def score_pairs(
    model: nn.Module,
    pairs: Pairs,
    first: np.ndarray,
    second: np.ndarray,
    scores: np.ndarray | None,
    cls: np.ndarray | None,
    **options: Unpack[ReadOptions],
) -> None:
    """Fills `scores` fp32 [r] (logits) and `cls` [r, d_e] of the pairs (first[i], second[i]); None: not needed.

    The model's results are the scores and, of a cross-encoder, the [CLS] vectors.
    """

    def store(rows: np.ndarray, *results: np.ndarray) -> None:
        for array, values in zip((scores, cls), results, strict=False):
            if array is not None:
                array[rows] = values

    lengths = pairs.lengths(first, second)
    read_rows(model, lengths, lambda rows: pairs.padded(first[rows], second[rows]), store, **options)


def logits_of(
    model: nn.Module, pairs: Pairs, first: np.ndarray, second: np.ndarray, **options: Unpack[ReadOptions]
) -> np.ndarray:
    """Scores fp32 [r] (logits) of the pairs (first[i], second[i])."""
    scores = np.empty(len(first), dtype=np.float32)
    score_pairs(model, pairs, first, second, scores, None, **options)
    return scores
