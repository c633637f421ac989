"""The artifacts between ingestion and training: runs, pair scores, generated queries, examples; known positives.

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
from gnn_encoder.artifacts.dataset import Dataset, Qrels, read_columns
from gnn_encoder.artifacts.folder import Draft, read_manifest
from gnn_encoder.artifacts.parts import part_folders

RUN, SYSTEM, PAIRS, CLS_VECTORS = "run.parquet", "system.json", "pairs.parquet", "cls_vectors.npy"
GENERATED, TRIPLES, EXAMPLES = "generated.parquet", "triples.parquet", "examples.parquet"
CONVEX, RECIPROCAL = "convex", "rrf"
"""Methods of fusion: values of the fact `method` of a fused run."""
ORIGINS = ("labelled", "denoised", "selected", "generated")
"""Origins of training examples."""
NONE = np.empty(0, dtype=np.int32)


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
        return cls(np.repeat(queries[order], k).astype(np.int32), passage, rank, score)._part(passage >= 0)

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
        return whole._part(np.lexsort((whole.rank, whole.query)))

    def where(self, keep: np.ndarray) -> "Run":
        """The hits where a mask [r] is true; they keep their ranks."""
        return self._part(keep)

    def _part(self, rows: np.ndarray | slice) -> "Run":
        return Run(self.query[rows], self.passage[rows], self.rank[rows], self.score[rows])

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
        part = self._part(slice(int(starts[0]), int(stops[-1])) if whole else ranges(starts, stops))
        if depth is None or (part.rank <= depth).all():
            return part
        return part.where(part.rank <= depth)

    def between(self, first: int, last: int) -> "Run":
        """A view of the hits of the query rows from `first` to `last`, both included."""
        start, stop = np.searchsorted(self.query, [first, last + 1])
        return self._part(slice(int(start), int(stop)))

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
        query, passage, score, probability = _columns(folders, PAIRS, "query", "passage", "score", "probability")
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


def _columns(folders: Sequence[Path], file: str, *names: str) -> list[np.ndarray]:
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


class KnownPositives:
    """The (query, passage) pairs that training knows as positives: labelled, or denoised by the cross-encoder.

    A positive of a query is also a positive of the query's twins (`Dataset.groups`). Otherwise a model would learn for
    queries with the same meaning both that a passage is relevant and that the passage is not relevant. For the same
    reason a copy of a positive is a positive, too (`Dataset.passage_groups`). The passage that is the query itself
    (`Dataset.identical`) is among the pairs, so that it is no negative of the query.

    `query`, `passage` are dataset rows [r]. Rows with query -1 are ignored: a generated query shares no positive.
    `groups` int [n] is the group of every query of the dataset, `passage_groups` int [m] that of every passage; None:
    each is alone in its group.
    """

    def __init__(
        self,
        query: np.ndarray,
        passage: np.ndarray,
        groups: np.ndarray | None = None,
        passage_groups: np.ndarray | None = None,
    ) -> None:
        self._groups, self._passage_groups = groups, passage_groups
        in_dataset = query >= 0
        self._keys = np.unique(pair_keys(self._group(query[in_dataset]), self._text(passage[in_dataset])))

    @classmethod
    def of(cls, dataset: Dataset, split: str, query: np.ndarray = NONE, passage: np.ndarray = NONE) -> "KnownPositives":
        """The labelled positives of a split, and further pairs [r], such as the pairs of training examples."""
        labels, same = dataset.split_qrels(split).positive(), dataset.identical
        alike = np.flatnonzero(same >= 0)
        of_queries, of_passages = (labels.query, alike, query), (labels.passage, same[alike], passage)
        pairs = np.concatenate(of_queries), np.concatenate(of_passages)
        return cls(*pairs, dataset.groups, dataset.passage_groups)

    def _group(self, query: np.ndarray) -> np.ndarray:
        return query if self._groups is None else np.where(query >= 0, self._groups[query], -1)

    def _text(self, passage: np.ndarray) -> np.ndarray:
        return passage if self._passage_groups is None else np.where(passage >= 0, self._passage_groups[passage], -1)

    def contains(self, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """Whether each (query, passage) is a known positive, bool of the broadcast shape."""
        return find_pairs(self._keys, self._group(query), self._text(passage)) >= 0

    def excluded(self, query: np.ndarray, passages: np.ndarray, positive: np.ndarray) -> np.ndarray:
        """Pairs int64 [2, x] of indices (query, passage) in the batch that are no negatives: known positives and copies
        of the query's positive, but not this positive itself.

        `query` [b] are dataset rows; -1: a generated query, which has only one positive. `passages` [c] are distinct
        dataset rows, ascending. `positive` [b] are indices into `passages`.
        """
        text = self._text(passages)
        order = np.argsort(text, kind="stable")
        first = pair_keys(self._group(query), np.zeros_like(query))
        starts, stops = np.searchsorted(self._keys, first), np.searchsorted(self._keys, first + (1 << 32))
        row, known = np.repeat(np.arange(len(query)), stops - starts), self._keys[ranges(starts, stops)] & 0xFFFFFFFF
        if self._passage_groups is not None:
            generated = np.flatnonzero(query < 0)
            row, known = np.append(row, generated), np.append(known, text[positive[generated]])
        starts, stops = (np.searchsorted(text, known, side, sorter=order) for side in ("left", "right"))
        row, column = np.repeat(row, stops - starts), order[ranges(starts, stops)]
        others = column != positive[row]
        return np.stack([row[others], column[others]])


def warm_labels(dataset: Dataset, split: str) -> tuple[Qrels, np.ndarray]:
    """The positive labels of a split [r], and which of them are warm, bool [r].

    A label is warm if another query, one of train, has a positive label of its passage. A twin of the query does not
    count, because it leaves the graph together with the query.
    """
    labels, train = dataset.split_qrels(split).positive(), dataset.split_qrels("train").positive()
    asking = np.unique(pair_keys(dataset.groups[train.query], train.passage)) & 0xFFFFFFFF
    groups = np.bincount(asking, minlength=len(dataset.passages))
    return labels, groups[labels.passage] > (split == "train")


@dataclass(frozen=True)
class GeneratedQueries:
    """One generated query per distinct negative: `passage` int32 [g], ascending, and `text` [g].

    Triples: `query`, `negative` int32 [t], `similarity` float32 [t], the cosine of query and generated query.
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
        return cls.in_folder(path)

    @classmethod
    def in_folder(cls, path: str | Path) -> "GeneratedQueries":
        """Read the files of an artifact or a draft, without a check."""
        folders = part_folders(path)
        (passage,) = _columns(folders, GENERATED, "passage")
        tables = (pq.read_table(folder / GENERATED, columns=["text"]) for folder in folders)
        texts = [text for table in tables for text in table.column(0).to_pylist()]
        triples = _columns(folders, TRIPLES, "query", "negative", "similarity")
        if len(folders) > 1:
            order, (position,) = np.argsort(passage), _columns(folders, TRIPLES, "place")
            passage, texts = passage[order], [texts[row] for row in order]
            triples = [column[np.argsort(position)] for column in triples]
        return cls(passage, texts, *triples)

    def write(self, draft: Draft, position: np.ndarray | None = None) -> None:
        """Write a generated_queries artifact. `position` int64 [t]: a part's triples among the triples of all parts."""
        pq.write_table(pa.table({"passage": self.passage, "text": self.text}), draft / GENERATED)
        columns = {"query": self.query, "negative": self.negative, "similarity": self.similarity}
        columns |= {} if position is None else {"place": position}
        pq.write_table(pa.table(columns), draft / TRIPLES)
        draft.rows(generated=len(self.text), triples=len(self.query))


@dataclass(frozen=True)
class TrainingSet:
    """Examples: `query_text` [e], `query` int32 [e] (-1: generated, not in the dataset), `positive` int32 [e],
    `negatives` int32 [e, s] (-1: fewer negatives), `origin` int8 [e] (index into `ORIGINS`)."""

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
        query, positive, origin = (table.column(name).to_numpy() for name in ("query", "positive", "origin"))
        negatives = table.column("negatives").combine_chunks().flatten().to_numpy().reshape(len(table), -1)
        return cls(table.column("query_text").to_pylist(), query, positive, negatives, origin)

    def take(self, rows: np.ndarray) -> "TrainingSet":
        """The examples at `rows`, in the order of `rows`."""
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
