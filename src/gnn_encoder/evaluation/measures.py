"""The figures of a ranking, per query, as trec_eval computes them.

What to compute is declared as `ir_measures` objects; its pytrec_eval provider, trec_eval's own code,
computes it. That matters for ties: trec_eval orders equal scores by passage id, descending, while
the provider that `ir_measures` would pick for RR@10 orders them ascending. So RR comes from trec_eval
too and is cut here: a first hit below rank 10 counts 0.
"""

import ir_measures
import numpy as np
import pyarrow as pa
from ir_measures import AP, RR, R, nDCG

from gnn_encoder.artifacts import Qrels, Run

CUTOFF = 10
MEASURES = (RR @ CUTOFF, nDCG @ CUTOFF, AP, R @ 5, R @ 20, R @ 50, R @ 100, R @ 1000)
"""All measures, in the order of every table. Averaged over queries, RR@10 is MRR@10 and AP is MAP."""
NAMES: tuple[str, ...] = tuple(str(measure) for measure in MEASURES)
MEAN_NAMES = {"RR@10": "MRR@10", "AP": "MAP"}
"""What the mean over queries is called, where it has a name of its own."""
QUERIES = 100
"""Queries evaluated at a time: their text ids and dictionaries stay in the processor's cache."""

_COLUMN = {RR if measure == RR @ CUTOFF else measure: i for i, measure in enumerate(MEASURES)}


def labelled_queries(qrels: Qrels) -> np.ndarray:
    """Queries with at least one positive label, ascending: those that a figure is a mean over."""
    queries: np.ndarray = np.unique(qrels.positive().query)
    return queries


def per_query(run: Run, qrels: Qrels, queries: np.ndarray, passage_ids: pa.ChunkedArray) -> np.ndarray:
    """Every measure of every query, float64 [n, measures]; a query without a hit counts 0.

    Args:
        run: the ranking; only its scores and passages count, not its ranks (as in trec_eval).
        qrels: labels, graded ones kept (nDCG's gains); a passage without one is not relevant.
        queries: [n] row numbers.
        passage_ids: text id of every passage row, which break ties.
    """
    values = np.zeros((len(queries), len(MEASURES)))
    for start in range(0, len(queries), QUERIES):
        some = queries[start : start + QUERIES]
        position = {str(query): start + i for i, query in enumerate(some.tolist())}
        judged, hits = np.isin(qrels.query, some), run.between(int(some.min()), int(some.max())).of(some)
        labels = _nested(qrels.query[judged], qrels.passage[judged], qrels.relevance[judged], passage_ids)
        scores = _nested(hits.query, hits.passage, hits.score, passage_ids)
        for query, measure, value in ir_measures.pytrec_eval.iter_calc(list(_COLUMN), labels, scores):
            values[position[query], _COLUMN[measure]] = value
    reciprocal = values[:, _COLUMN[RR]]
    reciprocal[reciprocal < 1 / CUTOFF] = 0.0
    return values


def _nested(
    query: np.ndarray, passage: np.ndarray, value: np.ndarray, passage_ids: pa.ChunkedArray
) -> dict[str, dict[str, float]]:
    """{query: {passage id: value}}, the form pytrec_eval takes."""
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
