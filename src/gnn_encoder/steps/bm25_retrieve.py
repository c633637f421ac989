"""Retrieves passages for every query with BM25: the first candidates, and a system of the final table."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft
from gnn_encoder.retrieval.bm25 import FIELDS, Bm25
from gnn_encoder.retrieval.first_stage import dev_figures, search_splits
from gnn_encoder.runs.step import Context, Metrics, step
from gnn_encoder.settings.foundation import Bm25Retrieve
from gnn_encoder.settings.systems import LEXICAL


@step(bm25_run="run")
def bm25_retrieve(context: Context, settings: Bm25Retrieve, dataset: Path, bm25_run: Draft) -> Metrics:
    """Indexes title and text, and searches. A passage without a term of the query is not a hit."""
    data = Dataset(dataset)
    indexing = context.progress("indexing", len(data.passages) * len(FIELDS[settings.fields]), "passages")
    index = Bm25.build(data.passages, settings, indexing)
    searching = context.progress("searching", data.queries.num_rows, "queries")
    run = search_splits(
        data,
        lambda queries, k: index.search(data.query_texts(queries), k, searching),
        train_depth=settings.train_depth,
        eval_depth=settings.eval_depth,
    )
    run.write(bm25_run, LEXICAL)
    figures = dev_figures(data, run)
    return {
        "hits": len(run.query),
        "queries_per_second": searching.rate,
        **figures,
        "headline": f"dev R@100 {figures['dev/R_at_100']:.3f}" if figures else f"{len(run.query):,} hits",
    }
