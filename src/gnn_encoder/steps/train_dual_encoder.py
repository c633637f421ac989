"""Trains the initial dual encoder M_de on the selected training set (GNN-encoder 3.4)."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft, PairScores, TrainingSet
from gnn_encoder.errors import UserError
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.runs.step import Context, Metrics, step
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.training.contrastive import new_dual_encoder, train_contrastive
from gnn_encoder.training.distillation import Teacher


@step(dual_encoder="model")
def train_dual_encoder(
    context: Context,
    settings: TrainDualEncoder,
    dataset: Path,
    training_set: Path,
    dpr: Path,
    dual_encoder: Draft,
    pair_scores: Path | None = None,
) -> Metrics:
    """Trains M_de from the backbone, or from DPR (`start_from`); `distillation` needs the pair scores."""
    if settings.distillation and not pair_scores:
        raise UserError("train_dual_encoder.distillation needs M_ce's scores: the input pair_scores")
    examples = TrainingSet.read(training_set)
    model = DualEncoder.load(dpr) if settings.start_from == "dpr" else new_dual_encoder(settings)
    teacher = Teacher(PairScores.read(pair_scores), settings) if settings.distillation and pair_scores else None
    result = train_contrastive(model, examples, Dataset(dataset), settings, context, teacher)
    model.save(dual_encoder.path)
    return {"examples": len(examples.query), **result}
