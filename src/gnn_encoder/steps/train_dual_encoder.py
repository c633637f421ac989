"""Step 10: M_de, the initial dual encoder, on the selected training set (GNN-encoder 3.4)."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft, TrainingSet
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.runs.step import Metrics, step
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.tracking.context import Context
from gnn_encoder.training.contrastive import train_contrastive


@step(dual_encoder="model")
def train_dual_encoder(
    context: Context, settings: TrainDualEncoder, dataset: Path, training_set: Path, dpr: Path, dual_encoder: Draft
) -> Metrics:
    """Train M_de from the backbone, or go on from DPR (`start_from`)."""
    examples = TrainingSet.read(training_set)
    if settings.start_from == "dpr":
        model = DualEncoder.load(dpr)
    else:
        model = DualEncoder.from_backbone(
            settings.backbone, pooling=settings.pooling, normalize=settings.normalize,
            query_length=settings.query_length, passage_length=settings.passage_length,
            share_encoders=settings.share_encoders,
        )  # fmt: skip
    result = train_contrastive(model, examples, Dataset(dataset), settings, context)
    model.save(dual_encoder.path)
    return {
        "examples": len(examples.query),
        **result.metrics(),
        "headline": f"loss {result.loss:.3f}, {result.examples_per_second:.1f} examples/s",
    }
