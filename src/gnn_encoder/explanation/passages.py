"""Explanations with texts: for a question and a passage, the texts that flowed into the passage's vector."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Encoding, Graph, read_vectors
from gnn_encoder.explanation.weights import Explainer, Explanation
from gnn_encoder.models.gnn import GNN, GnnEncoder

NEEDED = ("dataset", "graph", "gnn_encoder", "passage_vectors", "encoding")
"""Artifacts that explain a bundle: its inputs, and the encoding made with it."""
LEGEND = (
    "Weight: a training query's share of what attention mixed into the passage's vector, the mean over heads. "
    "Without it: how the passage's score would change if the edge between the two were not in the graph. "
    "Below a query: the passages in its own vector."
)
"""Explains the columns of a table of influences."""
OPEN = 0.5
"""A dimension whose gate is above this counts as open."""


@dataclass(frozen=True)
class Inflow:
    """A passage in a training query's vector (layer 1); `weight`: mean over heads."""

    passage_id: str
    title: str
    text: str
    weight: float


@dataclass(frozen=True)
class Influence:
    """A training query in a passage's vector (layer 2).

    `labelled`: the passage is a labelled positive of the query. `weight`: attention, mean over `heads`.
    `score_change`: of the passage's score, without the edge between them in the graph.
    `inflows`: the passages of largest weight in the query's own vector; `own`: its self-loop's weight there.
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
    """The effect of the graph on a passage, for one question.

    `score`: E_Q(q)ᵀ h'_p; `plain_score`: E_Q(q)ᵀ h_p, at unit length where h'_p is. `opening`: of the gate, mean over
    dimensions; `open_share`: of dimensions, above 0.5. `influences`: the queries of largest weight, largest first;
    `others` more queries have `others_weight` together; `own`, `own_heads`: the self-loop's. All weights sum to 1.
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
    """The opened artifacts that explain a bundle; large arrays are memory-mapped."""

    dataset: Dataset
    graph: Graph
    gnn: GNN
    cached_passages: np.ndarray
    encoding: Encoding

    @classmethod
    def read(cls, folders: Mapping[str, Path]) -> "Sources":
        """Open the artifacts `NEEDED`, by name."""
        gnn, encoding = GnnEncoder.load_gnn(folders["gnn_encoder"]).eval(), Encoding.read(folders["encoding"])
        cached = gnn.config.passages_of_queries(read_vectors(folders["passage_vectors"]), encoding.passages)
        return cls(Dataset(folders["dataset"]), Graph.read(folders["graph"]), gnn, cached, encoding)

    def explain(
        self, questions: np.ndarray, hits: np.ndarray, *, neighbors: int, inflows: int = 0
    ) -> list[list[ExplainedPassage]]:
        """Explanations of every question's hits, in their order.

        Args:
            questions: E_Q's vectors [e, d]. hits: passage rows [e, s], -1 where there are fewer.
            neighbors: training queries shown per passage. inflows: passages shown per training query.
        """
        rows, encoding = np.unique(hits[hits >= 0]).astype(np.int64), self.encoding
        explainer = Explainer(self.gnn, self.graph, encoding.queries, self.cached_passages, encoding.passages, rows)
        explanations = {int(row): explainer.explain(int(row)) for row in rows}
        texts = _Texts(self, list(explanations.values()), neighbors, inflows)
        return [
            [texts.explained(explanations[int(row)], explainer, question) for row in ranking if row >= 0]
            for question, ranking in zip(questions, hits, strict=True)
        ]


class _Texts:
    """The texts of explanations, read together, so that a row group of the corpus is read once."""

    def __init__(self, sources: Sources, explanations: list[Explanation], neighbors: int, inflows: int) -> None:
        self._neighbors, self._inflows = neighbors, inflows
        nodes = [each.queries[:neighbors] for each in explanations]
        self._nodes = np.unique(np.concatenate([np.empty(0, np.int64), *nodes]))
        queries = sources.graph.queries[self._nodes]
        self._query_ids = sources.dataset.queries.column("query_id").take(pa.array(queries)).to_pylist()
        self._queries = sources.dataset.query_texts(queries)
        near = [self._nearest(each, i)[0] for each in explanations for i in range(len(each.queries[:neighbors]))]
        self._rows = np.unique(np.concatenate([np.empty(0, np.int32), *near]))
        self._passages = sources.dataset.passages.take(self._rows)

    def _nearest(self, explanation: Explanation, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and mean weights of the passages of largest weight in the query at that place, largest first."""
        side = explanation.query_side
        rows, weights = side.passages[place], side.weights[place].mean(axis=1)
        order = np.argsort(-weights, kind="stable")
        order = order[rows[order] >= 0][: self._inflows]
        return rows[order], weights[order]

    def explained(self, explanation: Explanation, explainer: Explainer, question: np.ndarray) -> ExplainedPassage:
        """One passage for one question."""
        score, weights = float(question @ explanation.vector), explanation.weights.mean(axis=1)
        shown = explanation.queries[: self._neighbors].tolist()
        return ExplainedPassage(
            score=score,
            plain_score=float(question @ explanation.plain),
            opening=float(explanation.opening.mean()),
            open_share=float((explanation.opening > OPEN).mean()),
            influences=[
                self._influence(explanation, i, explainer.without_edge(explanation.passage, query, question)[1] - score)
                for i, query in enumerate(shown)
            ],
            others=len(weights) - len(shown),
            others_weight=float(weights[len(shown) :].sum()),
            own=float(explanation.own.mean()),
            own_heads=explanation.own.tolist(),
        )

    def _influence(self, explanation: Explanation, place: int, score_change: float) -> Influence:
        node = int(np.searchsorted(self._nodes, explanation.queries[place]))
        rows, weights = self._nearest(explanation, place)
        texts = self._passages
        return Influence(
            query_id=self._query_ids[node],
            query=self._queries[node],
            labelled=bool(explanation.labelled[place]),
            weight=float(explanation.weights[place].mean()),
            heads=explanation.weights[place].tolist(),
            score_change=score_change,
            inflows=[
                Inflow(texts.ids[i], texts.titles[i], texts.texts[i], weight)
                for i, weight in zip(np.searchsorted(self._rows, rows).tolist(), weights.tolist(), strict=True)
            ],
            own=float(explanation.query_side.own[place].mean()),
        )
