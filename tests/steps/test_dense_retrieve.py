"""The step's run is the exact ranking of the encoder's own vectors, and leaves no vectors behind."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, Run, drafting, read_manifest
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import DenseRetrieve
from gnn_encoder.steps.dense_retrieve import dense_retrieve


@pytest.fixture(scope="module")
def dpr(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> Path:
    path = tmp_path_factory.mktemp("dense") / "dpr"
    model = DualEncoder.from_backbone(
        str(tiny_backbone), pooling="mean", normalize="no", query_length=16, passage_length=32, share_encoders=False
    )
    with torch.no_grad():
        for parameter in model.query_encoder.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    with drafting(path, "model") as draft:
        model.save(draft.path)
    return path


def test_run_is_the_exact_ranking(tmp_path: Path, tiny_dataset: Dataset, dpr: Path) -> None:
    settings = DenseRetrieve(train_depth=6, eval_depth=20, precision="fp32")
    dense_retrieve(settings, dataset=tiny_dataset.path, dpr=dpr, dpr_run=tmp_path / "run")
    run = Run.read(tmp_path / "run")
    model = DualEncoder.load(dpr)
    passages = np.empty((100, 32), np.float32)
    encode_passages(model.passage_encoder, tiny_dataset.passages, passages, precision="fp32")
    queries = encode_texts(model.query_encoder, tiny_dataset.query_texts(np.arange(100)), precision="fp32")
    exact = queries.astype(np.float64) @ passages.T.astype(np.float64)
    assert np.bincount(run.query).tolist() == [6] * 60 + [20] * 40
    # float32 rounds an inner product's terms, which are near 1 whatever the sum is: the error is absolute.
    np.testing.assert_allclose(run.score, exact[run.query, run.passage], rtol=0, atol=2e-6)
    for query in (0, 70):
        listed = run.of(np.array([query]))
        left_out = np.delete(exact[query], listed.passage)
        assert (np.diff(listed.score) <= 0).all() and listed.score.min() >= left_out.max() - 1e-4


def test_leaves_nothing_but_the_run(tmp_path: Path, tiny_dataset: Dataset, dpr: Path) -> None:
    dense_retrieve(DenseRetrieve(), dataset=tiny_dataset.path, dpr=dpr, dpr_run=tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "history.json", "manifest.json", "run.parquet", "system.json",
    ]  # fmt: skip
    metrics = read_manifest(tmp_path / "run").metrics
    assert metrics["passages_per_second"] > 0 and 0 <= metrics["dev/R_at_100"] <= 1
