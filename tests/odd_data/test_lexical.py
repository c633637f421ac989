"""BM25 over odd data: equal texts are treated alike, whatever their form, and a text finds itself."""

import tempfile
from pathlib import Path

import numpy as np
import regex
from hypothesis import given, settings
from odd_data.data_sets import OddData, data_sets
from odd_data.plain import form, full_text, ingested
from odd_data.stored import write_dataset

from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.settings.bm25 import IndexBm25

PLAIN = IndexBm25(stemmer="none", stopwords="none")
WORD = regex.compile(r"\p{L}{2}")
LONE_SIGNS = dict.fromkeys(map(ord, "㎏ﻻﬀ\u0345"), "x")
"""Signs that are no word alone, though their compatibility forms are words. The data are without them."""


def without_lone_signs(data: OddData) -> OddData:
    corpus = [
        row._replace(title=row.title.translate(LONE_SIGNS), text=row.text.translate(LONE_SIGNS))
        for row in data.passages
    ]
    queries = [row._replace(text=row.text.translate(LONE_SIGNS)) for row in data.queries]
    return OddData(corpus, queries, data.labels)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data_sets(most=30))
def test_bm25_finds_equal_texts_alike(rows: OddData) -> None:
    rows = without_lone_signs(rows)
    plain = ingested(rows)
    forms = [form(full_text(row.title, row.text)) for row in plain.passages]
    with tempfile.TemporaryDirectory() as root:
        data = write_dataset(Path(root) / "dataset", plain)
        try:
            index = Bm25.build(data.passages, PLAIN)
        except UserError as error:
            assert "no passage has a word" in str(error)
            assert not any(map(WORD.search, forms))
            return
        index.save(Path(root))
        queries = [*(row.text for row in rows.queries), *(full_text(row.title, row.text) for row in plain.passages)]
        scores, hits = index.search(queries, len(forms))
        for again, rows_found in zip(Bm25.load(Path(root)).search(queries, len(forms)), (scores, hits), strict=True):
            np.testing.assert_array_equal(again, rows_found)
        of_form: dict[str, tuple[list[int], list[float]]] = {}
        for text, score, hit in zip(queries, scores, hits, strict=True):
            count = int((hit >= 0).sum())
            score, rows_found = score[:count].tolist(), hit[:count].tolist()
            assert rows_found == sorted(rows_found, key=lambda row: (-score[rows_found.index(row)], row))
            assert len(set(rows_found)) == count and all(value > 0 for value in score)
            assert of_form.setdefault(form(text), (rows_found, score)) == (rows_found, score)
            by_passage: dict[str, float] = {}
            for row in range(len(forms)):
                value = score[rows_found.index(row)] if row in rows_found else 0.0
                assert by_passage.setdefault(forms[row], value) == value
            if WORD.search(form(text)):
                assert by_passage.get(form(text), 1.0) > 0
