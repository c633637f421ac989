"""Odd data as datasets of the package, and rankings of them."""

from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from odd_data.plain import Ingested

from gnn_encoder.artifacts import Dataset, DatasetWriter, Run, drafting
from gnn_encoder.artifacts.dataset import IDENTICAL, MISSING


def write_dataset(path: Path, data: Ingested) -> Dataset:
    """The dataset of rows that plain loops keep."""
    rows = {row.id: number for number, row in enumerate(data.queries)}
    places = {row.id: number for number, row in enumerate(data.passages)}
    groups = list(range(len(rows)))
    for group in data.groups():
        for query in group:
            groups[rows[query]] = rows[group[0]]
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(*([list(column) for column in zip(*data.passages, strict=True)] or [[], [], []]))
        queries, texts = [row.id for row in data.queries], [row.text for row in data.queries]
        writer.queries(queries, texts, [data.split[name] for name in queries], [[] for _ in queries], groups)
        labelled_queries, passages = [label.query for label in data.labels], [label.passage for label in data.labels]
        relevance = [label.relevance for label in data.labels]
        writer.qrels(
            labelled_queries,
            passages,
            relevance,
            [rows[name] for name in labelled_queries],
            [places[name] for name in passages],
        )
        if data.missed:
            columns = zip(*((rows[label.query], label.passage, label.relevance) for label in data.missed), strict=True)
            writer.table(MISSING, *map(list, columns))
        if data.identical:
            writer.table(
                IDENTICAL, [rows[name] for name in data.identical], [places[name] for name in data.identical.values()]
            )
        writer.close()
    return Dataset(path)


@st.composite
def rankings(draw: st.DrawFn, data: Ingested) -> Run:
    """A ranking with scores of one to five values, of some queries, with some passages each."""
    queries, passages = len(data.queries), len(data.passages)
    ids = [row.id for row in data.passages]
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    levels, share = draw(st.integers(1, 5)), draw(st.sampled_from((0.0, 0.3, 1.0)))
    scores = np.float32(0.1) * generator.integers(0, levels, (queries, passages)).astype(np.float32)
    missing = (generator.random((queries, passages)) > share) | (generator.random((queries, 1)) < 0.2)
    scores[missing] = -np.inf
    for row, query in enumerate(data.queries):
        if query.id in data.identical:
            scores[row, ids.index(data.identical[query.id])] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")
    scores = np.take_along_axis(scores, order, axis=1)
    return Run.from_hits(np.arange(queries), np.where(scores > -np.inf, order, -1), scores)
