"""Trains the cross-encoder M_ce on positives and retrieved negatives (GNN-encoder 3.4)."""

from pathlib import Path

import torch
from torch import Tensor

from gnn_encoder.artifacts import Dataset, Draft, Run
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.first_stage import negative_pool
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.settings.foundation import TrainCrossEncoder
from gnn_encoder.training.adapters import large_training
from gnn_encoder.training.dev import DevCandidates
from gnn_encoder.training.loop import Objective, fit, parameter_groups
from gnn_encoder.training.pairs import PairBatch, PairBatches, pair_loss
from gnn_encoder.training.ranks import alone
from gnn_encoder.training.rerankers import cross_encoder as cross_encoder_of


@step(cross_encoder="model")
def train_cross_encoder(
    context: Context, settings: TrainCrossEncoder, dataset: Path, bm25_run: Path, dpr_run: Path, cross_encoder: Draft
) -> Metrics:
    """Trains the cross-encoder, unless a published one is taken as it is, and re-ranks dev candidates with it."""
    data, runs = Dataset(dataset), [Run.read(dpr_run), Run.read(bm25_run)]
    labels = data.trained_labels
    if len(labels.query) == 0 and settings.is_trained:
        raise UserError("no labelled training pairs, so the cross-encoder cannot be trained")
    torch.manual_seed(settings.seed)  # the new head has random weights
    trained, dev = cross_encoder_of(settings, data), DevCandidates(data, runs, settings)
    model = trained.model

    def loss(batch: PairBatch) -> Tensor:
        return pair_loss(trained.score, trained.lengths, batch, loss=settings.loss, margin=settings.margin)

    measure = (lambda: dev.measure(trained.rank)) if len(dev) else None
    result: dict[str, float] = {}
    if settings.is_trained:
        plan = PairBatches(labels, negative_pool(data, runs, settings.negative_depth), settings)
        with large_training([model.backbone], settings):
            rates = [
                (model.backbone, settings.learning_rate),
                *((head, settings.head_learning_rate) for head in trained.heads),
            ]
            groups = [group for part, rate in rates for group in parameter_groups(part, rate, settings.weight_decay)]
            adapters = settings.lora_rank > 0
            objective = Objective(model, plan, loss, groups, measure, settings.keep, adapters=adapters)
            result = fit(objective, settings, context)
    save_scorer("published" if settings.published else "cross_encoder", model, cross_encoder.path)
    with alone():
        figures = measure() if measure else {}
    loss_or_not = f"loss {result['final_loss']:.3f}" if result else "as published"
    reranked = figures.get("dev/reranked_RR_at_10", 0.0)
    return {
        "pairs": len(labels.query),
        **result,
        **figures,
        "headline": f"{loss_or_not}, re-ranked dev MRR@10 {reranked:.3f}",
    }
