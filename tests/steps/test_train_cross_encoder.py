"""The cross-encoder: its figures on dev, its losses, and the epoch that is kept."""

from pathlib import Path

import numpy as np
import pytest
from conftest import write_first_run
from safetensors.numpy import load_file

from gnn_encoder.artifacts import Dataset, Run, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import TrainCrossEncoder
from gnn_encoder.steps import train_cross_encoder as module
from gnn_encoder.steps.train_cross_encoder import train_cross_encoder
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.training import loop
from gnn_encoder.training.dev import DevCandidates


def test_the_order_before_is_that_of_dpr_alone(tiny_dataset: Dataset) -> None:
    labels = tiny_dataset.split_qrels("dev")
    queries = np.unique(labels.query)
    positive = np.array([labels.passage[labels.query == q][0] for q in queries])
    # DPR has the positive in fourth place; BM25 has three others.
    others = (positive[:, None] + 1 + np.arange(6)) % 100
    dpr = np.concatenate([others[:, :3], positive[:, None]], axis=1)
    runs = [Run.from_hits(queries, hits, np.zeros(hits.shape)) for hits in (dpr, others[:, 3:])]
    dev = DevCandidates(tiny_dataset, runs, TrainCrossEncoder(dev_queries=20))
    relevant = {(q, p) for q, p in zip(queries.tolist(), positive.tolist(), strict=True)}

    def score(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        """The positive in second place."""
        first = np.diff(query, prepend=-1) != 0
        is_relevant = [(q, p) in relevant for q, p in zip(query.tolist(), passage.tolist(), strict=True)]
        return 2.0 * first + np.array(is_relevant)

    assert dev.measure(score) == {
        "dev/reranked_RR_at_10": 0.5,
        "dev/retrieved_RR_at_10": 0.25,
        "dev/reranked_AP": 0.5,
    }
    assert not len(DevCandidates(tiny_dataset, runs, TrainCrossEncoder(dev_queries=0)))


@pytest.fixture
def inputs(tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs = {name: write_first_run(tiny_dataset, tmp_path / name) for name in ("bm25_run", "dpr_run")}
    return {"dataset": tiny_dataset.path, **runs}


def train(inputs: dict[str, Path], out: Path, backbone: Path, **settings: object) -> dict[str, np.ndarray]:
    """Weights of the trained model."""
    values = {"backbone": str(backbone), "pair_length": 48, "batch_size": 24, "negatives": 2, "precision": "fp32"}
    chosen = TrainCrossEncoder.model_validate({**values, "learning_rate": 3e-3, "dev_queries": 20, **settings})
    train_cross_encoder(chosen, **inputs, cross_encoder=out)
    return load_file(out / "model.safetensors") | load_file(out / "head.safetensors")


def same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> bool:
    assert one.keys() == two.keys()
    return all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("loss", "margin", "first", "share"),
    [
        ("pointwise", 0.2, np.log(2), 0.97),  # one of three is relevant: -log 1/3 / 3 - 2 log 2/3 / 3 is 0.92 of it
        ("pairwise_margin", 0.2, 0.2, 0.8),
        ("pairwise_margin", 3.0, 3.0, 0.8),
        ("pairwise_softmax", 0.2, np.log(3), 0.8),
    ],
)
def test_each_loss_begins_as_for_equal_scores_and_falls(
    loss: str, margin: float, first: float, share: float, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    train(inputs, tmp_path / "out", tiny_backbone, loss=loss, margin=margin, epochs=8, dropout=0.0)
    curve = [value for _, value in read_history(tmp_path / "out")["train_cross_encoder"].curves["loss"]]
    assert curve[0] == pytest.approx(first, abs=0.05)
    assert np.mean(curve[-5:]) < share * first


def test_adapters_change_the_linear_layers_by_matrices_of_their_rank(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    before = load_file(tiny_backbone / "model.safetensors")
    adapted = train(inputs, tmp_path / "adapted", tiny_backbone, epochs=2, lora_rank=2)
    whole = train(inputs, tmp_path / "whole", tiny_backbone, epochs=2)
    assert adapted.keys() == whole.keys()
    for name, weights in adapted.items():
        if name in before:
            of_a_layer = ".layer." in name and weights.ndim == 2
            change = weights - before[name]
            if of_a_layer:
                assert np.linalg.matrix_rank(change, tol=1e-5) == 2
                assert np.linalg.matrix_rank(whole[name] - before[name], tol=1e-5) > 2  # control
            else:
                assert not change.any(), name


@pytest.mark.slow
def test_the_best_epoch_is_kept(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = iter([0.2, 0.7, 0.7, 0.1, 0.7])  # of four epochs; and of the kept model, for the report
    monkeypatch.setattr(DevCandidates, "measure", lambda *_: {"dev/reranked_RR_at_10": next(figures)})
    best = train(inputs, tmp_path / "best", tiny_backbone, epochs=4, keep="best")
    metrics = read_manifest(tmp_path / "best").metrics
    assert metrics["kept_epoch"] == 2 and metrics["dev/reranked_RR_at_10"] == 0.7
    figures = iter([0.2, 0.7, 0.7, 0.1, 0.1])
    last = train(inputs, tmp_path / "last", tiny_backbone, epochs=4)
    assert not same(best, last) and "kept_epoch" not in read_manifest(tmp_path / "last").metrics

    # The weights of the second epoch, of a training that ends with them but for its schedule.
    weights = []
    figures = iter([0.2, 0.7, 0.7, 0.1, 0.7])
    real = loop.Objective

    def spying(model, *rest, **named):
        monkeypatch.setattr(
            DevCandidates,
            "measure",
            lambda *_: (
                weights.append({n: p.detach().numpy().copy() for n, p in model.named_parameters()})
                or {"dev/reranked_RR_at_10": next(figures)}
            ),
        )
        return real(model, *rest, **named)

    monkeypatch.setattr(module, "Objective", spying)
    train(inputs, tmp_path / "seen", tiny_backbone, epochs=4, keep="best", seed=0)
    assert len(weights) == 5 and same(weights[1], weights[4]) and not same(weights[1], weights[2])


def test_without_dev_figures_no_epoch_is_the_best(inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^train_cross_encoder.keep = best needs figures on dev: .* dev_queries is 0$"):
        train(inputs, tmp_path / "out", tiny_backbone, keep="best", dev_queries=0)
