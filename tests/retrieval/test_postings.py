"""The streamed index is the one that bm25s builds in memory."""

import bm25s
import numpy as np
import pytest
from bm25s.tokenization import Tokenized
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.inference import tokens as module
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.retrieval import bm25
from gnn_encoder.retrieval.bm25 import bm25_index

VOCABULARY = 12


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=9), min_size=1, max_size=11).filter(any))
def test_equals_bm25s(texts: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bm25, "TEXTS", 3)
        patch.setattr(module, "GATHERED", 2)
        tokens = Tokens.gather(iter(texts))
        postings = bm25_index(tokens, VOCABULARY, k1=1.2, b=0.6).scores
        other = bm25_index(tokens, VOCABULARY, k1=1.2, b=0.1).scores
    assert tokens.offsets.tolist() == np.cumsum([0, *map(len, texts)]).tolist()
    assert tokens.ids.tolist() == [token for text in texts for token in text]
    peer = bm25s.BM25(method="lucene", k1=1.2, b=0.6)
    vocabulary = {str(token): token for token in range(VOCABULARY)}
    peer.index(Tokenized(ids=texts, vocab=vocabulary), create_empty_token=False, show_progress=False)
    assert np.array_equal(postings["indptr"], peer.scores["indptr"])
    assert np.array_equal(postings["indices"], peer.scores["indices"])
    np.testing.assert_allclose(postings["data"], peer.scores["data"], rtol=1e-6)
    if len({len(text) for text in texts if text}) > 1:
        assert not np.allclose(other["data"], peer.scores["data"], rtol=1e-6)
