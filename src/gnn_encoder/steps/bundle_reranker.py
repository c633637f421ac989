"""Adds a re-ranker to the bundle whose hits it was trained on."""

from pathlib import Path

from gnn_encoder.artifacts import Bundle, Draft
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.settings.reranking import BundleReranker


@step(bundle="bundle")
def bundle_reranker(
    context: Context, settings: BundleReranker, first_stage: Path, reranker: Path, bundle: Draft
) -> Metrics:
    """Copies the bundle of the first stage, with the re-ranker in place of any earlier one."""
    source = Bundle.read(first_stage)
    source.copy_to(bundle, reranker)
    return {"passages": len(source.passages), "headline": f"{len(source.passages):,} passages, with a re-ranker"}
