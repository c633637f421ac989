"""An earlier run's graph and M_de's vectors, from which the next one's are carried over.

Passages and queries are found again by the digests of their texts (`gnn_encoder.update.changes`).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Contents, Graph, read_manifest, read_rows, read_vectors
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.retrieval import exact
from gnn_encoder.update.changes import find

CHUNK = 512
"""Queries whose passages' vectors are in memory together."""


@dataclass(frozen=True)
class FormerGraph:
    """The earlier graph as today's rows see it.

    `queries` int64 [n] and `passages` int64 [m]: the earlier row of today's queries and passages, -1 where new.
    `today` int64 [m']: today's row of the earlier passages, -1 where gone. `vectors` [m', d], `asked` [n', d]: M_de's
    vectors of the earlier passages and queries (None from a version that kept no queries'). `same_features`: its edges'
    features are what today's cross-encoder and settings would make.
    """

    graph: Graph
    vectors: np.ndarray
    asked: np.ndarray | None
    queries: np.ndarray
    passages: np.ndarray
    today: np.ndarray
    same_features: bool

    @classmethod
    def read(
        cls, folder: Path, retriever: dict[str, str], scorer: dict[str, str], queries: np.ndarray, passages: np.ndarray
    ) -> "FormerGraph | None":
        """What lies in `folder`, or None where another dual encoder made it.

        Args:
            retriever, scorer: digests of the dual encoder and of the cross-encoder, with their precision.
            queries: digests of the texts of the graph's queries [n, 2]. passages: of all passages [m, 2].
        """
        vectors, graph = folder / "passage_vectors", folder / "graph"
        of_passages, of_queries = Contents.read(vectors), Contents.read(graph)
        if of_passages.models != retriever:
            return None
        before = of_passages.digests["texts"]
        asked = read_rows(vectors, "queries") if "queries" in read_manifest(vectors).rows else None
        return cls(
            Graph.read(graph),
            read_vectors(vectors),
            asked,
            find(of_queries.digests["queries"], queries),
            find(before, passages),
            find(passages, before),
            of_queries.models == scorer,
        )

    def search(self, vectors: np.ndarray, asked: np.ndarray, k: int, needed: int) -> np.ndarray:
        """What `exact.search(vectors, asked, k)` finds, int32 [n, k]: new passages are compared with all queries,
        all passages with new queries alone.

        A known query whose passages have partly gone is not searched again while at least `needed` are left:
        then its row ends in -1 where a passage unknown here may follow.
        """
        found = np.full((len(asked), k), -1, np.int32)
        retrieved = self.graph.retrieved
        stored = np.empty((len(self.graph.queries), 0), np.int32) if retrieved is None else retrieved[:, :k]
        kept = np.where(stored >= 0, self.today[stored], -1)[self.queries].astype(np.int32)
        left = (kept >= 0).sum(axis=1)
        # Two passages of one text are one by digest: such a list is not to be trusted.
        ordered = np.sort(kept, axis=1)
        twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)
        known = (self.queries >= 0) & ~twice & (left >= min(needed, len(vectors)))
        found[~known] = exact.search(vectors, asked[~known], k)[1]
        added = np.setdiff1d(np.arange(len(vectors)), self.today).astype(np.int32)
        rows = np.flatnonzero(known)
        scores, fresh = exact.search(vectors[added], asked[rows], min(k, len(added)))
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            some, old = rows[part], kept[rows[part]]
            of_old = np.einsum("qd,qkd->qk", asked[some], vectors[old])
            both = np.concatenate([np.where(old >= 0, of_old, -np.inf), scores[part]], axis=1)
            passages = np.concatenate([old, added[fresh[part]]], axis=1)
            order = np.lexsort((passages, -both), axis=1)[:, :k]
            # Beyond as many as are left, one that was never retrieved may come before the next of these.
            best = np.take_along_axis(passages, order, axis=1)
            found[some, : best.shape[1]] = np.where(np.arange(best.shape[1]) < left[some, None], best, -1)
        return found

    def feature_rows(self, node: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Flat place of the edges (node[i], passage[i]) in the earlier edge features, int64 [e], -1 where new."""
        before_node, before_passage = self.queries[node], self.passages[passage]
        here = self.graph.edges[before_node] == before_passage[:, None]
        here &= (before_node >= 0)[:, None] & (before_passage >= 0)[:, None]
        places: np.ndarray = before_node * here.shape[1] + here.argmax(axis=1)
        return np.where(here.any(axis=1), places, -1)

    def features(self, places: np.ndarray) -> np.ndarray:
        """Edge features fp32 [e, d_e] at flat places."""
        vectors = EdgeFeatures(self.graph).vectors(places)
        assert vectors is not None, "the same features were wanted then"
        return vectors
