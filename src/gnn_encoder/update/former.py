"""The graph and M_de's vectors of an earlier run, from which the next run carries over unchanged parts.

Text digests identify passages and queries across the runs (`gnn_encoder.update.changes`).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Contents, Graph, read_vectors
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, read_rows
from gnn_encoder.artifacts.digests import find
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.retrieval import exact

CHUNK = 512
"""Queries with passage vectors in memory at a time."""


@dataclass(frozen=True)
class FormerGraph:
    """The earlier graph, and the mapping of its rows to rows of the new run.

    `queries` int64 [n], `passages` int64 [m]: the earlier rows of the new graph's queries and of the new run's
    passages, -1: new. `today` int64 [m']: the new rows of the earlier passages, -1: removed. `vectors` [m', d],
    `query_vectors` [t', d]: M_de's vectors of the earlier passages and training queries, and `asking` int64 [t]: the
    rows there of the new run's training queries. `evaluated_vectors`, `evaluated`: the same of dev and test queries.
    `same_features`: the cross-encoder and its settings have not changed.
    """

    graph: Graph
    vectors: np.ndarray
    query_vectors: np.ndarray
    queries: np.ndarray
    passages: np.ndarray
    today: np.ndarray
    same_features: bool
    asking: np.ndarray
    evaluated_vectors: np.ndarray
    evaluated: np.ndarray

    @classmethod
    def read(
        cls,
        folder: Path,
        retriever: dict[str, str],
        scorer: dict[str, str],
        queries: np.ndarray,
        nodes: np.ndarray,
        passages: np.ndarray,
        evaluated: np.ndarray,
        dtype: np.dtype,
    ) -> "FormerGraph | None":
        """Reads the earlier graph in a run's folder; None if another dual encoder made the graph, or its vectors are
        stored in another type.

        Args:
            retriever, scorer: digests of the dual encoder and of the cross-encoder, and the precision of each.
            queries, passages, evaluated: text digests of all training queries [t, 2], of all passages [m, 2], and of
                dev and test queries [e, 2].
            nodes: int64 [n], the training queries that are nodes of the new graph.
            dtype: the storage type of passages' vectors.
        """
        graph, vectors = folder / "graph", read_vectors(folder / "passage_vectors")
        of_passages, of_queries = Contents.read(folder / "passage_vectors"), Contents.read(graph)
        if of_passages.models != retriever or vectors.dtype != dtype:
            return None
        before, of_nodes = of_passages.digests["texts"], of_queries.digests["queries"]
        return cls(
            Graph.read(graph),
            vectors,
            read_rows(folder / "passage_vectors", QUERIES),
            find(of_nodes, queries[nodes]),
            find(before, passages),
            find(passages, before),
            of_queries.models == scorer,
            find(of_passages.digests.get("queries", of_nodes), queries),
            read_rows(folder / "passage_vectors", EVALUATED),
            find(of_passages.digests[EVALUATED], evaluated),
        )

    def search(self, vectors: np.ndarray, query_vectors: np.ndarray, k: int, needed: int) -> np.ndarray:
        """The rows of `exact.search(vectors, query_vectors, k)`, int32 [n, k].

        Only new queries are compared with all passages. Known queries are compared with new passages.

        A known query that has lost passages is not searched again if at least `needed` passages are left. Its row is -1
        from the first rank on where an unknown passage could be.
        """
        nearest = np.full((len(query_vectors), k), -1, np.int32)
        assert self.graph.retrieved is not None
        stored = self.graph.retrieved[:, :k]
        kept = np.where(stored >= 0, self.today[stored], -1)[self.queries].astype(np.int32)
        left = (kept >= 0).sum(axis=1)
        # Passages of equal text have equal digests. A query whose list has two of them is searched again.
        ordered = np.sort(kept, axis=1)
        twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
        known = (self.queries >= 0) & ~twice & (left >= min(needed, len(vectors)))
        nearest[~known] = exact.search(vectors, query_vectors[~known], k)[1]
        added = np.setdiff1d(np.arange(len(vectors)), self.today).astype(np.int32)
        rows = np.flatnonzero(known)
        scores, fresh = exact.search(vectors[added], query_vectors[rows], min(k, len(added)))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            some, old = rows[part], kept[rows[part]]
            of_old = np.einsum("qd,qkd->qk", query_vectors[some], np.asarray(vectors[old], np.float32))
            both = np.concatenate([np.where(old >= 0, of_old, -np.inf), scores[part]], axis=1)
            passages = np.concatenate([old, added[fresh[part]]], axis=1)
            order = np.lexsort((passages, -both), axis=1)[:, :k]
            # After `left` hits, a passage that was never retrieved may be nearer than the next known passage.
            best = np.take_along_axis(passages, order, axis=1)
            nearest[some, : best.shape[1]] = np.where(np.arange(best.shape[1]) < left[some, None], best, -1)
        return nearest

    def feature_rows(self, node: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Flat positions of the edges (node[i], passage[i]) in the earlier graph, int64 [e], -1: new."""
        before_node, before_passage = self.queries[node], self.passages[passage]
        here = self.graph.edges[before_node] == before_passage[:, None]
        here &= (before_node >= 0)[:, None] & (before_passage >= 0)[:, None]
        places: np.ndarray = before_node * here.shape[1] + here.argmax(axis=1)
        return np.where(here.any(axis=1), places, -1)

    def features(self, places: np.ndarray) -> np.ndarray:
        """The earlier edge features fp32 [e, d_e] at flat positions."""
        vectors = EdgeFeatures(self.graph).vectors(places)
        assert vectors is not None, "the earlier settings had edge features, too"
        return vectors
