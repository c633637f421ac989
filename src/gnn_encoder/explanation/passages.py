"""Explains a hit of a query with texts: the training queries and passages that influence the hit's vector."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Encoding, Graph, read_vectors
from gnn_encoder.artifacts.added_labels import AddedNodes
from gnn_encoder.artifacts.arrays import Rows
from gnn_encoder.explanation.weights import Explainer, Explanation, QuerySide
from gnn_encoder.models.gnn import GNN, GnnEncoder
from gnn_encoder.query_graph.extension import graph_around
from gnn_encoder.retrieval.filters import Selection

NEEDED = ("dataset", "graph", "gnn_encoder", "passage_vectors", "encoding")
"""Artifacts that explain a bundle: what it was made from."""
LEGEND = (
    "Weight: a training query's attention weight in the passage's vector, mean over heads. "
    "Without it: the change of the passage's score if the graph lacked the edge between the query and the passage. "
    "Below a query: the passages in the query's own vector."
)
"""Explanation of the columns of a table of influences."""
OPEN = 0.5
"""A dimension counts as open if its gate is above this."""


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

    `labelled`: the passage is a labelled positive of the query. `weight`: attention weight, mean over `heads`.
    `score_change`: change of the passage's score if the graph lacked the edge between query and passage.
    `inflows`: the passages with the largest weights in the query's own vector; `own`: weight of the query's self-loop.
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
    """The effect of the graph on a passage, for one query.

    `score`: E_Q(q)ᵀ h'_p. `plain_score`: E_Q(q)ᵀ h_p, with h_p at unit length if h'_p is. `opening`: gate, mean over
    dimensions. `open_share`: share of dimensions whose gate is above 0.5. `influences`: training queries with the
    largest weights, largest first. `others` more training queries have `others_weight` together. `own`, `own_heads`:
    weight of the self-loop. All weights sum to 1.
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
    """The opened artifacts that explain a bundle; large arrays are memory-mapped.

    `nodes`: queries with edges that labels changed after the run.
    """

    dataset: Dataset
    graph: Graph
    gnn: GNN
    cached_passages: Rows
    encoding: Encoding
    nodes: AddedNodes | None = None

    @classmethod
    def read(cls, folders: Mapping[str, Path], nodes: AddedNodes | None = None) -> "Sources":
        """Opens the artifacts `NEEDED`; `folders` is {name: folder}."""
        gnn, encoding = GnnEncoder.load_gnn(folders["gnn_encoder"]).eval(), Encoding.read(folders["encoding"])
        cached = gnn.config.passages_of_queries(read_vectors(folders["passage_vectors"]), encoding.passages)
        return cls(Dataset(folders["dataset"]), Graph.read(folders["graph"]), gnn, cached, encoding, nodes)

    def explain(
        self,
        questions: np.ndarray,
        hits: np.ndarray,
        *,
        neighbors: int,
        inflows: int = 0,
        only: Selection | None = None,
    ) -> list[list[ExplainedPassage]]:
        """Returns the explanations of every query's hits, in the order of the hits.

        Args:
            questions: E_Q's vectors [e, d]. hits: passage rows [e, s], -1 after the last hit.
            neighbors: training queries shown per passage. inflows: passages shown per training query.
            only: says which passages and training queries may be named and counted; None: all. `others_weight` is then
                that of all others.
        """
        rows, encoding = np.unique(hits[hits >= 0]).astype(np.int64), self.encoding
        graph, queries = self.graph, encoding.queries
        if self.nodes:
            graph, queries = graph_around(graph, queries, self.nodes, rows)
        explainer = Explainer(self.gnn, graph, queries, self.cached_passages, encoding.passages, rows)
        explanations = {int(row): explainer.explain(int(row)) for row in rows}
        if only and only.seen is not None:
            explanations = {row: self._named(one, graph, only, only.seen) for row, one in explanations.items()}
        texts = _Texts(self, graph, list(explanations.values()), neighbors, inflows)
        return [
            [texts.explained(explanations[int(row)], explainer, question) for row in ranking if row >= 0]
            for question, ranking in zip(questions, hits, strict=True)
        ]

    def _named(self, explanation: Explanation, graph: Graph, only: Selection, seen: np.ndarray) -> Explanation:
        """Returns the explanation without the queries and passages that are not named."""
        of, side, count = explanation.queries, explanation.query_side, len(explanation.queries)
        query, slot = np.nonzero(graph.labelled[of] & (graph.edges[of] >= 0))
        named = only.names(query, graph.edges[of[query], slot], count)
        labels = self.dataset.qrels.positive()
        named &= ~np.isin(graph.queries[of], labels.query[~seen[labels.passage]])
        passages = np.where((side.passages >= 0) & seen[side.passages], side.passages, -1)
        return replace(
            explanation,
            **{name: getattr(explanation, name)[named] for name in ("queries", "labelled", "weights")},
            query_side=QuerySide(passages[named], side.weights[named], side.self_loops[named]),
        )

    def query_texts(self, queries: np.ndarray) -> tuple[list[str], list[str]]:
        """Returns ids and texts of some `Graph.queries`; −1 − i is the new query i of `nodes`."""
        known = self.dataset.queries.select(["query_id", "text"]).take(pa.array(np.maximum(queries, 0)))
        ids, texts = (column.to_pylist() for column in known.columns)
        for index in np.flatnonzero(queries < 0).tolist():
            assert self.nodes
            ids[index], texts[index] = (names[-1 - queries[index]] for names in (self.nodes.ids, self.nodes.texts))
        return ids, texts


class _Texts:
    """The texts of several explanations, read together, so that a row group of the corpus is read once."""

    def __init__(
        self, sources: Sources, graph: Graph, explanations: list[Explanation], neighbors: int, inflows: int
    ) -> None:
        self._neighbors, self._inflows = neighbors, inflows
        nodes = [explanation.queries[:neighbors] for explanation in explanations]
        self._nodes = np.unique(np.concatenate([np.empty(0, np.int64), *nodes]))
        self._query_ids, self._queries = sources.query_texts(graph.queries[self._nodes])
        near = [
            self._nearest(explanation, i)[0]
            for explanation, shown in zip(explanations, nodes, strict=True)
            for i in range(len(shown))
        ]
        self._rows = np.unique(np.concatenate([np.empty(0, np.int32), *near]))
        self._passages = sources.dataset.passages.take(self._rows)

    def _nearest(self, explanation: Explanation, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and mean weights of the passages in the query at `index`, largest weight first."""
        side = explanation.query_side
        rows, weights = side.passages[index], side.weights[index].mean(axis=1)
        order = np.argsort(-weights, kind="stable")
        order = order[rows[order] >= 0][: self._inflows]
        return rows[order], weights[order]

    def explained(self, explanation: Explanation, explainer: Explainer, question: np.ndarray) -> ExplainedPassage:
        """Returns the explanation of one passage for one query, with texts."""
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
            others_weight=float(max(0.0, 1 - explanation.self_loop.mean() - weights[: len(shown)].sum())),
            own=float(explanation.self_loop.mean()),
            own_heads=explanation.self_loop.tolist(),
        )

    def _influence(self, explanation: Explanation, index: int, score_change: float) -> Influence:
        node = int(np.searchsorted(self._nodes, explanation.queries[index]))
        rows, weights = self._nearest(explanation, index)
        texts = self._passages
        return Influence(
            query_id=self._query_ids[node],
            query=self._queries[node],
            labelled=bool(explanation.labelled[index]),
            weight=float(explanation.weights[index].mean()),
            heads=explanation.weights[index].tolist(),
            score_change=score_change,
            inflows=[
                Inflow(texts.ids[i], texts.titles[i], texts.texts[i], weight)
                for i, weight in zip(np.searchsorted(self._rows, rows).tolist(), weights.tolist(), strict=True)
            ],
            own=float(explanation.query_side.self_loops[index].mean()),
        )
