"""Trains a plain dual encoder: DPR and M_de."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from gnn_encoder.artifacts import Dataset, KnownPositives, TrainingSet
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_texts, encode_tokens
from gnn_encoder.inference.tokens import Tokens, passage_tokens
from gnn_encoder.models.dual_encoder import PASSAGE_ENCODER, DualEncoder, on_device
from gnn_encoder.settings.foundation import TrainDpr, TrainDualEncoder
from gnn_encoder.settings.shared import Backbone, ContrastiveTraining
from gnn_encoder.tracking.context import Context
from gnn_encoder.training.adapters import large_training
from gnn_encoder.training.batches import Batch, ExampleBatches
from gnn_encoder.training.dev import DevPool
from gnn_encoder.training.distillation import Teacher
from gnn_encoder.training.embed import embed
from gnn_encoder.training.loop import Objective, fit
from gnn_encoder.training.losses import (
    contrastive_loss,
    list_scores,
    listwise_distillation,
    loss_scale,
    matryoshka_loss,
)
from gnn_encoder.training.ranks import is_leader


def new_dual_encoder(settings: TrainDpr | TrainDualEncoder, encoder: Path | None = None) -> DualEncoder:
    """The dual encoder before training, from the settings' backbone, or from a dual encoder that was read as it is."""
    options = settings.model_dump(include={*Backbone.model_fields, "share_encoders"}, exclude={"backbone"})
    return DualEncoder.from_backbone(str(encoder / PASSAGE_ENCODER) if encoder else settings.backbone, **options)


def train_contrastive(
    model: DualEncoder,
    examples: TrainingSet,
    dataset: Dataset,
    settings: ContrastiveTraining,
    context: Context,
    teacher: Teacher | None = None,
    patience: int = 0,
) -> dict[str, Any]:
    """Trains on examples with eq. 2: the negatives are hard negatives and all other passages of the batch.

    With `matryoshka` in the settings, the loss is the sum of eq. 2 over those numbers of first components.

    With a teacher the loss is (1 − w) · eq. 2 + w · the divergence from the teacher's scores of each query's list. The
    lists' passages are no negatives of eq. 2, so the batches are the same as without a teacher.
    """
    if len(examples.query) == 0:
        raise UserError("no training examples: the dataset has no labelled train queries")
    query_encoder, passage_encoder = model.query_encoder, model.passage_encoder
    queries = Tokens.of(query_encoder.tokenizer, examples.query_text, query_encoder.max_length, query_encoder.prompt)
    progress = context.progress if is_leader() else None
    passages = passage_tokens(
        passage_encoder.tokenizer,
        dataset.passages,
        passage_encoder.max_length,
        progress=progress,
        prompt=passage_encoder.prompt,
    )
    known = KnownPositives.of(dataset, "train", examples.query, examples.positive)
    plan = ExampleBatches(examples, settings.batch_size, settings.negatives, known, settings.seed)
    scale = loss_scale(settings.score_scale, passage_encoder.normalize)
    cached, pool = settings.gradient_cache, DevPool(dataset, settings)
    dimensions = settings.matryoshka or (passage_encoder.width,)
    if max(dimensions) > passage_encoder.width:
        raise UserError(f"matryoshka = {list(dimensions)}: the vectors have {passage_encoder.width} components")

    def contrastive(batch: Batch, query_vectors: Tensor, passage_vectors: Tensor) -> Tensor:
        positive, excluded = on_device(batch.positive), on_device(batch.excluded)

        def of(queries: Tensor, passages: Tensor) -> Tensor:
            return contrastive_loss(queries, passages, positive, excluded, scale, cached=cached)

        return matryoshka_loss(of, query_vectors, passage_vectors, dimensions, passage_encoder.normalize)

    def loss(batch: Batch) -> Tensor:
        query_vectors = embed(query_encoder, queries, batch.examples, cached=cached)
        if not teacher:
            return contrastive(batch, query_vectors, embed(passage_encoder, passages, batch.passages, cached=cached))
        listed, scores = teacher.lists(examples.query[batch.examples], batch.seed)
        rows = np.union1d(batch.passages, listed[listed >= 0])
        passage_vectors = embed(passage_encoder, passages, rows, cached=cached)
        batch_rows, listed_rows = (on_device(np.searchsorted(rows, wanted)) for wanted in (batch.passages, listed))
        divergence = listwise_distillation(
            list_scores(query_vectors, passage_vectors, listed_rows, scale, cached=cached),
            on_device(scores),
            teacher.temperature,
        )
        contrast = contrastive(batch, query_vectors, passage_vectors.index_select(0, batch_rows))
        return (1 - teacher.weight) * contrast + teacher.weight * divergence

    def measure() -> dict[str, float]:
        query_vectors = encode_texts(query_encoder, dataset.query_texts(pool.queries), precision=settings.precision)
        passage_vectors = np.empty((len(pool.passages), passage_encoder.width), dtype=np.float32)
        encode_tokens(passage_encoder, passages.take(pool.passages), passage_vectors, precision=settings.precision)
        return pool.measure(query_vectors, passage_vectors)

    encoders = (query_encoder, passage_encoder)
    if settings.lora_rank:
        model.requires_grad_(False)  # the modules after the backbone, too
    with large_training((encoder.backbone for encoder in encoders), settings):
        objective = Objective(
            model, plan, loss, measure=measure if len(pool) else None, keep=settings.keep, patience=patience,
            adapters=settings.lora_rank > 0,
        )  # fmt: skip
        return fit(objective, settings, context)
