"""Indexes all passages for BM25, once for a run: `bm25_retrieve` searches the index, and all bundles have its files."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.retrieval.bm25 import FIELDS, Bm25
from gnn_encoder.settings.bm25 import OTHER, IndexBm25


@step(bm25_index="bm25")
def index_bm25(context: Context, settings: IndexBm25, dataset: Path, bm25_index: Draft) -> Metrics:
    """Indexes title and text of every passage."""
    passages = Dataset(dataset).passages
    indexing = context.progress("indexing", len(passages) * len(FIELDS[settings.fields]), "passages")
    index = Bm25.build(passages, settings, indexing)
    index.save(bm25_index.path)
    bm25_index.rows(passages=len(passages))
    language = index.kind.language
    of = "another language" if language == OTHER else f"language {language}"
    taken = f"{of}, found in a sample of them" if settings.language == "auto" else of
    return {
        "passages": len(passages),
        "language": language,
        "headline": f"{len(passages):,} passages at {indexing.rate:,.0f}/s; {taken}",
    }
