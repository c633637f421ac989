"""The artifacts between ingestion and training: runs, pair scores, generated queries, examples.

All of them name queries and passages by int32 row number of the dataset.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gnn_encoder.artifacts.folder import Draft, read_manifest

RUN, SYSTEM, PAIRS, CLS_VECTORS, GENERATED, TRIPLES, EXAMPLES = (
    "run.parquet",
    "system.json",
    "pairs.parquet",
    "cls_vectors.npy",
    "generated.parquet",
    "triples.parquet",
    "examples.parquet",
)
CONVEX, RECIPROCAL = "convex", "rrf"
"""Methods of fusion: a fused run's fact `method`."""
ORIGINS = ("labelled", "denoised", "selected", "generated")
"""Where a training example comes from."""


@dataclass(frozen=True)
class System:
    """The system that a run is of: its name in every table, and facts about it."""

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
        """From hit lists [n, k], best first, of `queries` [n]; a passage of -1 is no hit."""
        order = np.argsort(queries, kind="stable")
        queries, passages, scores = queries[order], passages[order], scores[order]
        n, k = passages.shape
        keep = passages.ravel() >= 0
        columns = (np.repeat(queries, k), passages.ravel(), np.tile(np.arange(1, k + 1), n), scores.ravel())
        types = (np.int32, np.int32, np.int32, np.float32)
        return cls(*(c[keep].astype(t) for c, t in zip(columns, types, strict=True)))

    @classmethod
    def concatenate(cls, runs: list["Run"]) -> "Run":
        """One run of several over disjoint queries."""
        columns = [np.concatenate([getattr(run, name) for run in runs]) for name in cls.__dataclass_fields__]
        order = np.lexsort((columns[2], columns[0]))
        return cls(*(column[order] for column in columns))

    @classmethod
    def read(cls, path: str | Path) -> "Run":
        """Read a run artifact."""
        read_manifest(path, "run")
        table = pq.read_table(Path(path) / RUN)
        return cls(*(table.column(name).to_numpy() for name in cls.__dataclass_fields__))

    def write(self, draft: Draft, system: str = "", **facts: Any) -> None:
        """Write a run artifact.

        Args:
            draft: the artifact to be.
            system: name of the system that made the ranking, as every table shows it.
            facts: what a reader must know about the system, as JSON; a fused run has `method` and its parts' names.
        """
        (draft / SYSTEM).write_text(json.dumps({"name": system, "facts": facts}), encoding="utf-8")
        pq.write_table(pa.table({name: getattr(self, name) for name in self.__dataclass_fields__}), draft / RUN)
        draft.rows(hits=len(self.query), queries=len(np.unique(self.query)))

    def of(self, queries: np.ndarray, depth: int | None = None) -> "Run":
        """The hits of some queries, at most `depth` each."""
        keep = np.isin(self.query, queries)
        if depth is not None:
            keep &= self.rank <= depth
        return Run(self.query[keep], self.passage[keep], self.rank[keep], self.score[keep])

    def between(self, first: int, last: int) -> "Run":
        """The hits of the queries with rows from `first` to `last`: a view."""
        start, stop = np.searchsorted(self.query, [first, last + 1])
        part = slice(int(start), int(stop))
        return Run(self.query[part], self.passage[part], self.rank[part], self.score[part])

    def hits(self, queries: np.ndarray, depth: int) -> np.ndarray:
        """Passages [n, depth] of `queries` [n], best first, int32, -1 where there are fewer."""
        out = np.full((len(queries), depth), -1, dtype=np.int32)
        order = np.argsort(queries)
        run = self.of(queries, depth)
        position = order[np.searchsorted(queries[order], run.query)]
        out[position, run.rank - 1] = run.passage
        return out


@dataclass(frozen=True)
class PairScores:
    """Cross-encoder results, one row per distinct pair, sorted by (query, passage).

    `query`, `passage` int32 [r]; `score` float32 [r]; `probability` float32 [r] of relevance, as the scorer gives it;
    `cls` fp16 [r, d_e], memory-mapped.
    """

    query: np.ndarray
    passage: np.ndarray
    score: np.ndarray
    probability: np.ndarray
    cls: np.ndarray

    @classmethod
    def read(cls, path: str | Path) -> "PairScores":
        """Read a pair_scores artifact."""
        read_manifest(path, "pair_scores")
        table = pq.read_table(Path(path) / PAIRS)
        names = ("query", "passage", "score", "probability")
        query, passage, score, probability = (table.column(name).to_numpy() for name in names)
        return cls(query, passage, score, probability, np.load(Path(path) / CLS_VECTORS, mmap_mode="r"))

    @staticmethod
    def create_cls(draft: Draft, pairs: int, width: int) -> np.memmap:
        """The memory-mapped [pairs, width] fp16 array of a draft, to be filled by the scorer."""
        return np.lib.format.open_memmap(draft / CLS_VECTORS, mode="w+", dtype=np.float16, shape=(pairs, width))

    @staticmethod
    def write(draft: Draft, query: np.ndarray, passage: np.ndarray, score: np.ndarray, probability: np.ndarray) -> None:
        """Write the pairs beside the vectors."""
        columns = {"query": query, "passage": passage, "score": score, "probability": probability.astype(np.float32)}
        pq.write_table(pa.table(columns), draft / PAIRS)
        draft.rows(pairs=len(query))

    @cached_property
    def _keys(self) -> np.ndarray:
        return pair_keys(self.query, self.passage)

    def find(self, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Row of each pair (any shape), -1 where the pair was not scored."""
        return find_pairs(self._keys, query, passage)


def pair_keys(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
    """One int64 per (query, passage) pair, ordered like the pairs."""
    return (np.asarray(query, dtype=np.int64) << 32) | np.asarray(passage, dtype=np.int64)


def find_pairs(keys: np.ndarray, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
    """Place in `keys` (of `pair_keys`, ascending) of each (query, passage), int64 of the broadcast shape, or -1."""
    wanted = pair_keys(query, passage)
    if len(keys) == 0:
        return np.full(wanted.shape, -1, dtype=np.int64)
    rows = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[rows] == wanted, rows, -1)


@dataclass(frozen=True)
class GeneratedQueries:
    """One generated query per distinct negative, and how alike it is to the queries it is a negative of.

    `passage` int32 [g], ascending, and `text` [g]; triples: `query`, `negative` int32 [t] and
    `similarity` float32 [t], the cosine of query and generated query.
    """

    passage: np.ndarray
    text: list[str]
    query: np.ndarray
    negative: np.ndarray
    similarity: np.ndarray

    @classmethod
    def read(cls, path: str | Path) -> "GeneratedQueries":
        """Read a generated_queries artifact."""
        read_manifest(path, "generated_queries")
        texts = pq.read_table(Path(path) / GENERATED)
        triples = pq.read_table(Path(path) / TRIPLES)
        return cls(
            texts.column("passage").to_numpy(),
            texts.column("text").to_pylist(),
            *(triples.column(name).to_numpy() for name in ("query", "negative", "similarity")),
        )

    def write(self, draft: Draft) -> None:
        """Write a generated_queries artifact."""
        pq.write_table(pa.table({"passage": self.passage, "text": self.text}), draft / GENERATED)
        columns = {"query": self.query, "negative": self.negative, "similarity": self.similarity}
        pq.write_table(pa.table(columns), draft / TRIPLES)
        draft.rows(generated=len(self.text), triples=len(self.query))


@dataclass(frozen=True)
class TrainingSet:
    """Examples: `query_text` [e], `query` int32 [e] (-1: generated, in no dataset), `positive` int32 [e],
    `negatives` int32 [e, s] (-1: fewer), `origin` int8 [e] (index into `ORIGINS`)."""

    query_text: list[str]
    query: np.ndarray
    positive: np.ndarray
    negatives: np.ndarray
    origin: np.ndarray

    @classmethod
    def read(cls, path: str | Path) -> "TrainingSet":
        """Read a training_set artifact."""
        read_manifest(path, "training_set")
        table = pq.read_table(Path(path) / EXAMPLES)
        negatives = table.column("negatives").combine_chunks()
        return cls(
            table.column("query_text").to_pylist(),
            table.column("query").to_numpy(),
            table.column("positive").to_numpy(),
            negatives.flatten().to_numpy().reshape(len(table), -1),
            table.column("origin").to_numpy(),
        )

    def take(self, rows: np.ndarray) -> "TrainingSet":
        """The examples at `rows`, in that order."""
        columns = (self.query, self.positive, self.negatives, self.origin)
        return TrainingSet([self.query_text[row] for row in rows], *(column[rows] for column in columns))

    def write(self, draft: Draft) -> None:
        """Write a training_set artifact."""
        width = self.negatives.shape[1]
        negatives = pa.FixedSizeListArray.from_arrays(pa.array(self.negatives.ravel(), pa.int32()), width)
        columns = {
            "query_text": pa.array(self.query_text, pa.string()),
            "query": self.query,
            "positive": self.positive,
            "negatives": negatives,
            "origin": self.origin,
            "origin_name": pa.array([ORIGINS[o] for o in self.origin], pa.string()),
        }
        pq.write_table(pa.table(columns), draft / EXAMPLES)
        draft.rows(examples=len(self.query_text))
