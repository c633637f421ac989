"""Computes the measures of a ranking, per query, as trec_eval does.

pytrec_eval, trec_eval's own code, computes the values. It orders equal scores by passage id, descending; other
implementations of RR@10 order them ascending. trec_eval's RR has no cutoff, so RR is cut here: a first relevant hit
below rank k counts 0. trec_eval has no Judged@k: it is P@k with every label set to 1, over the existing hits.

A measure of documents, such as R(doc)@100, is trec_eval's of the ranking and the labels of documents, which are derived
once (`documents`). PRES, MAP(D) and PREC(D) are computed here (`clef_ip`), on hits in trec_eval's order.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytrec_eval

from gnn_encoder.artifacts import Dataset, Qrels, Run
from gnn_encoder.artifacts.tables import find_pairs, pair_keys
from gnn_encoder.evaluation.clef_ip import in_trec_order, pres, within_documents
from gnn_encoder.evaluation.documents import Documents, documents_of
from gnn_encoder.settings.measures import DEFAULT, DOCUMENTS, Parts, cutoff

NAMES: tuple[str, ...] = DEFAULT
"""The measures of every table, in order, unless the settings name other measures."""
CLEF_IP = ("PRES", "MAP", "PREC")
"""First words of the measures that trec_eval lacks."""
TREC_EVAL = {
    "RR": ("recip_rank", ""), "nDCG": ("ndcg", "ndcg_cut"), "AP": ("map", "map_cut"), "R": ("", "recall"),
    "P": ("", "P"), "Judged": ("", "P"), "Success": ("", "success"), "Rprec": ("Rprec", ""),
}  # fmt: skip
"""Word of a measure → trec_eval's name of the measure of all hits, and of that of the first k; empty: there is none."""
QUERIES = 100
"""Number of queries evaluated at a time. Their text ids and dictionaries fit into the processor's cache."""


def mean_name(measure: str) -> str:
    """Returns the name of a measure's mean over queries: MRR@10 for RR@10, MAP for AP."""
    name, rest = measure[:2], measure[2:]
    return {"RR": "MRR", "AP": "MAP"}.get(name, name) + rest


def labelled_queries(qrels: Qrels) -> np.ndarray:
    """Returns the queries with at least one positive label, ascending. Means are over these queries."""
    return np.unique(qrels.positive().query)


def per_query(
    run: Run,
    qrels: Qrels,
    queries: np.ndarray,
    passage_ids: pa.ChunkedArray,
    names: Sequence[str] = NAMES,
    documents: Documents | None = None,
) -> np.ndarray:
    """Returns every measure of every query, float64 [n, measures]; a query without a hit gets 0.

    Args:
        run: the ranking. Only scores and passages are used, as in trec_eval; the ranks must agree with the scores.
        qrels: labels, also graded (nDCG's gains). A passage without a label is not relevant.
        queries: [n] row numbers.
        passage_ids: text id of every passage row, of missing passages that labels name, too (`Dataset.judged_ids`); the
            ids order equal scores.
        names: names of the measures (`settings.measures`).
        documents: the documents of the passages, for the measures that need them (`documents_of`). A passage of a later
            row is a document of its own.
    """
    if documents and len(documents.document) < len(passage_ids):
        documents = documents.of_rows(np.arange(len(passage_ids)))
    values = np.zeros((len(queries), len(names)))
    parts = [Parts.of_name(name) for name in names]
    for by_document in (False, True):
        columns = [i for i, part in enumerate(parts) if (part.of == DOCUMENTS) == by_document]
        if not columns:
            continue
        ranking, labels, ids = run, qrels, passage_ids
        if by_document:
            assert documents, "a measure of documents without documents"
            ranking, labels, ids = documents.run(run.of(queries)), documents.qrels(qrels), documents.ids
        computed_here = [i for i in columns if parts[i].word in CLEF_IP]
        if computed_here:
            figures = _clef_ip(
                in_trec_order(ranking.of(queries), ids), labels, queries, [parts[i] for i in computed_here], documents
            )
            values[:, computed_here] = figures
        if others := [i for i in columns if parts[i].word not in CLEF_IP]:
            values[:, others] = _trec_eval(ranking, labels, queries, ids, [parts[i].plain for i in others])
    return values


def measured_by(measure: str, data: Dataset, qrels: Qrels) -> Callable[[Run, np.ndarray], np.ndarray]:
    """Returns what gives one measure of a ranking for some queries [n], float64 [n]; raises as `documents_of`."""
    ids, documents = data.judged_ids(), documents_of(data, (measure,))
    return lambda run, queries: per_query(run, qrels, queries, ids, (measure,), documents)[:, 0]


def _clef_ip(
    run: Run, qrels: Qrels, queries: np.ndarray, measures: Sequence[Parts], documents: Documents | None
) -> np.ndarray:
    """Returns the measures that trec_eval lacks, float64 [n, measures]; `run` is in trec_eval's order."""
    columns: list[np.ndarray] = []
    within: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}  # both measures come from one computation
    for measure in measures:
        if measure.word == "PRES":
            columns.append(pres(run, qrels, queries, measure.k, measure.rel))
        else:
            assert documents, "a measure of documents without documents"
            key = (measure.k, measure.rel)
            if key not in within:
                within[key] = within_documents(run, qrels, queries, documents.document, *key)
            columns.append(within[key][measure.word == "PREC"])
    return np.stack(columns, axis=1)


def _trec_eval(
    run: Run, qrels: Qrels, queries: np.ndarray, passage_ids: pa.ChunkedArray, names: Sequence[str]
) -> np.ndarray:
    """Returns the measures that trec_eval computes, and Judged, float64 [n, measures]."""
    values = np.zeros((len(queries), len(names)))
    hits_there = np.searchsorted(run.query, queries, "right") - np.searchsorted(run.query, queries)
    run, qrels = until_last_label(run.of(queries), qrels), qrels.where(np.argsort(qrels.query, kind="stable"))
    computed: dict[tuple[bool, int], dict[str, list[int]]] = {}
    for column, part in enumerate(map(Parts.of_name, names)):
        computed.setdefault((part.word == "Judged", part.rel), {}).setdefault(_in_trec_eval(part), []).append(column)
    for start in range(0, len(queries), QUERIES):
        block = queries[start : start + QUERIES]
        position = {str(query): start + i for i, query in enumerate(block.tolist())}
        nearby = qrels.where(slice(*np.searchsorted(qrels.query, [block.min(), block.max() + 1])))
        judged_here, hits = nearby.where(np.isin(nearby.query, block)), run.of(block)
        labels = _nested(judged_here.query, judged_here.passage, judged_here.relevance, passage_ids)
        scores = _nested(hits.query, hits.passage, hits.score, passage_ids)
        for (judged, rel), columns in computed.items():
            judgements = {query: dict.fromkeys(passages, 1) for query, passages in labels.items()} if judged else labels
            evaluator = pytrec_eval.RelevanceEvaluator(judgements, set(columns), relevance_level=rel)
            for query, of_query in evaluator.evaluate(scores).items():
                row = values[position[query]]
                for name, numbers in columns.items():
                    row[numbers] = of_query[name.replace(".", "_")]
    for column, (name, k) in enumerate(zip(names, map(cutoff, names), strict=True)):
        figures = values[:, column]
        if k and name.startswith("RR"):
            figures[figures < 1 / (k + 0.5)] = 0.0
        elif k and name.startswith("Judged"):
            figures[:] = (k * figures).round() / np.clip(hits_there, 1, k)
    return values


def _in_trec_eval(measure: Parts) -> str:
    """Returns trec_eval's name of a measure."""
    whole, cut = TREC_EVAL[measure.word]
    return f"{cut}.{measure.k}" if measure.k and cut else whole


def until_last_label(run: Run, qrels: Qrels) -> Run:
    """Returns each query's hits down to its last one with a label, and those of equal score.

    No measure here depends on later hits: they are not relevant, and P@k divides by k however many there are.
    """
    starts = np.flatnonzero(np.diff(run.query, prepend=-1))
    owner = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(run.query)))
    is_labelled = np.zeros(1 + max(run.passage.max(initial=0), qrels.passage.max(initial=0)), bool)
    is_labelled[qrels.passage] = True  # few hits are labelled for any query, and only those are looked up
    near = np.flatnonzero(is_labelled[run.passage])
    keys = np.sort(pair_keys(qrels.query, qrels.passage))
    labelled = near[find_pairs(keys, run.query[near], run.passage[near]) >= 0]
    last = np.full(len(starts), np.inf, dtype=run.score.dtype)
    np.minimum.at(last, owner[labelled], run.score[labelled])
    return run.where(run.score >= last[owner])


def _nested(
    query: np.ndarray, passage: np.ndarray, value: np.ndarray, passage_ids: pa.ChunkedArray
) -> dict[str, dict[str, float]]:
    """Returns {query: {passage id: value}}, the input of pytrec_eval."""
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
