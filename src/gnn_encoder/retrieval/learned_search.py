"""Searches a bundle by a learned fusion: the candidates of all parts in the fusion's order.

Behind the candidates follow the other hits of the untouched hybrid, dense + BM25, so that no depth is lost.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnn_encoder.artifacts import Bundle, Run, pair_keys
from gnn_encoder.artifacts.parts_folder import ADAPTER, FIELD, LENGTHS
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.fusion import DEPTH, UNTUNED, convex
from gnn_encoder.retrieval.hits import Hits
from gnn_encoder.retrieval.identical import run_by
from gnn_encoder.retrieval.label_field import LabelField
from gnn_encoder.retrieval.learned_fusion import Alone, Fusion, read_fusion
from gnn_encoder.retrieval.parts import FEATURES, Parts
from gnn_encoder.retrieval.query_index import open_query_index

QUERIES, THREADS = 400, 2
"""Queries with all candidates in memory at a time in each thread. Half of the time is FAISS's and NumPy's, which let
another thread run."""


@dataclass(frozen=True)
class LearnedSearch:
    """The parts of a bundle, and the fusion that orders their candidates."""

    parts: Parts
    fusion: Fusion

    @classmethod
    def read(cls, bundle: Bundle, vectors: np.ndarray, search: Callable[..., Hits]) -> "LearnedSearch":
        """Opens a bundle's parts; `search` is as in `Parts`. Labels that were added count in memory and field.

        Raises:
            UserError: the bundle has no BM25 index, no labelled queries, or a fusion of other features.
        """
        folder, labelled = bundle.fusion_path, bundle.labelled
        if folder is None or labelled is None or bundle.bm25_path is None:
            raise UserError(f"{bundle.path} lacks a part of its fusion: run fuse_parts again")
        words, field = Bm25.load(bundle.bm25_path), LabelField.read(folder / FIELD)

        def texts(rows: np.ndarray) -> list[str]:
            return labelled.names(rows)[1]

        if pairs := labelled.changed:
            field = field.changed(words, bundle.passages, labelled.queries, texts, pairs.passages)
        parts = Parts(
            vectors=vectors,
            of=bundle.stored_vector_passages,
            search=search,
            words=words,
            passages=bundle.passages,
            labels=labelled.queries,
            texts=texts,
            field=field,
            adapter=np.load(folder / ADAPTER),
            lengths=np.load(folder / LENGTHS, mmap_mode="r"),
            query_index=open_query_index(labelled.queries, labelled.folder),
        )
        return cls(parts, read_fusion(folder, FEATURES))

    @property
    def reads_vectors(self) -> bool:
        """Whether a query's vector counts: BM25 with labels reads its words alone."""
        return not (isinstance(self.fusion, Alone) and self.fusion.feature == "labelled")

    def run(
        self,
        queries: np.ndarray,
        questions: Sequence[str],
        vectors: np.ndarray,
        k: int,
        left_out: np.ndarray | None = None,
        only: Selection | None = None,
    ) -> Run:
        """The best `k` passages of many queries, `QUERIES` at a time.

        Args:
            queries: row numbers [n] for the run. questions: their texts [n]. vectors: their vectors [n, d].
            left_out: passage row [n] that is no hit of each query; -1: none.
            only: passages that may be hits; None: all.
        """
        if len(queries) > QUERIES:

            def of_block(start: int) -> Run:
                some = slice(start, start + QUERIES)
                out = None if left_out is None else left_out[some]
                return self.run(queries[some], questions[some], vectors[some], k, out, only)

            with ThreadPoolExecutor(THREADS) as threads:
                return Run.concatenate(list(threads.map(of_block, range(0, len(queries), QUERIES))))
        passages = len(only.rows) if only else len(self.parts.lengths)
        if isinstance(self.fusion, Alone):
            if self.fusion.feature == "adapted":
                adapted = vectors @ self.parts.adapter
                search: Callable[[int], Hits] = partial(self.parts.nearest_passages, adapted, only=only)
            else:
                search = partial(self.parts.by_labelled_words, questions, only=only)
            return run_by(search, np.asarray(queries, np.int32), left_out, min(k, passages))
        candidates = self.parts.candidates(questions, vectors, left_out, only)
        question, passage, score = candidates.query, candidates.passage, self.fusion.scores(candidates.features)
        order = np.lexsort((passage, -score, question))
        question, passage, score = question[order], passage[order], score[order]
        sizes = np.diff(candidates.starts)
        if min(k, passages) > sizes.min(initial=k):
            more, others, hybrid = self._behind(questions, vectors, pair_keys(question, passage), k, left_out, only)
            lowest = np.full(len(queries), np.inf, np.float32)
            np.minimum.at(lowest, question, score)
            lowest[~sizes.astype(bool)] = 0
            question, passage = np.concatenate([question, more]), np.concatenate([passage, others])
            score = np.concatenate([score, lowest[more] - 2 + hybrid])
            order = np.argsort(question, kind="stable")  # both lists are ordered already
            question, passage, score = question[order], passage[order], score[order]
        rank = 1 + np.arange(len(question)) - np.searchsorted(question, question)
        kept = rank <= k
        rows = np.asarray(queries, np.int32)[question[kept]]
        hits = passage[kept].astype(np.int32), rank[kept].astype(np.int32), score[kept].astype(np.float32)
        return Run.concatenate([Run(rows, *hits)])  # sorted by query, in whatever order they were asked

    def _behind(
        self,
        questions: Sequence[str],
        vectors: np.ndarray,
        candidates: np.ndarray,
        k: int,
        left_out: np.ndarray | None,
        only: Selection | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the hybrid's hits [h] that are no candidates: places of queries, passages, and scores from 0 to 1."""
        passages = len(only.rows) if only else len(self.parts.lengths)
        depth = min(DEPTH if k <= DEPTH else k + 1, passages)  # one more, as `left_out` may be among them
        rows = np.arange(len(questions), dtype=np.int32)
        parts = [
            self.parts.words.search(questions, depth, only=only),
            self.parts.nearest_passages(vectors, depth, only),
        ]
        lexical, dense = (Run.from_hits(rows, passages, scores) for scores, passages in parts)
        hybrid = convex(lexical, dense, UNTUNED, 2 * depth)
        kept = ~np.isin(pair_keys(hybrid.query, hybrid.passage), candidates)
        if left_out is not None:
            kept &= hybrid.passage != left_out[hybrid.query]
        return hybrid.query[kept], hybrid.passage[kept], hybrid.score[kept]
