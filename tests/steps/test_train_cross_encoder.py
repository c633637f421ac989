"""The cross-encoder's figures on dev: after re-ranking, and in DPR's order."""

from pathlib import Path

import numpy as np
import torch

from gnn_encoder.artifacts import Dataset, Run
from gnn_encoder.inference.scoring import pair_tokens
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.settings.foundation import TrainCrossEncoder
from gnn_encoder.steps.train_cross_encoder import dev_figures


def test_the_order_before_is_that_of_dpr_alone(tiny_dataset: Dataset, tiny_backbone: Path) -> None:
    torch.manual_seed(0)
    model = CrossEncoder.from_backbone(str(tiny_backbone), 48)
    labels = tiny_dataset.split_qrels("dev")
    queries = np.unique(labels.query)
    positive = np.array([labels.passage[labels.query == q][0] for q in queries])
    # DPR has the positive in fourth place; BM25 has three others.
    others = (positive[:, None] + 1 + np.arange(6)) % 100
    dpr = np.concatenate([others[:, :3], positive[:, None]], axis=1)
    runs = [Run.from_hits(queries, hits, np.zeros(hits.shape)) for hits in (dpr, others[:, 3:])]
    settings = TrainCrossEncoder(precision="fp32", dev_queries=20)
    figures = dev_figures(model, pair_tokens(model, tiny_dataset), tiny_dataset, runs, settings)
    assert figures["dev/retrieved_RR_at_10"] == 0.25
    assert figures["dev/reranked_RR_at_10"] != 0.25
