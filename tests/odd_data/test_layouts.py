"""The same odd data, written in BEIR's, MS MARCO's and DPR's layout, are the same passages, queries and labels."""

import tempfile
from pathlib import Path

from hypothesis import assume, given, settings
from odd_data.data_sets import ODD_IDS, QUOTED_IDS, OddData, data_sets, flat, write_beir, write_dpr, write_msmarco
from odd_data.test_ingestion import ingest, rows_of

from gnn_encoder.errors import UserError


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data_sets(most=20, ids=[name for name in (*ODD_IDS, *QUOTED_IDS) if "\t" not in name]))
def test_layouts_hold_the_same_data(data: OddData) -> None:
    data = flat(data)
    with tempfile.TemporaryDirectory() as root:
        contents = []
        for name, write in (("beir", write_beir), ("msmarco", write_msmarco)):
            try:
                kept, _ = ingest(write(Path(root) / name, data))
                passages, queries, labels = rows_of(kept)
                contents.append((passages, sorted(queries), sorted(labels)))
            except UserError as error:
                assert "is not usable" in str(error)
                contents.append(error)
        assert contents[0] == contents[1] or all(isinstance(content, UserError) for content in contents), contents


def _one_row(text: str) -> str:
    """DPR's own reader opens files with universal line ends. Quoted tabs beside line ends could also be rows of which a
    quote is not doubled, and are refused."""
    text = text.replace("\r", "")
    return text.replace("\t", " ") if "\n" in text else text


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data_sets(most=20))
def test_layouts_hold_the_same_positive_labels(data: OddData) -> None:
    texts = [row.text for row in data.queries]
    assume(len(set(texts)) == len(texts))
    positive = {
        split: [row._replace(relevance=1) for row in rows if row.relevance >= 1] for split, rows in data.labels.items()
    }
    corpus = [row._replace(title=_one_row(row.title), text=_one_row(row.text)) for row in data.passages]
    data = OddData(corpus, data.queries, positive)
    with tempfile.TemporaryDirectory() as root:
        contents = []
        for name, write in (("beir", write_beir), ("dpr", write_dpr)):
            try:
                kept, _ = ingest(write(Path(root) / name, data), ignore_identical_ids=False)
                passages, queries, labels = rows_of(kept)
                text_of = {query: text for query, text, _ in queries}
                query_splits = sorted((text, split) for _, text, split in queries)
                contents.append((passages, query_splits, sorted((text_of[query], *label) for query, *label in labels)))
            except UserError as error:
                assert "is not usable" in str(error)
                contents.append(error)
        assert contents[0] == contents[1] or all(isinstance(content, UserError) for content in contents), contents
