"""Selects queries that the candidate won or lost against the baseline, and explains both systems' first passages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Bundle, Dataset
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.explanation.passages import ExplainedPassage, Sources
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.scorers import Contribution, Scorer

NEIGHBORS = 3
"""Number of training queries shown for each passage."""


@dataclass(frozen=True)
class RankedPassage:
    """A passage in a ranking. `row`: of the dataset; `why`: the graph's influence on it; `parts`: of its score."""

    rank: int
    row: int
    passage_id: str
    title: str
    text: str
    relevant: bool
    why: ExplainedPassage | None = None
    parts: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class Example:
    """A query, {system: value of the measure}, and {system: first passages of its ranking}."""

    query_id: str
    query: str
    figures: dict[str, float]
    rankings: dict[str, list[RankedPassage]]


def most_changed(gains: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of the `count` largest gains and of the `count` largest losses, largest first."""
    order = np.argsort(-gains, kind="stable")
    return order[: min(count, int((gains > 0).sum()))], order[::-1][: min(count, int((gains < 0).sum()))]


def examples(
    dataset: Dataset,
    split: str,
    positions: np.ndarray,
    figures: Mapping[str, np.ndarray],
    hits: Mapping[str, np.ndarray],
    level: int = 1,
) -> list[Example]:
    """Returns examples for some of the n labelled queries of a split.

    Args:
        positions: [e] positions among the split's labelled queries, ascending.
        figures: {system: [n]} one measure of each query.
        hits: {system: [n, SHOWN]} passage rows, best first, -1 after the last hit.
        level: the lowest label that is relevant.
    """
    labels = dataset.judged(split).positive()
    queries = labelled_queries(labels)[positions]
    ids = dataset.queries.column("query_id").take(pa.array(queries)).to_pylist()
    shown = []
    for position, query, query_id, text in zip(positions, queries, ids, dataset.query_texts(queries), strict=True):
        relevant = labels.passage[(labels.query == query) & (labels.relevance >= level)]
        rankings = {system: _ranked(dataset, rows[position], relevant) for system, rows in hits.items()}
        shown.append(Example(query_id, text, {s: float(v[position]) for s, v in figures.items()}, rankings))
    return shown


def _ranked(dataset: Dataset, rows: np.ndarray, relevant: np.ndarray) -> list[RankedPassage]:
    rows = rows[rows >= 0]
    passages = dataset.passages.take(rows)
    labelled = np.isin(rows, relevant).tolist()
    columns = zip(rows.tolist(), passages.ids, passages.titles, passages.texts, labelled, strict=True)
    return [RankedPassage(rank, *column) for rank, column in enumerate(columns, start=1)]


def explained_by_graph(
    artifacts: Mapping[str, Path],
    system: str,
    groups: Iterable[tuple[list[Example], np.ndarray]],
    speed: Mapping[str, Any],
) -> list[list[Example]]:
    """Returns the groups of examples with the graph's influence on the passages of `system`.

    Args:
        artifacts: name → folder, of the bundle and of the artifacts that explain the bundle.
        groups: e examples, and the system's passage rows [e, s] for them, -1 after the last hit.
        speed: settings of the encoding.
    """
    sources, encoder = Sources.read(artifacts), TextEncoder.load(Bundle.read(artifacts["bundle"]).query_encoder_path)
    explained: list[list[Example]] = []
    for group, hits in groups:
        explained.append([])
        questions = encode_texts(encoder, [example.query for example in group], **speed)
        for example, explanations in zip(group, sources.explain(questions, hits, neighbors=NEIGHBORS), strict=True):
            passages = [
                replace(passage, why=explanation)
                for passage, explanation in zip(example.rankings[system], explanations, strict=True)
            ]
            explained[-1].append(replace(example, rankings={**example.rankings, system: passages}))
    return explained


def explained_by_scorer(scorer: Scorer, data: Dataset, system: str, examples: list[Example]) -> list[Example]:
    """Returns the examples with the parts of the scores of `system`'s passages, from the scorer that ordered them."""
    explained = []
    for example in examples:
        passages = [
            replace(passage, parts=tuple(scorer.explain(data, example.query, passage.row)))
            for passage in example.rankings[system]
        ]
        explained.append(replace(example, rankings={**example.rankings, system: passages}))
    return explained
