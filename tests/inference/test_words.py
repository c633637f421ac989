import numpy as np

from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.inference.words import WordPairs

QUERIES, PASSAGES = Tokens.flatten([[1, 2], []]), Tokens.flatten([[3, 4, 5], [6]])


def test_each_text_is_padded_on_its_own() -> None:
    pairs = WordPairs(QUERIES, PASSAGES, np.array([1, 1, 2, 1], np.int32))
    first, second = np.array([0, 1]), np.array([1, 0])
    query, query_ids, passage, sentence = (array.tolist() for array in pairs.padded(first, second))
    assert (query, query_ids) == ([[1, 2], [0, 0]], [[1, 1], [0, 0]])
    assert (passage, sentence) == ([[6, 0, 0], [3, 4, 5]], [[1, 0, 0], [1, 1, 2]])
    assert pairs.lengths(first, second).tolist() == [3, 5]  # the longest query has 2 words


def test_without_sentences_every_passage_is_one() -> None:
    *_, sentence = WordPairs(QUERIES, PASSAGES).padded(np.array([0, 1]), np.array([1, 0]))
    assert sentence.tolist() == [[1, 0, 0], [1, 1, 1]]
