"""Chooses the queries and passages of a forecast, so that it takes minutes on a corpus of any size.

A part of a corpus is easier to search than all of it, so it hides what a better ranking would gain. Two things keep the
estimate near: the sample has the passages that BM25 finds for the queries, which are the likeliest to be ranked above a
relevant one, and each of the other passages, which are drawn by chance, counts for as many as it was drawn from. On
obliqa (13,012 passages, w = 0.3, dev: +0.056 MRR@10) samples of 5,000 passages give +0.049, but without both +0.025;
samples of 3,000 give +0.046, and +0.011. So a forecast from a sample errs on the low side.
"""

from dataclasses import dataclass

import numpy as np

from gnn_encoder.artifacts import Dataset, pair_keys
from gnn_encoder.artifacts.arrays import ranges
from gnn_encoder.artifacts.tables import find_pairs
from gnn_encoder.evaluation.measures import labelled_queries
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.settings.bm25 import IndexBm25
from gnn_encoder.tracking.progress import NewProgress

FEWEST = 200
"""Labelled dev queries from which on a forecast is of dev. Fewer say little, so it is of training queries."""
QUERIES, QUERIES_OF_SAMPLE = 2000, 500
"""Most queries of a forecast, and most if passages are drawn: all relevant passages take a place."""
DEPTH = 100
"""First hits of BM25 that may be among the passages."""


@dataclass(frozen=True)
class Sample:
    """The queries and passages of a forecast.

    split      the split of the queries: dev or train
    queries    int32 [a], dataset rows, ascending
    passages   int32 [c], dataset rows, ascending; all relevant passages of the queries are among them
    weight     float64 [c], the number of the corpus's passages that each passage stands for
    row        int64 [r], index in `queries` of each relevant pair's query, ascending
    relevant   int64 [r], index in `passages` of the pair's passage; positives of a query's twins are also positives of
               the query (`Dataset.groups`)
    same       int64 [a], index in `passages` of the passage that is the query itself, -1: none; None: none of any query
    """

    split: str
    queries: np.ndarray
    passages: np.ndarray
    weight: np.ndarray
    row: np.ndarray
    relevant: np.ndarray
    same: np.ndarray | None = None


def draw(dataset: Dataset, most: int, seed: int, progress: NewProgress) -> Sample:
    """Draws queries and passages, at most `most` of the latter (0: all) if the relevant ones are not more than half."""
    m, generator = len(dataset.passages), np.random.default_rng(seed)
    whole = not most or most >= m
    labelled = {split: labelled_queries(dataset.split_qrels(split)) for split in ("dev", "train")}
    split = "dev" if len(labelled["dev"]) >= min(FEWEST, len(labelled["train"])) else "train"
    queries = np.sort(generator.permutation(labelled[split])[: QUERIES if whole else QUERIES_OF_SAMPLE])
    row, passage = _relevant(dataset, split, queries)
    passages, weight = np.arange(m), np.ones(m)
    if not whole:
        certain = np.unique(passage)
        room = max(most // 2 - len(certain), 0)
        certain = np.concatenate([certain, _bm25_hits(dataset, queries, certain, room, progress)])
        others = np.setdiff1d(passages, certain)
        drawn = generator.permutation(others)[: max(most - len(certain), most // 4)]
        weight = np.concatenate([np.ones(len(certain)), np.full(len(drawn), len(others) / max(len(drawn), 1))])
        passages = np.concatenate([certain, drawn])
        order = np.argsort(passages)
        passages, weight = passages[order], weight[order]
    same = find_pairs(passages, np.zeros(len(queries)), dataset.identical[queries])
    return Sample(split, queries, passages.astype(np.int32), weight, row, np.searchsorted(passages, passage), same)


def _bm25_hits(
    dataset: Dataset, queries: np.ndarray, without: np.ndarray, count: int, progress: NewProgress
) -> np.ndarray:
    """Returns `count` first hits of BM25, of the lowest ranks in any query, and none of the passages in `without`."""
    index = Bm25.build(dataset.passages, IndexBm25(), progress("BM25", len(dataset.passages), "passages"))
    _, hits = index.search(dataset.query_texts(queries), min(DEPTH, len(dataset.passages)))
    by_rank = hits.T.ravel()
    distinct, first = np.unique(by_rank, return_index=True)
    new = (distinct >= 0) & ~np.isin(distinct, without)
    chosen: np.ndarray = by_rank[np.sort(first[new])[:count]]
    return chosen


def _relevant(dataset: Dataset, split: str, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the relevant pairs [r]: index in `queries`, and dataset row of the passage."""
    labels = dataset.split_qrels(split).positive()
    keys = np.unique(pair_keys(dataset.groups[labels.query], labels.passage))
    first = pair_keys(dataset.groups[queries], np.zeros_like(queries))
    starts, stops = np.searchsorted(keys, first), np.searchsorted(keys, first + (1 << 32))
    return np.repeat(np.arange(len(queries)), stops - starts), keys[ranges(starts, stops)] & 0xFFFFFFFF
