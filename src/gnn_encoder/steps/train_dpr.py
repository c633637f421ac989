"""Step 3: a dual encoder trained on BM25 negatives and in-batch negatives, to find candidates (DPR)."""

from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import ORIGINS, Dataset, Draft, Run, TrainingSet
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.retrieval.first_stage import negative_pool
from gnn_encoder.runs.step import Metrics, step
from gnn_encoder.settings.foundation import TrainDpr
from gnn_encoder.tracking.context import Context
from gnn_encoder.training.contrastive import train_contrastive


@step(dpr="model")
def train_dpr(context: Context, settings: TrainDpr, dataset: Path, bm25_run: Path, dpr: Draft) -> Metrics:
    """Train the candidate finder on labelled pairs."""
    data = Dataset(dataset)
    examples = lexical_examples(data, Run.read(bm25_run), settings.negative_depth)
    model = DualEncoder.from_backbone(
        settings.backbone, pooling=settings.pooling, normalize=settings.normalize,
        query_length=settings.query_length, passage_length=settings.passage_length,
        share_encoders=settings.share_encoders,
    )  # fmt: skip
    result = train_contrastive(model, examples, data, settings, context)
    model.save(dpr.path)
    return {
        "examples": len(examples.query),
        **result.metrics(),
        "headline": f"loss {result.loss:.3f}, {result.examples_per_second:.1f} examples/s",
    }


def lexical_examples(dataset: Dataset, run: Run, depth: int) -> TrainingSet:
    """One example per labelled train pair; its negatives are the query's first BM25 hits, positives excluded."""
    labels = dataset.split_qrels("train").positive()
    return TrainingSet(
        dataset.query_texts(labels.query),
        labels.query,
        labels.passage,
        negative_pool(dataset, [run], depth),
        np.full(len(labels.query), ORIGINS.index("labelled"), dtype=np.int8),
    )
