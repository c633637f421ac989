"""The figures of a ranking, per query, as trec_eval computes them.

What to compute is declared as `ir_measures` objects; its pytrec_eval provider, trec_eval's own code,
computes it. That matters for ties: trec_eval orders equal scores by passage id, descending, while
the provider that `ir_measures` would pick for RR@10 orders them ascending. So RR comes from trec_eval
too and is cut here: a first hit below rank k counts 0. Judged@k, which trec_eval has not, is counted
here over trec_eval's order.
"""

from collections.abc import Sequence

import ir_measures
import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Qrels, Run, pair_keys
from gnn_encoder.settings.measures import DEFAULT, cutoff

NAMES: tuple[str, ...] = DEFAULT
"""The measures of every table unless the settings name others, in their order."""
QUERIES = 100
"""Queries evaluated at a time: their text ids and dictionaries stay in the processor's cache."""


def mean_name(measure: str) -> str:
    """What a measure's mean over queries is called: RR@10 becomes MRR@10, AP becomes MAP."""
    name, rest = measure[:2], measure[2:]
    return {"RR": "MRR", "AP": "MAP"}.get(name, name) + rest


def labelled_queries(qrels: Qrels) -> np.ndarray:
    """Queries with at least one positive label, ascending: those that a figure is a mean over."""
    queries: np.ndarray = np.unique(qrels.positive().query)
    return queries


def per_query(
    run: Run, qrels: Qrels, queries: np.ndarray, passage_ids: pa.ChunkedArray, names: Sequence[str] = NAMES
) -> np.ndarray:
    """Every measure of every query, float64 [n, measures]; a query without a hit counts 0.

    Args:
        run: the ranking; only its scores and passages count, not its ranks (as in trec_eval), which must agree
            with them.
        qrels: labels, graded ones kept (nDCG's gains); a passage without one is not relevant.
        queries: [n] row numbers.
        passage_ids: text id of every passage row, which break ties.
        names: of the measures (`settings.measures`).
    """
    values = np.zeros((len(queries), len(names)))
    asked: dict[ir_measures.Measure, list[int]] = {}
    judged_at: dict[int, int] = {}
    for column, name in enumerate(names):
        if name.startswith("Judged"):
            judged_at[column] = cutoff(name)
        else:
            computed = name.partition("@")[0] if name.startswith("RR") else name
            asked.setdefault(ir_measures.parse_measure(computed), []).append(column)
    for start in range(0, len(queries), QUERIES):
        some = queries[start : start + QUERIES]
        position = {str(query): start + i for i, query in enumerate(some.tolist())}
        judged, hits = np.isin(qrels.query, some), run.between(int(some.min()), int(some.max())).of(some)
        labelled = Qrels(qrels.query[judged], qrels.passage[judged], qrels.relevance[judged])
        labels = _nested(labelled.query, labelled.passage, labelled.relevance, passage_ids)
        scores = _nested(hits.query, hits.passage, hits.score, passage_ids)
        for query, measure, value in ir_measures.pytrec_eval.iter_calc(list(asked), labels, scores) if asked else ():
            values[position[query], asked[measure]] = value
        for column, k in judged_at.items():
            values[start : start + len(some), column] = _judged(hits, labelled, some, passage_ids, k)
    for column, name in enumerate(names):
        if name.startswith("RR") and (cut := cutoff(name)):
            reciprocal = values[:, column]
            reciprocal[reciprocal < 1 / (cut + 0.5)] = 0.0
    return values


def _judged(run: Run, qrels: Qrels, queries: np.ndarray, passage_ids: pa.ChunkedArray, k: int) -> np.ndarray:
    """Share [n] of each query's first k hits, in trec_eval's order, that have any label."""
    hits = first_hits(run, passage_ids, k)
    labelled = np.isin(pair_keys(hits.query, hits.passage), pair_keys(qrels.query, qrels.passage))
    order = np.argsort(queries)
    position = order[np.searchsorted(queries[order], hits.query)]
    found = np.bincount(position, minlength=len(queries))
    share: np.ndarray = np.bincount(position, weights=labelled, minlength=len(queries)) / np.maximum(found, 1)
    return share


def first_hits(run: Run, passage_ids: pa.ChunkedArray, k: int) -> Run:
    """The first k hits of every query in trec_eval's order: by score and, where equal, by text id, descending."""
    starts = np.flatnonzero(np.diff(run.query, prepend=-1))
    sizes = np.diff(np.append(starts, len(run.query)))
    # Only what scores no less than the k-th hit can be among them; of most queries these are k.
    last = np.repeat(run.score[starts + np.minimum(sizes, k) - 1], sizes)
    keep = run.score >= last
    query, passage, score = run.query[keep], run.passage[keep], run.score[keep]
    ids = passage_ids.take(pa.array(passage)).to_numpy(zero_copy_only=False).astype(str)
    _, place = np.unique(ids, return_inverse=True)
    order = np.lexsort((-place, -score, query))
    begins = np.flatnonzero(np.diff(query, prepend=-1))
    rank = np.arange(1, len(query) + 1) - np.repeat(begins, np.diff(np.append(begins, len(query))))
    order, rank = order[rank <= k], rank[rank <= k].astype(np.int32)
    return Run(query[order], passage[order], rank, score[order])


def _nested(
    query: np.ndarray, passage: np.ndarray, value: np.ndarray, passage_ids: pa.ChunkedArray
) -> dict[str, dict[str, float]]:
    """{query: {passage id: value}}, the form pytrec_eval takes."""
    if not len(query):
        return {}
    order = np.argsort(query, kind="stable")
    distinct, inverse = np.unique(passage[order], return_inverse=True)
    ids = passage_ids.take(pa.array(distinct)).to_numpy(zero_copy_only=False)[inverse].tolist()
    numbers = value[order].tolist()
    rows, starts = np.unique(query[order], return_index=True)
    ends = [*starts[1:].tolist(), len(ids)]
    return {
        str(row): dict(zip(ids[start:end], numbers[start:end], strict=True))
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends, strict=True)
    }
