"""Trains a dual encoder on BM25 negatives and in-batch negatives, to find candidates (DPR)."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Dataset, Draft, Run, TrainingSet
from gnn_encoder.artifacts.training_examples import ORIGINS
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.retrieval.first_stage import negative_pool
from gnn_encoder.settings.foundation import TrainDpr
from gnn_encoder.training.contrastive import new_dual_encoder, train_contrastive


@step(dpr="model")
def train_dpr(
    context: Context, settings: TrainDpr, dataset: Path, bm25_run: Path, dpr: Draft, encoder: Path | None = None
) -> Metrics:
    """Trains DPR on labelled pairs, from the settings' backbone, or from the `encoder` that the run has chosen."""
    data = Dataset(dataset)
    examples = lexical_examples(data, Run.read(bm25_run), settings.negative_depth)
    model = new_dual_encoder(settings, encoder)
    result = train_contrastive(model, examples, data, settings, context)
    model.save(dpr.path)
    return {"examples": len(examples.query), **result}


def lexical_examples(dataset: Dataset, run: Run, depth: int) -> TrainingSet:
    """Returns one example per labelled training pair; negatives are the query's first BM25 hits without positives."""
    labels = dataset.trained_labels
    return TrainingSet(
        dataset.query_texts(labels.query),
        labels.query,
        labels.passage,
        negative_pool(dataset, [run], depth),
        np.full(len(labels.query), ORIGINS.index("labelled"), dtype=np.int8),
    )
