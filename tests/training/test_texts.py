"""Masked training over stored vectors: what is trained, what is not, and that it learns."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_training import examples_of

from gnn_encoder.artifacts import Dataset, Graph, reverse_csr
from gnn_encoder.models.gnn import GNN, GnnConfig
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.training.masked_graph import MaskedGraphTraining
from gnn_encoder.training.texts import FrozenGnnEncoder


@pytest.mark.usefixtures("on_cpu")
def test_starts_as_the_stored_vectors_and_maps_queries_alone() -> None:
    generator = np.random.default_rng(0)
    queries, passages = (generator.standard_normal((9, 8)).astype(np.float32) for _ in range(2))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    gnn = GNN(GnnConfig(width=8, edge_width=0, heads=2))
    model = FrozenGnnEncoder(gnn, queries, passages.astype(np.float16), unit_length=True, rate=1e-3)
    rows = np.array([3, 3, 0])
    np.testing.assert_allclose(model.queries.vectors(rows), queries[rows], atol=1e-6)
    assert np.array_equal(model.passages.vectors(rows), passages.astype(np.float16)[rows].astype(np.float32))
    weight = torch.randn(8, 8)
    model.query_map.weight.data = weight
    mapped = queries[rows].astype(float) @ weight.numpy().T.astype(float)
    np.testing.assert_allclose(
        model.queries.vectors(rows), mapped / np.linalg.norm(mapped, axis=1, keepdims=True), atol=1e-5
    )
    assert model.queries.live(rows).requires_grad and not model.passages.live(rows).requires_grad


@pytest.mark.slow
def test_the_loss_falls(tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    generator = np.random.default_rng(0)
    nodes = tiny_dataset.query_rows("train")
    vectors = generator.standard_normal((100, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = np.empty((100, 16), np.float32)
    every = np.concatenate([tiny_dataset.split_qrels(split).query for split in ("train", "dev", "test")])
    positive = np.concatenate([tiny_dataset.split_qrels(split).passage for split in ("train", "dev", "test")])
    # A rotation stands between queries and passages: the map can learn it, the GNN alone cannot.
    queries[every] = vectors[positive] @ np.linalg.qr(generator.standard_normal((16, 16)))[0].astype(np.float32)
    edges = np.stack([generator.permutation(100)[:4] for _ in nodes]).astype(np.int32)
    graph = Graph(nodes, edges, edges < -1, None, *reverse_csr(edges, 100))
    examples = examples_of(tiny_dataset, generator.integers(0, 100, (60, 4)).astype(np.int32))
    settings = TrainGnn(epochs=30, batch_size=15, mask_fraction=0.25, gnn_learning_rate=1e-3, dev_queries=10)

    def fitted(rate: float) -> tuple[float, dict[str, float]]:
        torch.manual_seed(0)
        gnn = GNN(GnnConfig(width=16, edge_width=0, heads=2, normalize_passages=True))
        model = FrozenGnnEncoder(gnn, queries, vectors, unit_length=True, rate=rate)
        training = MaskedGraphTraining(model, tiny_dataset, examples, graph, vectors, settings)
        seen: dict[str, float] = {}
        with mlflow_runs.step_log("test", params={}, tags={}) as run:
            context = Context("test", run, f"{rate}")
            monkeypatch.setattr(Context, "metric", lambda self, name, value, at: seen.update({name: value}))
            return training.fit(context)["final_loss"], seen

    (loss, seen), (control, unseen) = fitted(1e-2), fitted(1e-9)
    assert loss < 0.5 * control
    assert seen["dev_pool/RR_at_10"] > unseen["dev_pool/RR_at_10"] + 0.2
