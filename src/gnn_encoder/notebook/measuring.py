"""`evaluate`: measures of a retriever on queries and labels in memory."""

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnn_encoder.artifacts import Qrels
from gnn_encoder.artifacts.dataset import HIGHEST_RELEVANCE
from gnn_encoder.artifacts.history import Record, read_history
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import labelled_queries, mean_name, per_query
from gnn_encoder.evaluation.trec import without_space
from gnn_encoder.notebook.calls import Result
from gnn_encoder.notebook.texts import Labels, Queries, have_ids, triples, with_ids
from gnn_encoder.promotion.champion import measured_run
from gnn_encoder.retrieval.search import Searcher
from gnn_encoder.serving.retriever import Retriever
from gnn_encoder.settings.measures import checked_list, of_documents
from gnn_encoder.settings.outcome import Evaluate

MEASURES = ("RR@10", "nDCG@10", "AP", "R@100")


def evaluate(
    retriever: Retriever | Result, queries: Queries, qrels: Labels, measures: Sequence[str] = MEASURES
) -> dict[str, float]:
    """Returns the means of measures over the queries with a positive label, by trec_eval's code.

    The retriever ranks as its run recommends, and as `gnn-encoder evaluate --bundle` measures it: a passage that it
    lacks counts as missed. A passage with a query's own id is no hit, unless the query is labelled with it, the ids of
    queries are their positions, or `ingest.ignore_identical_ids` of the run was false.

    Args:
        retriever: a retriever, or the result of `run`.
        queries: {id: text}, or a list of texts, whose ids are their positions from 0.
        qrels: {query: {passage: relevance}} or {query: [relevant passages]}.
        measures: names as in ir_measures, of passages.

    Raises:
        UserError: a label is of an unknown query, no label is of a passage that the retriever has, no label is
            positive, a query is no text, a relevance is no integer, or a measure is unknown.
    """
    try:
        names = checked_list(list(measures))
    except ValueError as error:
        raise UserError(f"measures: {error}") from None
    if needing := of_documents(names):
        raise UserError(f"measures: {', '.join(needing)} needs documents: use gnn-encoder evaluate --documents")
    bundle = (retriever.retriever if isinstance(retriever, Result) else retriever).bundle
    texts, labels, known = with_ids(queries), triples(qrels), bundle.passages.ids()
    rows = {query: row for row, (query, _) in enumerate(texts)}
    if wrong := [query for query, text in texts if not isinstance(text, str)]:
        raise UserError(f"queries have a value at {wrong[0]!r} that is no text: give a str")
    if wrong := [query for query, _, relevance in labels if not _is_whole(relevance)]:
        raise UserError(f"qrels have a relevance of query {wrong[0]!r} that is not an integer: give 0, 1 or more")
    if unknown := [query for query, _, _ in labels if query not in rows]:
        raise UserError(f"qrels have a label of query {unknown[0]!r}, which queries lack: add its text to queries")
    named = pa.array(list(dict.fromkeys(passage for _, passage, _ in labels)), known.type)
    missing = named.filter(pc.is_null(pc.index_in(named, value_set=known.combine_chunks())))
    if len(missing) == len(named):
        raise UserError("qrels have no label of a passage that the retriever has: are the ids those of its corpus?")
    ids = pa.chunked_array([*known.chunks, missing])
    passages = pc.index_in(pa.array([passage for _, passage, _ in labels], known.type), value_set=ids.combine_chunks())
    judged = Qrels(
        np.array([rows[query] for query, _, _ in labels], np.int32),
        passages.to_numpy().astype(np.int32),
        np.array([relevance for _, _, relevance in labels], np.int32),
    )
    measured = labelled_queries(judged)
    if not len(measured):
        raise UserError("qrels have no label above 0, so nothing can be measured: label passages with 1 or more")
    left_out, ingested = None, read_history(bundle.path).get("ingest", Record())
    if have_ids(queries) and ingested.settings.get("ignore_identical_ids", True):
        same_ids = {query for query, passage, _ in labels if query == passage}
        same = pa.array([None if query in same_ids else query for query, _ in texts], known.type)
        # An id that is null is no passage's.
        left_out = pc.index_in(same, value_set=known.combine_chunks()).fill_null(-1).to_numpy()[measured]
    questions = [texts[row][1] for row in measured.tolist()]
    run = measured_run(Searcher(bundle), measured, questions, names, Evaluate(), left_out)
    values = per_query(run, judged, measured, pa.chunked_array([without_space(ids)]), names)
    return dict(zip(map(mean_name, names), values.mean(axis=0).tolist(), strict=True))


def _is_whole(relevance: Any) -> bool:
    """Returns whether a relevance is an integer, Python's or NumPy's, that an array holds as it is."""
    try:
        return abs(index(relevance)) <= HIGHEST_RELEVANCE
    except TypeError:
        return False
