"""Trains the initial dual encoder M_de on the selected training set (GNN-encoder 3.4)."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft, TrainingSet
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.runs.step import Context, Metrics, step
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.training.contrastive import new_dual_encoder, train_contrastive


@step(dual_encoder="model")
def train_dual_encoder(
    context: Context, settings: TrainDualEncoder, dataset: Path, training_set: Path, dpr: Path, dual_encoder: Draft
) -> Metrics:
    """Trains M_de from the backbone, or from DPR (`start_from`)."""
    examples = TrainingSet.read(training_set)
    model = DualEncoder.load(dpr) if settings.start_from == "dpr" else new_dual_encoder(settings)
    result = train_contrastive(model, examples, Dataset(dataset), settings, context)
    model.save(dual_encoder.path)
    return {"examples": len(examples.query), **result}
