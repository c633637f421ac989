"""First-stage rankings: searches every split, measures on dev, merges several rankings into candidates."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, KnownPositives, Run, pair_keys
from gnn_encoder.retrieval.best_vectors import first_of_each
from gnn_encoder.retrieval.hits import Hits, merge, no_hits
from gnn_encoder.retrieval.identical import search_without

CHANCE = 16
"""Negatives by chance of a query that has no other."""
MERGED = 4096
"""Queries whose hits of two runs are merged at a time."""
Search = Callable[[np.ndarray, int], Hits]
"""(query rows [n], k) → hits."""


def searched_queries(
    dataset: Dataset, share: Callable[[int], slice] | None = None, evaluated: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the queries that are trained on, and of dev and test.

    Args:
        share: of so many rows, those that a task searches; None: all.
        evaluated: the rows of dev and test; None: all.
    """
    train = dataset.trained
    if evaluated is None:
        evaluated = np.concatenate([dataset.query_rows("dev"), dataset.query_rows("test")])
    return (train, evaluated) if share is None else (train[share(len(train))], evaluated[share(len(evaluated))])


def search_splits(
    dataset: Dataset,
    search: Search,
    *,
    train_depth: int,
    eval_depth: int,
    share: Callable[[int], slice] | None = None,
    evaluated: np.ndarray | None = None,
) -> Run:
    """Searches the `searched_queries` and returns one run: `train_depth` hits for those of train, `eval_depth` hits for
    dev and test.

    Queries of a depth of 0 are not searched. `share`, `evaluated`: see `searched_queries`.
    """
    runs = []
    for queries, depth in zip(searched_queries(dataset, share, evaluated), (train_depth, eval_depth), strict=True):
        if not depth:
            continue
        scores, passages = search(queries, min(depth, len(dataset.passages)))
        runs.append(Run.from_hits(queries, passages, scores))
    return Run.concatenate(runs)


def leaving_out(dataset: Dataset, search: Search) -> Search:
    """Returns a search that leaves out of each query's hits the passage that is the query itself."""

    def search_others(queries: np.ndarray, k: int) -> Hits:
        return search_without(lambda depth: search(queries, depth), dataset.identical[queries], k)

    return search_others


def join_runs(dataset: Dataset, parts: Sequence[Path], *, train_depth: int, eval_depth: int) -> Run:
    """Returns the run of all hits of run artifacts over different passages, or over different queries.

    Hits with equal scores are ordered by passage row, as in `exact.search` and `Bm25.search`, so that the run is that
    of one search. One part is in memory at a time.
    """

    def best(queries: np.ndarray, k: int) -> Hits:
        scores, rows = no_hits(len(queries), k)
        for part in parts:
            more_scores, more_rows = Run.read(part).scored_hits(queries, k)
            for start in range(0, len(queries), MERGED):
                some = slice(start, start + MERGED)
                scores[some], rows[some] = merge(scores[some], rows[some], more_scores[some], more_rows[some])
        return scores, rows

    return search_splits(dataset, best, train_depth=train_depth, eval_depth=eval_depth)


def dev_figures(dataset: Dataset, run: Run) -> dict[str, float]:
    """R@100 and MRR@10 of a run, averaged over the dev queries with a positive; empty without such queries."""
    labels = dataset.judged("dev").positive()
    queries, positives = np.unique(labels.query, return_counts=True)
    if len(queries) == 0:
        return {}
    hits = run.hits(queries, 100)
    relevant = np.isin(pair_keys(queries[:, None], hits), pair_keys(labels.query, labels.passage))
    reciprocal = np.where(relevant[:, :10].any(axis=1), 1.0 / (relevant.argmax(axis=1) + 1), 0.0)
    return {"dev/R_at_100": float((relevant.sum(axis=1) / positives).mean()), "dev/RR_at_10": float(reciprocal.mean())}


def negative_pool(dataset: Dataset, runs: list[Run], depth: int) -> np.ndarray:
    """The negatives of each of `dataset.trained_labels`, int32 [e, depth]: the query's first `depth` candidates without
    its positives, which become -1; `chance_negatives` for a query that has none."""
    queries, row = np.unique(dataset.trained_labels.query, return_inverse=True)
    pool = merge_candidates(runs, queries, depth)
    known = KnownPositives.of(dataset, "train")
    pool = np.where(known.contains(queries[:, None], pool), -1, pool)
    without = ~(pool >= 0).any(axis=1)
    pool[without] = chance_negatives(dataset, known, queries[without], depth)
    return pool[row]


def chance_negatives(dataset: Dataset, known: KnownPositives, queries: np.ndarray, width: int) -> np.ndarray:
    """At most `CHANCE` passages, int32 [n, width], that are no known positive of `queries` [n]; -1: no more.

    For queries of which a first stage found positives alone, or nothing, as BM25 does without a common word: a training
    on pairs would leave them out, or see no negative at all. The draw is the same for all steps.
    """
    drawn, m = np.full((len(queries), width), -1, np.int32), len(dataset.passages)
    for row, query in enumerate(queries.tolist()):
        generator = np.random.default_rng(query)
        some = generator.permutation(m) if m <= 4 * CHANCE else generator.integers(m, size=4 * CHANCE)
        some = np.array(list(dict.fromkeys(some.tolist())))
        negatives = some[~known.contains(np.array(query), some)][: min(CHANCE, width)]
        drawn[row, : len(negatives)] = negatives
    return drawn


def merge_candidates(runs: list[Run], queries: np.ndarray, depth: int) -> np.ndarray:
    """The first `depth` distinct passages [n, depth] of `queries` [n]; -1: fewer passages.

    Hits are ordered by rank, then by the order of `runs`, so that each run contributes its best hits.
    """
    width = len(runs) * depth
    merged = np.stack([run.hits(queries, depth) for run in runs], axis=2).reshape(len(queries), width)
    row, column, rank, _ = first_of_each(merged, depth)
    passages = np.full((len(queries), depth), -1, merged.dtype)
    passages[row, rank] = merged[row, column]
    return passages
