"""The measures of CLEF-IP that trec_eval lacks: PRES, MAP(D) and PREC(D). Each is a few array operations per ranking.

Measures of the track: Piroi, Lupu and Hanbury, Overview of CLEF-IP 2013 Lab, CLEF 2013.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Qrels, Run
from gnn_encoder.artifacts.tables import find_pairs, pair_keys


def pres(run: Run, qrels: Qrels, queries: np.ndarray, k: int, level: int = 1) -> np.ndarray:
    """Returns PRES@k of each query, float64 [n] (Magdy and Jones, SIGIR 2010; k is their N_max).

    PRES = 1 − (Σ r_i / n − (n + 1) / 2) / N_max, over the ranks r_i of the n relevant entries. The user looks at N_max
    entries. A relevant one that is not among them counts as retrieved just behind: the i-th relevant one, in the order
    of the ranking, at rank N_max + i. So PRES is 1 if all relevant entries are first, 0 if none is among the first
    N_max, and, with recall R = R@N_max, between n R² / N_max and R. A query without a relevant entry gets 0.

    Args:
        run: the ranking of passages or documents in the order to measure (`in_trec_order`).
        qrels: the labels; `level` is the lowest relevant one.
        queries: [n] row numbers, each once.
    """
    counter = QueryCounter(queries)
    relevant = _relevant(qrels, counter, level)
    hit = (run.rank <= k) & (find_pairs(relevant, run.query, run.passage) >= 0)
    n = counter.count(relevant >> 32)
    retrieved, ranks = counter.count(run.query[hit]), counter.count(run.query[hit], run.rank[hit])
    missing = n - retrieved
    ranks += missing * (k + n) - missing * (missing - 1) / 2  # the ranks k + retrieved + 1 … k + n
    divisor = np.maximum(n, 1)
    return np.where(n > 0, 1 - (ranks / divisor - (n + 1) / 2) / k, 0.0)


def within_documents(
    run: Run, qrels: Qrels, queries: np.ndarray, document: np.ndarray, k: int = 0, level: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Returns MAP(D) and PREC(D) of each query, float64 [n] each: how well a ranking orders the passages of a document.

    Of a relevant document D of the query, only D's own passages are looked at, in the order of the ranking.
    AP(D) = Σ_j precision at the j-th retrieved passage of D, over the relevant ones / number of D's relevant passages.
    Precision(D) = relevant ones among D's retrieved passages / number of D's retrieved passages. Both are 0 for a
    document without a retrieved passage. A query's value is the mean over all its relevant documents, so a document
    that is not retrieved lowers it; the table's value is the mean over queries (CLEF-IP; our reading of the overviews'
    text, whose program is not public). A query without a relevant document gets 0.

    CLEF-IP's systems choose how many of a document's passages they list; a run here is a ranking of a fixed depth. If
    it lists all passages of its documents, the precision says nothing of their order: measure `PREC(D)@k` then.

    Args:
        run, qrels, queries, level: as in `pres`, of passages.
        document: int [m], the document of every passage row.
        k: number of each query's first passages that are looked at; 0: all.
    """
    counter = QueryCounter(queries)
    relevant = _relevant(qrels, counter, level)
    pairs, sizes = np.unique(
        pair_keys(relevant >> 32, document[relevant & 0xFFFFFFFF]), return_counts=True
    )  # the relevant documents of each query, and the number of relevant passages of each
    rows = np.flatnonzero(run.rank <= k) if k else np.arange(len(run.rank))
    pair = find_pairs(pairs, run.query[rows], document[run.passage[rows]])
    rows, pair = rows[pair >= 0], pair[pair >= 0]
    order = np.argsort(pair, kind="stable")  # a document's passages in the order of the ranking
    rows, pair = rows[order], pair[order]
    right = find_pairs(relevant, run.query[rows], run.passage[rows]) >= 0
    retrieved = np.bincount(pair, minlength=len(pairs))
    start = np.cumsum(retrieved) - retrieved
    before = np.concatenate([[0], np.cumsum(right)])
    position, hits = np.arange(len(pair)) - start[pair] + 1, before[1:] - before[start[pair]]
    ap = np.bincount(pair, np.where(right, hits / position, 0.0), minlength=len(pairs)) / sizes
    precision = np.bincount(pair, right, minlength=len(pairs)) / np.maximum(retrieved, 1)
    query = pairs >> 32
    documents = np.maximum(counter.count(query), 1)
    return counter.count(query, ap) / documents, counter.count(query, precision) / documents


def in_trec_order(run: Run, ids: pa.ChunkedArray) -> Run:
    """Returns a run with equal scores of a query in trec_eval's order: by text id, descending.

    Args:
        run: sorted by query and falling score.
        ids: text id of every passage (or document) row.
    """
    same = (run.query[1:] == run.query[:-1]) & (run.score[1:] == run.score[:-1])
    if not same.any():
        return run
    tied = np.flatnonzero(np.concatenate([same, [False]]) | np.concatenate([[False], same]))
    group = np.concatenate([[0], np.cumsum(~same)])[tied]
    distinct, inverse = np.unique(run.passage[tied], return_inverse=True)
    names = ids.take(pa.array(distinct)).combine_chunks()
    by_name = np.empty(len(distinct), dtype=np.int64)
    by_name[pc.sort_indices(names).to_numpy()] = np.arange(len(distinct))
    passage = run.passage.copy()
    passage[tied] = run.passage[tied][np.lexsort((-by_name[inverse], group))]
    return Run(run.query, passage, run.rank, run.score)


class QueryCounter:
    """Counts per query, in the order of `queries` [n] (row numbers, in any order)."""

    def __init__(self, queries: np.ndarray) -> None:
        self._order = np.argsort(queries, kind="stable")
        self.sorted = np.asarray(queries)[self._order]

    def count(self, query: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Returns how often each query is in `query` [r], or the sums of `weights` [r], float64 [n]."""
        index = np.searchsorted(self.sorted, query)
        totals = np.zeros(len(self.sorted))
        totals[self._order] = np.bincount(index, weights, minlength=len(self.sorted))
        return totals


def _relevant(qrels: Qrels, counter: QueryCounter, level: int) -> np.ndarray:
    """Returns the `pair_keys` of the relevant pairs of the queries, ascending."""
    keep = (qrels.relevance >= level) & np.isin(qrels.query, counter.sorted)
    return np.unique(pair_keys(qrels.query[keep], qrels.passage[keep]))
