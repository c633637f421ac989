"""Step 5: M_ce, trained on positives against retrieved negatives (GNN-encoder 3.4)."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnn_encoder.artifacts import Dataset, Draft, KnownPositives, Run
from gnn_encoder.errors import UserError
from gnn_encoder.inference.scoring import PairTokens, pair_tokens, score_pairs
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.retrieval.first_stage import merge_candidates, negative_pool
from gnn_encoder.runs.step import Metrics, step
from gnn_encoder.settings.foundation import TrainCrossEncoder
from gnn_encoder.tracking.context import Context
from gnn_encoder.training.dev import reciprocal_rank
from gnn_encoder.training.loop import fit, parameter_groups
from gnn_encoder.training.pointwise import PairBatch, PairBatches, pointwise_loss

DEV_CANDIDATES = 20


@step(cross_encoder="model")
def train_cross_encoder(
    context: Context, settings: TrainCrossEncoder, dataset: Path, bm25_run: Path, dpr_run: Path, cross_encoder: Draft
) -> Metrics:
    """Train the scorer of pairs."""
    data, runs = Dataset(dataset), [Run.read(dpr_run), Run.read(bm25_run)]
    labels = data.split_qrels("train").positive()
    if len(labels.query) == 0:
        raise UserError("no labelled train pairs: the cross-encoder has nothing to learn from")
    torch.manual_seed(settings.seed)  # the new head is drawn
    model = CrossEncoder.from_backbone(settings.backbone, settings.pair_length)
    pairs = pair_tokens(model, data)
    pool = negative_pool(data, runs, settings.negative_depth)
    plan = PairBatches(labels, pool, settings.batch_size, settings.negatives, settings.seed)

    def look(epoch: int) -> dict[str, float]:
        return dev_figures(model, pairs, data, runs, settings)

    groups = [
        *parameter_groups(model.backbone, settings.learning_rate, settings.weight_decay),
        *parameter_groups(model.head, settings.head_learning_rate, settings.weight_decay),
    ]

    def loss(batch: PairBatch) -> Tensor:
        return pointwise_loss(model, pairs, batch)

    result = fit(model, plan, loss, settings, context, groups=groups, after_epoch=look)
    model.save(cross_encoder.path)
    figures = dev_figures(model, pairs, data, runs, settings)
    return {
        "pairs": len(labels.query),
        **result.metrics(),
        **figures,
        "headline": f"loss {result.loss:.3f}, re-ranked dev MRR@10 {figures.get('dev/reranked_RR_at_10', 0.0):.3f}",
    }


def dev_figures(
    model: CrossEncoder, pairs: PairTokens, dataset: Dataset, runs: list[Run], settings: TrainCrossEncoder
) -> dict[str, float]:
    """MRR@10 on some dev queries after re-ranking their first candidates, and before: in DPR's order."""
    labels = dataset.split_qrels("dev").positive()
    queries = np.random.default_rng(settings.seed).permutation(np.unique(labels.query))[: settings.dev_queries]
    if len(queries) == 0:
        return {}
    candidates = merge_candidates(runs, queries, DEV_CANDIDATES)
    exists = candidates >= 0
    query, passage = np.repeat(queries, DEV_CANDIDATES)[exists.ravel()], candidates[exists]
    scores, cls = np.empty(len(query), np.float32), np.empty((len(query), model.width), np.float32)
    score_pairs(model, pairs, query, passage, scores, cls, precision=settings.precision)
    ranked = np.full(candidates.shape, -np.inf, dtype=np.float32)
    ranked[exists] = scores
    known = KnownPositives(labels.query, labels.passage)
    relevant = known.contains(queries[:, None], candidates)
    order = np.argsort(-ranked, axis=1, kind="stable")
    return {
        "dev/reranked_RR_at_10": reciprocal_rank(np.take_along_axis(relevant, order, axis=1)),
        "dev/retrieved_RR_at_10": reciprocal_rank(
            known.contains(queries[:, None], runs[0].hits(queries, DEV_CANDIDATES))
        ),
    }
