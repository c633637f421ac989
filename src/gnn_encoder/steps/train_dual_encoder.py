"""Trains the initial dual encoder M_de on the selected training set (GNN-encoder 3.4), or trains M_de further."""

from pathlib import Path

from gnn_encoder.artifacts import Dataset, Draft, PairScores, TrainingSet
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.training.contrastive import new_dual_encoder, train_contrastive
from gnn_encoder.training.dev import MRR, DevPool
from gnn_encoder.training.distillation import Teacher


@step(dual_encoder="model")
def train_dual_encoder(
    context: Context,
    settings: TrainDualEncoder,
    dataset: Path,
    training_set: Path,
    start: Path,
    dual_encoder: Draft,
    pair_scores: Path | None = None,
    encoder: Path | None = None,
) -> Metrics:
    """Trains from the backbone, or from the model `start`: DPR, or M_de (`start_from`).

    The `encoder` that the run has chosen takes the backbone's place.
    `distillation` needs the pair scores. With `patience`, a model without a dev query to stop by stays as it is.
    """
    if settings.distillation and not pair_scores:
        raise UserError("train_dual_encoder.distillation needs M_ce's scores: the input pair_scores")
    data, examples = Dataset(dataset), TrainingSet.read(training_set)
    model = new_dual_encoder(settings, encoder) if settings.start_from == "backbone" else DualEncoder.load(start)
    if settings.patience and not len(DevPool(data, settings)):
        model.save(dual_encoder.path)
        return {"epochs": 0, "headline": "not trained further: there is no labelled dev query to stop by"}
    teacher = Teacher(PairScores.read(pair_scores), settings) if settings.distillation and pair_scores else None
    result = train_contrastive(model, examples, data, settings, context, teacher, settings.patience)
    model.save(dual_encoder.path)
    if settings.patience:
        before, kept = context.curves[MRR][0][1], result["kept_figure"]
        ended = "all" if result["epochs"] == settings.epochs else "stopped after"
        result["headline"] = (
            f"{ended} {result['epochs']} epochs, {result['training_seconds']:.0f} s; epoch {result['kept_epoch']} "
            f"kept, dev pool MRR@10 {before:.3f} → {kept:.3f}"
        )
    return {"examples": len(examples.query), **result}
