"""A dataset with more queries: those of another dataset keep their rows, and written ones follow."""

import json
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from gnn_encoder.artifacts.dataset import (
    CORPUS,
    IDENTICAL,
    QRELS,
    QUERIES,
    RECURRING,
    SPLITS,
    TRAINED,
    WRITTEN_SPLITS,
    Dataset,
    DatasetWriter,
)
from gnn_encoder.artifacts.folder import Draft
from gnn_encoder.artifacts.texts import folded


def written_id(text: str) -> str:
    """The id of a written query: the same in every run, since labels that are added later name it."""
    return "written-" + blake2b(folded(text).encode(), digest_size=8).hexdigest()


def extend_queries(
    draft: Draft,
    data: Dataset,
    texts: Sequence[str],
    splits: Sequence[str],
    passages: Sequence[Sequence[int]],
    quoted: Sequence[int],
    recurring: np.ndarray,
    quoting: bool,
) -> None:
    """Writes the dataset with n more queries into a draft, which keeps the settings with which the data were read.

    Args:
        texts: texts of the queries [n], no two of which are equal when `folded`; `written_id` has their ids.
        splits: their splits [n].
        passages: rows of the passages that are relevant to each of them [n].
        quoted: rows of the passages that they quote, which are none of their hits [n]; -1: none.
        recurring: as `Dataset.recurring`, rows of all queries.
        quoting: as `Dataset.quoting`.
    """
    writer = DatasetWriter(draft)
    try:
        for batch in data.passages.batches():
            writer.passages(*batch.columns)
        before, ids = data.queries, [written_id(text) for text in texts]
        groups = [*before["group"].to_pylist(), *range(len(before), len(before) + len(texts))]
        of_more = {"query_id": ids, "text": texts, "split": splits, "answers": [[] for _ in texts]}
        columns = ([*before[name].to_pylist(), *more] for name, more in of_more.items())
        query_ids, all_texts, all_splits, answers = columns
        writer.queries(query_ids, all_texts, all_splits, answers, np.asarray(groups))
        labels = data.qrels
        counts = [len(rows) for rows in passages]
        query = np.concatenate([labels.query, len(before) + np.repeat(np.arange(len(texts)), counts)]).astype(np.int32)
        passage = np.concatenate([labels.passage, *passages]).astype(np.int32)
        relevance = np.concatenate([labels.relevance, np.ones(sum(counts), np.int32)])
        passage_ids = data.passages.ids().to_pylist()
        writer.qrels([query_ids[q] for q in query], [passage_ids[p] for p in passage], relevance, query, passage)
        same = np.concatenate([data.identical, np.asarray(quoted, np.int32)])
        if len(rows := np.flatnonzero(same >= 0)):
            writer.identical(rows, same[rows])
        if len(recurring):
            writer.recurring(recurring)
        if TRAINED in data.manifest.files:
            new = len(before) + np.flatnonzero(np.asarray(splits) == "train")
            writer.trained(np.concatenate([data.trained, new]))
    finally:
        writer.close()
    written = [split for split in SPLITS if split in (*splits, *data.written_splits)]
    (draft / WRITTEN_SPLITS).write_text(json.dumps({"splits": written, "quoting": quoting}), encoding="utf-8")
    for name in data.manifest.files.keys() - {CORPUS, QUERIES, QRELS, IDENTICAL, RECURRING, TRAINED, WRITTEN_SPLITS}:
        draft.link(data, name)
    for name in ("step", "settings", "inputs"):
        setattr(draft.manifest, name, getattr(data.manifest, name))
    draft.manifest.rows = data.manifest.rows | draft.manifest.rows
