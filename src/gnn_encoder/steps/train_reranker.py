"""Trains a re-ranker on positives and negatives of the first stage (SS-BERT 3.3, BERT-DMN 5.2) or of the corpus."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from gnn_encoder.artifacts import Dataset, DocumentGraph, Draft, KnownPositives, PairScores, Run, TrainingSet
from gnn_encoder.artifacts.training_examples import ORIGINS
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.first_stage import negative_pool
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import DOCUMENT_KINDS
from gnn_encoder.training.corpus_negatives import corpus_negatives
from gnn_encoder.training.dev import DevCandidates
from gnn_encoder.training.document_rerankers import document_reranker
from gnn_encoder.training.lite import with_frozen_encoder
from gnn_encoder.training.loop import Objective, fit
from gnn_encoder.training.pairs import PairBatch, PairBatches, in_batch_loss, pair_loss, with_examples
from gnn_encoder.training.ranks import alone
from gnn_encoder.training.rerankers import new_reranker


@step(reranker="model")
def train_reranker(
    context: Context,
    settings: TrainReranker,
    dataset: Path,
    first_run: Path,
    reranker: Draft,
    training_set: Path | None = None,
    pair_scores: Path | None = None,
    document_graph: Path | None = None,
) -> Metrics:
    """Trains the kind of re-ranker that the settings name; the training pairs do not depend on the kind.

    `pair_scores`: the scores of a teacher, for listwise distillation. All its negatives have such a score.
    """
    data, first = Dataset(dataset), Run.read(first_run)
    labels = data.trained_labels
    if len(labels.query) == 0 and settings.is_trained:
        raise UserError("no labelled training pairs, so no re-ranker can be trained")
    dev = DevCandidates(data, [first], settings)
    if not settings.is_trained:
        taken = new_reranker(settings, data, np.unique(dev.pairs[1]))
        save_scorer(settings.scorer, taken.model, reranker.path)
        measured = dev.measure(taken.rank) if len(dev) else {}
        return {**measured, "headline": f"as published, re-ranked dev MAP {measured.get('dev/reranked_AP', 0.0):.3f}"}
    if settings.keep == "best" and not len(dev):
        raise UserError("the data have no labelled dev query to choose the best epoch by: set train_reranker.keep=last")
    pool, queries = _negatives(data, first, settings), len(data.queries)
    generated: list[str] = []
    if settings.triples != "labelled":
        if training_set is None:
            raise UserError(f"train_reranker.triples = {settings.triples} needs a training set")
        examples = TrainingSet.read(training_set)
        origins = [ORIGINS.index(name) for name in ("selected", "generated")[: 1 + (settings.triples == "augmented")]]
        added = examples.take(np.flatnonzero(np.isin(examples.origin, origins)))
        labels, pool, generated = with_examples(labels, pool, added, queries)
    of_data = np.where(labels.query < queries, labels.query, -1)  # -1: generated
    known = KnownPositives.of(data, "train", of_data, labels.passage)  # examples may have denoised positives
    pool = np.where(known.contains(of_data[:, None], pool), -1, pool)
    pairs = None
    if settings.resolved_loss == "listwise_distillation":
        if pair_scores is None:
            raise UserError("train_reranker.loss = listwise_distillation needs a teacher: the input pair_scores")
        pairs = PairScores.read(pair_scores)
        pool = np.where(pairs.find(labels.query[:, None], pool) >= 0, pool, -1)
        settings = settings.model_copy(update={"negatives": settings.distillation_candidates - 1})
    plan = PairBatches(labels, pool, settings, settings.redraw_negatives)
    scored = np.unique(np.concatenate([plan.pairs[1], dev.pairs[1]]))
    if settings.kind in DOCUMENT_KINDS:
        if document_graph is None:
            raise UserError(f"train_reranker.kind = {settings.kind} needs the input document_graph")
        graph, passages = DocumentGraph.read(document_graph), np.unique(plan.pairs[1])
        trained = document_reranker(settings, data, graph, passages, context)
    else:
        trained = new_reranker(settings, data, scored, generated)
    if settings.in_batch_negatives and not trained.table:
        raise UserError(f"in_batch_negatives needs kind colbert: a {settings.kind} would read each pair of the batch")
    if settings.lite:
        trained = with_frozen_encoder(trained, settings, plan.pairs, dev.pairs, context.progress)
    probabilities = trained.logits and settings.resolved_loss == "pairwise_margin"

    def score(query: np.ndarray, passage: np.ndarray) -> Tensor:
        scores = trained.score(query, passage)
        return scores.sigmoid() if probabilities else scores

    def loss(batch: PairBatch) -> Tensor:
        if trained.before:
            trained.before(batch)
        if settings.in_batch_negatives and trained.table:
            return in_batch_loss(trained.table, batch, known, queries)
        return pair_loss(
            score, trained.lengths, batch, loss=settings.resolved_loss, margin=settings.margin,
            teacher=pairs.score[pairs.find(batch.query, batch.passage)] if pairs else None,
            temperature=settings.distillation_temperature,
        )  # fmt: skip

    def figures() -> dict[str, float]:
        measured = dev.measure(trained.rank)
        return {"dev/reranked_AP": measured.pop("dev/reranked_AP"), **measured}  # the first figure chooses the epoch

    # `fit` does not know a frozen encoder, so it stays in eval mode, and no checkpoint has it.
    learner = nn.ModuleList(trained.heads) if settings.lite else trained.model
    objective = Objective(learner, plan, loss, trained.groups(settings), figures if len(dev) else None, settings.keep)
    result = fit(objective, settings, context)
    save_scorer(settings.scorer, trained.model, reranker.path)
    with alone():
        last = figures() if len(dev) else {}
    return {
        "pairs": len(labels.query),
        **result,
        **last,
        **trained.facts(),
        "headline": f"loss {result['final_loss']:.3f}, re-ranked dev MAP {last.get('dev/reranked_AP', 0.0):.3f}",
    }


def _negatives(data: Dataset, first: Run, settings: TrainReranker) -> np.ndarray:
    """The candidates int32 [e, s] from which the negatives of each labelled pair are drawn; -1: no candidate."""
    if settings.negatives_from == "first_stage":
        return negative_pool(data, [first], settings.negative_depth)
    width = settings.negatives * (settings.epochs if settings.redraw_negatives else 1)
    return corpus_negatives(data, width, settings.document_negatives, settings.seed)
