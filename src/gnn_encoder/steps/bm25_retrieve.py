"""Retrieves passages for every query with BM25: the first candidates, and a system of the final table.

A task that shares the work searches its share of the queries.
"""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft
from gnn_encoder.artifacts.bundle import Bm25Index
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.evaluation.task_figures import hit_figures
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.first_stage import leaving_out, search_splits, searched_queries
from gnn_encoder.settings.foundation import Bm25Retrieve
from gnn_encoder.settings.systems import LEXICAL


@step(bm25_run="run")
def bm25_retrieve(
    context: Context, settings: Bm25Retrieve, dataset: Path, bm25_index: Path, bm25_run: Draft
) -> Metrics:
    """Searches for every query. A passage without a term of the query is not a hit."""
    data, index = Dataset(dataset), Bm25.load(Bm25Index.read(bm25_index).path)
    of_train, of_evaluation = searched_queries(data, settings.share)
    count = (len(of_train) if settings.train_depth else 0) + len(of_evaluation)
    searching = context.progress("searching", count, "queries")
    run = search_splits(
        data,
        leaving_out(data, lambda queries, k: index.search(data.query_texts(queries), k, searching)),
        train_depth=settings.train_depth,
        eval_depth=settings.eval_depth,
        share=settings.share,
    )
    run.write(bm25_run, LEXICAL)
    return hit_figures("bm25_retrieve", data, run, count, searching.rate, whole=settings.shards == 1)
