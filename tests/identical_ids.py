"""A data set in which queries have the id of a passage, as ArguAna's have."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.artifacts.dataset import IDENTICAL


def with_identical_ids(data: Dataset, path: Path) -> Dataset:
    """The same data, with the id of the passage behind its relevant one for each query but each tenth."""
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        passages = data.passages.take(np.arange(len(data.passages)))
        writer.passages(passages.ids, passages.titles, passages.texts)
        qrels, queries = data.qrels, data.queries.to_pydict()
        same = np.full(len(data.queries), -1)
        same[qrels.query] = (qrels.passage + 1) % len(data.passages)
        same[::10] = -1
        ids = [passages.ids[row] if row >= 0 else f"q{query}" for query, row in enumerate(same.tolist())]
        writer.queries(ids, *(queries[name] for name in ("text", "split", "answers", "group")))
        labelled = [passages.ids[row] for row in qrels.passage]
        writer.qrels([ids[row] for row in qrels.query], labelled, qrels.relevance, qrels.query, qrels.passage)
        writer.table(IDENTICAL, np.flatnonzero(same >= 0), same[same >= 0])
        writer.close()
    return Dataset(path)
