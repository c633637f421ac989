"""Explanations in words: for a question and a passage, the texts that flowed into the passage's vector."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Encoding, Graph, read_vectors
from gnn_encoder.explanation.weights import Explainer, Explanation
from gnn_encoder.models.gnn import GNN, GnnEncoder

NEEDED = ("dataset", "graph", "gnn_encoder", "passage_vectors", "encoding")
"""Artifacts that explain a bundle: what it was made from, and what was made with it."""
LEGEND = (
    "Weight: a training query's share of what attention mixed into the passage's vector, the mean over heads. "
    "Without it: how the passage's score would change if the edge between the two were not in the graph. "
    "Below a query: the passages in its own vector."
)
"""What the columns mean, below whatever shows them."""
OPEN = 0.5
"""A dimension of the gate above it is called open."""


@dataclass(frozen=True)
class Inflow:
    """A passage that flowed into a training query in layer 1; `weight`: mean over heads."""

    passage_id: str
    title: str
    text: str
    weight: float


@dataclass(frozen=True)
class Influence:
    """A training query that flowed into a passage in layer 2.

    `labelled`: the passage is a labelled positive of it. `weight`: attention, mean over heads, and `heads` of each.
    `score_change`: what the passage's score would change by if the edge between them were not in the graph.
    `inflows`: the passages that weigh most in the query's own vector; `own`: its self-loop's weight there.
    """

    query_id: str
    query: str
    labelled: bool
    weight: float
    heads: list[float]
    score_change: float
    inflows: list[Inflow]
    own: float


@dataclass(frozen=True)
class ExplainedPassage:
    """What the graph made of a passage, for one question.

    `score`: E_Q(q)ᵀ h'_p; `plain_score`: E_Q(q)ᵀ h_p, at unit length where h'_p is. `opening`: of the gate, mean over
    dimensions; `open_share`: dimensions above 0.5. `influences`: the queries that weigh most, largest first;
    `others` more weigh `others_weight` together; `own` and `own_heads`: the self-loop's. All weights sum to 1.
    """

    score: float
    plain_score: float
    opening: float
    open_share: float
    influences: list[Influence]
    others: int
    others_weight: float
    own: float
    own_heads: list[float]


@dataclass(frozen=True)
class Sources:
    """The opened artifacts that explain a bundle; nothing large is read before it is asked for."""

    dataset: Dataset
    graph: Graph
    gnn: GNN
    cached_passages: np.ndarray
    encoding: Encoding

    @classmethod
    def read(cls, folders: Mapping[str, Path]) -> "Sources":
        """Open the artifacts `NEEDED`, name → folder."""
        gnn, encoding = GnnEncoder.load_gnn(folders["gnn_encoder"]).eval(), Encoding.read(folders["encoding"])
        cached = gnn.config.passages_of_queries(read_vectors(folders["passage_vectors"]), encoding.passages)
        return cls(Dataset(folders["dataset"]), Graph.read(folders["graph"]), gnn, cached, encoding)

    def explain(
        self, questions: np.ndarray, hits: np.ndarray, *, neighbors: int, inflows: int = 0
    ) -> list[list[ExplainedPassage]]:
        """Every question's hits, in their order.

        Args:
            questions: E_Q's vectors [e, d].
            hits: passage rows [e, s], -1 where there are fewer.
            neighbors: training queries told of each passage.
            inflows: passages told of each training query.
        """
        rows = np.unique(hits[hits >= 0])
        encoding = self.encoding
        explainer = Explainer(
            self.gnn, self.graph, encoding.queries, self.cached_passages, encoding.passages, rows.astype(np.int64)
        )
        told = {int(row): _Told(explainer.explain(int(row)), neighbors, inflows) for row in rows}
        texts = _Texts(self, list(told.values()))
        return [
            [texts.of(told[int(row)], explainer, question) for row in found if row >= 0]
            for question, found in zip(questions, hits, strict=True)
        ]


@dataclass(frozen=True)
class _Told:
    """An explanation, and how much of it is told."""

    whole: Explanation
    neighbors: int
    inflows: int

    @property
    def queries(self) -> np.ndarray:
        """Graph queries that are told of."""
        return self.whole.queries[: self.neighbors]

    def passages(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and mean weights of the passages that weigh most in the query at that place, largest first."""
        side = self.whole.query_side
        rows, weights = side.passages[place], side.weights[place].mean(axis=1)
        order = np.argsort(-weights, kind="stable")
        order = order[rows[order] >= 0][: self.inflows]
        return rows[order], weights[order]


class _Texts:
    """The texts of all that is told, read together: a row group of the corpus is then read once."""

    def __init__(self, sources: Sources, told: list[_Told]) -> None:
        self._nodes = np.unique(np.concatenate([np.empty(0, np.int64), *(each.queries for each in told)]))
        queries = sources.graph.queries[self._nodes]
        self._query_ids = sources.dataset.queries.column("query_id").take(pa.array(queries)).to_pylist()
        self._queries = sources.dataset.query_texts(queries)
        near = [each.passages(place)[0] for each in told for place in range(len(each.queries))]
        self._rows = np.unique(np.concatenate([np.empty(0, np.int32), *near]))
        self._passages = sources.dataset.passages.take(self._rows)

    def of(self, told: _Told, explainer: Explainer, question: np.ndarray) -> ExplainedPassage:
        """One passage for one question."""
        whole = told.whole
        score, weights = float(question @ whole.vector), whole.weights.mean(axis=1)
        return ExplainedPassage(
            score=score,
            plain_score=float(question @ whole.plain),
            opening=float(whole.opening.mean()),
            open_share=float((whole.opening > OPEN).mean()),
            influences=[
                self._influence(told, place, explainer.without_edge(whole.passage, query, question)[1] - score)
                for place, query in enumerate(told.queries.tolist())
            ],
            others=len(weights) - len(told.queries),
            others_weight=float(weights[len(told.queries) :].sum()),
            own=float(whole.own.mean()),
            own_heads=whole.own.tolist(),
        )

    def _influence(self, told: _Told, place: int, score_change: float) -> Influence:
        whole = told.whole
        node = int(np.searchsorted(self._nodes, whole.queries[place]))
        rows, weights = told.passages(place)
        texts = self._passages
        return Influence(
            query_id=self._query_ids[node],
            query=self._queries[node],
            labelled=bool(whole.labelled[place]),
            weight=float(whole.weights[place].mean()),
            heads=whole.weights[place].tolist(),
            score_change=score_change,
            inflows=[
                Inflow(texts.ids[at], texts.titles[at], texts.texts[at], weight)
                for at, weight in zip(np.searchsorted(self._rows, rows).tolist(), weights.tolist(), strict=True)
            ],
            own=float(whole.query_side.own[place].mean()),
        )
