"""Runs and scores of pairs.

All tables name queries and passages by the dataset's int32 row numbers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts.arrays import Rows, joined, ranges
from gnn_encoder.artifacts.dataset import read_columns
from gnn_encoder.artifacts.folder import Draft, read_manifest
from gnn_encoder.artifacts.parts import part_folders

RUN, SYSTEM, PAIRS, CLS_VECTORS = "run.parquet", "system.json", "pairs.parquet", "cls_vectors.npy"
CONVEX, RECIPROCAL = "convex", "rrf"
"""Methods of fusion: values of the fact `method` of a fused run."""


@dataclass(frozen=True)
class System:
    """The system that made a run: its name in all tables, and facts about the system."""

    name: str
    facts: dict[str, Any]

    @classmethod
    def of(cls, path: str | Path) -> "System":
        """The system of a run artifact."""
        read_manifest(path, "run")
        return cls(**json.loads((Path(path) / SYSTEM).read_text("utf-8")))


@dataclass(frozen=True)
class Run:
    """A ranking: `query`, `passage` int32 [r], `rank` int32 from 1, `score` float32; sorted by query, rank."""

    query: np.ndarray
    passage: np.ndarray
    rank: np.ndarray
    score: np.ndarray

    @classmethod
    def from_hits(cls, queries: np.ndarray, passages: np.ndarray, scores: np.ndarray) -> "Run":
        """Make a run from hit lists [n, k], best first, of `queries` [n]; a passage of -1 is no hit."""
        order, (n, k) = np.argsort(queries, kind="stable"), passages.shape
        passage, score = passages[order].ravel().astype(np.int32), scores[order].ravel().astype(np.float32)
        rank = np.tile(np.arange(1, k + 1, dtype=np.int32), n)
        return cls(np.repeat(queries[order], k).astype(np.int32), passage, rank, score).where(passage >= 0)

    @classmethod
    def by_score(cls, query: np.ndarray, passage: np.ndarray, score: np.ndarray) -> "Run":
        """Make a run from scored pairs [r] in any order; equal scores keep the order of the pairs."""
        order = np.lexsort((-score, query))
        query = query[order].astype(np.int32)
        rank = np.arange(1, len(query) + 1) - np.searchsorted(query, query)
        return cls(query, passage[order].astype(np.int32), rank.astype(np.int32), score[order].astype(np.float32))

    @classmethod
    def concatenate(cls, runs: list["Run"]) -> "Run":
        """Join several runs over disjoint queries."""
        whole = cls(*(np.concatenate([getattr(run, name) for run in runs]) for name in cls.__dataclass_fields__))
        if (np.diff(whole.query) >= 0).all():
            return whole
        return whole.where(np.lexsort((whole.rank, whole.query)))

    def where(self, keep: np.ndarray | slice) -> "Run":
        """The hits at some rows, or where a mask [r] is true; they keep their ranks."""
        return Run(self.query[keep], self.passage[keep], self.rank[keep], self.score[keep])

    @classmethod
    def read(cls, path: str | Path) -> "Run":
        """Read a run artifact."""
        read_manifest(path, "run")
        return cls.in_folder(path)

    @classmethod
    def in_folder(cls, path: str | Path) -> "Run":
        """Read the files of an artifact or a draft, without a check."""
        return cls(*read_columns(Path(path) / RUN, *cls.__dataclass_fields__))

    def write(self, draft: Draft, system: str = "", **facts: Any) -> None:
        """Write a run artifact; `system` is the system's name in all tables.

        `facts` are further facts about the system, as JSON; a fused run has `method` and the names of its parts.
        """
        (draft / SYSTEM).write_text(json.dumps({"name": system, "facts": facts}), encoding="utf-8")
        columns = pa.table({name: getattr(self, name) for name in self.__dataclass_fields__})
        # Dictionaries of passages and scores would not be smaller, and take seven times as long.
        pq.write_table(columns, draft / RUN, use_dictionary=["query", "rank"])
        draft.rows(hits=len(self.query), queries=len(np.unique(self.query)))

    def of(self, queries: np.ndarray, depth: int | None = None) -> "Run":
        """The hits of some queries, those up to rank `depth`; a view if nothing between them is left out."""
        wanted = np.unique(queries)
        starts, stops = np.searchsorted(self.query, wanted), np.searchsorted(self.query, wanted, "right")
        whole = len(wanted) and np.array_equal(starts[1:], stops[:-1])
        part = self.where(slice(int(starts[0]), int(stops[-1])) if whole else ranges(starts, stops))
        if depth is None or (part.rank <= depth).all():
            return part
        return part.where(part.rank <= depth)

    def between(self, first: int, last: int) -> "Run":
        """A view of the hits of the query rows from `first` to `last`, both included."""
        start, stop = np.searchsorted(self.query, [first, last + 1])
        return self.where(slice(int(start), int(stop)))

    def reordered(self, depth: int, score: np.ndarray) -> "Run":
        """The run with each query's first `depth` hits ordered by `score` [r] of these hits; ties keep their order.

        Later hits get scores below the query's lowest `score`, one less per rank, so that their order is kept.
        """
        first, scores = self.rank <= depth, np.empty(len(self.query), dtype=np.float32)
        queries, query = np.unique(self.query[first], return_inverse=True)
        scores[first] = score
        least = np.full(len(queries), np.inf, dtype=np.float32)
        np.minimum.at(least, query, scores[first])
        # Each query has a hit at rank 1, so every query of a later hit is in `queries`.
        scores[~first] = least[np.searchsorted(queries, self.query[~first])] - (self.rank[~first] - depth)
        order = np.lexsort((self.rank, -scores, self.query))
        return Run(self.query, self.passage[order], self.rank, scores[order])

    def hits(self, queries: np.ndarray, depth: int) -> np.ndarray:
        """Passages int32 [n, depth] of `queries` [n], best first; -1: fewer passages."""
        return self.scored_hits(queries, depth)[1]

    def scored_hits(self, queries: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores fp32 [n, depth], -inf after the last hit, and `hits`."""
        scores = np.full((len(queries), depth), -np.inf, dtype=np.float32)
        out = np.full((len(queries), depth), -1, dtype=np.int32)
        order = np.argsort(queries)
        run = self.of(queries, depth)
        position = order[np.searchsorted(queries[order], run.query)]
        scores[position, run.rank - 1], out[position, run.rank - 1] = run.score, run.passage
        return scores, out


@dataclass(frozen=True)
class PairScores:
    """Cross-encoder results, one row per distinct pair, sorted by (query, passage).

    `query`, `passage` int32 [r]; `score` float32 [r]; `probability` float32 [r], the scorer's probability of relevance;
    `cls` fp16 [r, d_e], memory-mapped; of merged parts, one array over the parts' arrays.
    """

    query: np.ndarray
    passage: np.ndarray
    score: np.ndarray
    probability: np.ndarray
    cls: Rows

    @classmethod
    def read(cls, path: str | Path) -> "PairScores":
        """Read a pair_scores artifact."""
        read_manifest(path, "pair_scores")
        return cls.in_folder(path)

    @classmethod
    def in_folder(cls, path: str | Path) -> "PairScores":
        """Read the files of an artifact or a draft, without a check."""
        folders = part_folders(path)
        query, passage, score, probability = columns_of(folders, PAIRS, "query", "passage", "score", "probability")
        vectors = [np.load(folder / CLS_VECTORS, mmap_mode="r") for folder in folders]
        return cls(query, passage, score, probability, joined(vectors))

    @staticmethod
    def create_cls(draft: Draft, pairs: int, width: int) -> np.memmap:
        """Create the memory-mapped [pairs, width] fp16 array of a draft, which the scorer fills."""
        return np.lib.format.open_memmap(draft / CLS_VECTORS, mode="w+", dtype=np.float16, shape=(pairs, width))

    @staticmethod
    def write(draft: Draft, query: np.ndarray, passage: np.ndarray, score: np.ndarray, probability: np.ndarray) -> None:
        """Write the pairs with their scores and probabilities."""
        columns = {"query": query, "passage": passage, "score": score, "probability": probability.astype(np.float32)}
        pq.write_table(pa.table(columns), draft / PAIRS)
        draft.rows(pairs=len(query))

    @cached_property
    def _keys(self) -> np.ndarray:
        return pair_keys(self.query, self.passage)

    def find(self, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Row of each pair (any shape); -1: the pair was not scored."""
        return find_pairs(self._keys, query, passage)


def columns_of(folders: Sequence[Path], file: str, *names: str) -> list[np.ndarray]:
    """The columns of a table whose rows are in one or several folders."""
    parts = [read_columns(folder / file, *names) for folder in folders]
    return list(parts[0]) if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]


def pair_keys(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
    """One int64 per (query, passage) pair, ordered like the pairs."""
    return (np.asarray(query, dtype=np.int64) << 32) | np.asarray(passage, dtype=np.int64)


def find_pairs(keys: np.ndarray, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
    """Index in `keys` (`pair_keys`, ascending) of each (query, passage), int64 of the broadcast shape; -1: missing."""
    wanted = pair_keys(query, passage)
    if len(keys) == 0:
        return np.full(wanted.shape, -1, dtype=np.int64)
    rows = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[rows] == wanted, rows, -1)
