"""Words of queries and passages, as the re-rankers on word vectors read them."""

import numpy as np

from gnn_encoder.inference.tokens import Tokens


class WordPairs:
    """Pairs whose query and passage are arrays of their own, padded with word 0.

    Args:
        queries, passages: numbers of words, without special tokens.
        sentences: number of the sentence, from 1, of each word of the passages; None: each passage is one sentence.
    """

    def __init__(self, queries: Tokens, passages: Tokens, sentences: np.ndarray | None = None) -> None:
        self.queries, self.passages = queries, passages
        self.sentences = None if sentences is None else Tokens(sentences, passages.offsets)

    def lengths(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Words of the passage and of the longest query, int64 [r]: the same for all pairs of a passage."""
        return np.asarray(self.passages.lengths[second] + self.queries.lengths.max(initial=0))

    def padded(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, ...]:
        """The arguments of `WordModel.forward` for the pairs (first[i], second[i])."""
        passage, sentence = self.passages.padded(second, 0)
        if self.sentences:
            sentence, _ = self.sentences.padded(second, 0)
        return *self.queries.padded(first, 0), passage, sentence
