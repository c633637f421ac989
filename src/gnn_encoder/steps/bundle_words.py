"""Writes the bundle that ranks by words alone: the passages and their BM25 index, without vectors and encoder."""

from pathlib import Path

from gnn_encoder.artifacts import Bundle, Dataset, Draft
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.settings.outcome import BundleWords
from gnn_encoder.settings.systems import LEXICAL


@step(bundle="bundle")
def bundle_words(context: Context, settings: BundleWords, dataset: Path, bm25_index: Path, bundle: Draft) -> Metrics:
    """Takes the passages and the index; nothing is computed."""
    data = Dataset(dataset)
    Bundle.add_bm25(bundle, bm25_index)
    Bundle.complete(bundle, data, LEXICAL)
    return {"passages": len(data.passages), "headline": f"{len(data.passages):,} passages"}
