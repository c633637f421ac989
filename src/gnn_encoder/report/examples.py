"""Queries that the GNN-encoder won and lost against the dual encoder, with what both found."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.explanation.passages import ExplainedPassage
from gnn_encoder.inference.scorers import Contribution


@dataclass(frozen=True)
class Found:
    """A passage in a ranking.

    `why`: what the graph made of it. `parts`: what its score is made of. Each where it is known.
    """

    rank: int
    passage_id: str
    title: str
    text: str
    relevant: bool
    why: ExplainedPassage | None = None
    parts: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class Example:
    """A query, each system's figure, and the first passages of each system's ranking."""

    query_id: str
    query: str
    figures: dict[str, float]
    rankings: dict[str, list[Found]]


def most_changed(gains: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the `count` largest gains and of the `count` largest losses, largest first."""
    order = np.argsort(-gains, kind="stable")
    return order[: min(count, int((gains > 0).sum()))], order[::-1][: min(count, int((gains < 0).sum()))]


def examples(
    dataset: Dataset,
    split: str,
    positions: np.ndarray,
    figures: Mapping[str, np.ndarray],
    hits: Mapping[str, np.ndarray],
) -> list[Example]:
    """Some of a split's labelled queries in full.

    Args:
        dataset: where ids, texts and labels come from.
        split: whose labelled queries, ascending, the arrays below are aligned with.
        positions: [e] which of them.
        figures: {system: [n]} one measure of each query.
        hits: {system: [n, SHOWN]} passage rows, best first, -1 where there are fewer.
    """
    labels = dataset.split_qrels(split).positive()
    queries = labelled_queries(labels)[positions]
    ids = dataset.queries.column("query_id").take(pa.array(queries)).to_pylist()
    made = []
    for position, query, query_id, text in zip(positions, queries, ids, dataset.query_texts(queries), strict=True):
        relevant = labels.passage[labels.query == query]
        rankings = {system: _found(dataset, rows[position], relevant) for system, rows in hits.items()}
        made.append(Example(query_id, text, {s: float(v[position]) for s, v in figures.items()}, rankings))
    return made


def _found(dataset: Dataset, rows: np.ndarray, relevant: np.ndarray) -> list[Found]:
    rows = rows[rows >= 0]
    passages = dataset.passages.take(rows)
    columns = zip(passages.ids, passages.titles, passages.texts, np.isin(rows, relevant).tolist(), strict=True)
    return [Found(rank, *column) for rank, column in enumerate(columns, start=1)]
