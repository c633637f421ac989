"""A dataset with more queries: those of another dataset keep their rows, and written ones follow."""

import json
from collections.abc import Sequence

import numpy as np

from gnn_encoder.artifacts.dataset import IDENTICAL, QRELS, QUERIES, RECURRING, SPLITS, TRAINED, WRITTEN_SPLITS, Dataset
from gnn_encoder.artifacts.dataset_writer import DatasetWriter
from gnn_encoder.artifacts.folder import Draft
from gnn_encoder.artifacts.passages import CORPUS
from gnn_encoder.artifacts.texts import written_id


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
        texts: texts of the queries [n], no two of which are equal when `folded`; `written_id` has their ids. Of a query
            with an id that the dataset has, the labels are added to the dataset's.
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
        row = {query_id: number for number, query_id in enumerate(before["query_id"].to_pylist())}
        new = [number for number, query_id in enumerate(ids) if query_id not in row]
        row |= {ids[number]: len(before) + index for index, number in enumerate(new)}
        groups = [*before["group"].to_pylist(), *range(len(before), len(before) + len(new))]
        of_more = {"query_id": ids, "text": texts, "split": splits, "answers": [[] for _ in texts]}
        columns = ([*before[name].to_pylist(), *(values[i] for i in new)] for name, values in of_more.items())
        query_ids, all_texts, all_splits, answers = columns
        writer.queries(query_ids, all_texts, all_splits, answers, np.asarray(groups))
        labels, rows = data.qrels, np.array([row[query_id] for query_id in ids], np.int32)
        known = set(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
        pairs = [
            (q, p) for q, relevant in zip(rows.tolist(), passages, strict=True) for p in relevant if (q, p) not in known
        ]
        query = np.append(labels.query, [q for q, _ in pairs]).astype(np.int32)
        passage = np.append(labels.passage, [p for _, p in pairs]).astype(np.int32)
        relevance = np.append(labels.relevance, np.ones(len(pairs))).astype(np.int32)
        order = np.argsort(query, kind="stable") if len(new) < len(texts) else np.arange(len(query))
        query, passage, relevance = query[order], passage[order], relevance[order]
        passage_ids = data.passages.ids().to_pylist()
        writer.qrels([query_ids[q] for q in query], [passage_ids[p] for p in passage], relevance, query, passage)
        same = np.full(len(query_ids), -1, np.int32)
        same[: len(before)] = data.identical
        same[rows] = np.where(np.asarray(quoted) >= 0, quoted, same[rows])
        if len(quoting_rows := np.flatnonzero(same >= 0)):
            writer.table(IDENTICAL, quoting_rows, same[quoting_rows])
        if len(recurring):
            writer.table(RECURRING, recurring)
        if TRAINED in data.manifest.files:
            writer.table(TRAINED, np.union1d(data.trained, rows[np.asarray(splits) == "train"]))
    finally:
        writer.close()
    written = [split for split in SPLITS if split in (*splits, *data.written_splits)]
    (draft / WRITTEN_SPLITS).write_text(json.dumps({"splits": written, "quoting": quoting}), encoding="utf-8")
    for name in data.manifest.files.keys() - {CORPUS, QUERIES, QRELS, IDENTICAL, RECURRING, TRAINED, WRITTEN_SPLITS}:
        draft.link(data, name)
    for name in ("step", "settings", "inputs"):
        setattr(draft.manifest, name, getattr(data.manifest, name))
    draft.manifest.rows = data.manifest.rows | draft.manifest.rows
