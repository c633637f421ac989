"""Queries that the GNN-encoder won and lost against the dual encoder, with what both found."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Bundle, Dataset, passage_text
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.explanation.passages import ExplainedPassage, Sources
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.inference.scorers import Contribution, Scorer
from gnn_encoder.models.dual_encoder import TextEncoder

NEIGHBORS = 3
"""Training queries told of each passage."""


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


class ExampleExplainer:
    """Adds to examples what flowed into the passages that `system` ranked first."""

    def __init__(self, system: str, artifacts: Mapping[str, Path], speed: Mapping[str, Any]) -> None:
        """Open the artifacts, by name: the bundle and what explains it; `speed`: of encoding."""
        self.system, self._speed = system, speed
        self._sources = Sources.read(artifacts)
        self._encoder = TextEncoder.load(Bundle.read(artifacts["bundle"]).query_encoder_path)

    def explain(self, examples: list[Example], hits: np.ndarray) -> list[Example]:
        """The examples [e], from the system's passage rows of each [e, s], -1 where there are fewer."""
        questions = encode_texts(self._encoder, [example.query for example in examples], **self._speed)
        whys = self._sources.explain(questions, hits, neighbors=NEIGHBORS)
        explained = []
        for example, why in zip(examples, whys, strict=True):
            found = [replace(passage, why=of) for passage, of in zip(example.rankings[self.system], why, strict=True)]
            explained.append(replace(example, rankings={**example.rankings, self.system: found}))
        return explained


def explained_by(scorer: Scorer, system: str, examples: list[Example]) -> list[Example]:
    """The examples with what the scores of `system`'s passages are made of, by the scorer that ordered them."""
    explained = []
    for example in examples:
        found = [
            replace(each, parts=tuple(scorer.explain(example.query, passage_text(each.title, each.text))))
            for each in example.rankings[system]
        ]
        explained.append(replace(example, rankings={**example.rankings, system: found}))
    return explained
