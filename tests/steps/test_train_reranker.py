"""Re-rankers of every kind: trained, saved, loaded, resumed, and trained on the same pairs."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from conftest import first_stage
from safetensors.numpy import load_file

from gnn_encoder.artifacts import Dataset, Run, drafting, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.errors import UserError
from gnn_encoder.inference.scorers import load_scorer
from gnn_encoder.settings.reranking import RerankerKind, TrainReranker
from gnn_encoder.steps import train_reranker as module
from gnn_encoder.steps.train_reranker import train_reranker
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.training import loop
from gnn_encoder.training.dev import average_precision
from gnn_encoder.training.pairs import PairBatch

KINDS = get_args(RerankerKind)


@pytest.fixture
def inputs(tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The data set, and a first stage with each query's positive in sixth place."""
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    queries, hits = first_stage(tiny_dataset)
    with drafting(tmp_path / "first_run", "run") as draft:
        Run.from_hits(queries, hits, np.zeros(hits.shape)).write(draft)
    return {"dataset": tiny_dataset.path, "first_run": tmp_path / "first_run"}


def train(inputs: dict[str, Path], out: Path, backbone: Path, kind: str, **settings: Any) -> dict[str, np.ndarray]:
    """All weights of the trained re-ranker."""
    values = {
        "kind": kind, "backbone": str(backbone), "pair_length": 48, "batch_size": 24, "negatives": 2, "epochs": 2,
        "learning_rate": 3e-3, "head_learning_rate": 3e-3, "precision": "fp32", "dev_queries": 20, "memory_width": 16,
        "token_width": 16, "query_length": 24, "passage_length": 40, "loss": "pairwise_softmax",
    }  # fmt: skip
    train_reranker(TrainReranker.model_validate(values | settings), **inputs, reranker=out)
    return {name: array for file in sorted(out.glob("*.safetensors")) for name, array in load_file(file).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_and_scores_as_it_did_when_it_is_loaded(
    kind: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    train(inputs, tmp_path / "out", tiny_backbone, kind, epochs=10, dropout=0.0, memory_dropout=0.0)
    figures = read_manifest(tmp_path / "out").metrics
    curve = [value for _, value in read_history(tmp_path / "out")["train_reranker"].curves["loss"]]
    assert np.mean(curve[-4:]) < 0.9 * np.mean(curve[:4])
    data, scorer = Dataset(inputs["dataset"]), load_scorer(tmp_path / "out")
    run = Run.read(inputs["first_run"])
    dev = np.isin(run.query, data.query_rows("dev"))
    scores = scorer.score(data, run.query[dev], run.passage[dev], precision="fp32")
    labels = data.split_qrels("dev").positive()
    relevant = set(zip(labels.query.tolist(), labels.passage.tolist(), strict=True))
    hits = np.array([pair in relevant for pair in zip(run.query[dev].tolist(), run.passage[dev].tolist(), strict=True)])
    order = np.argsort(-scores.reshape(20, 8), axis=1, kind="stable")
    found = average_precision(np.take_along_axis(hits.reshape(20, 8), order, axis=1), np.ones(20))
    assert found == pytest.approx(figures["dev/reranked_AP"])
    half = scorer.score(data, run.query[dev], run.passage[dev], precision="bf16")
    # 0.81 to 0.99: the scores of the tiny cross-encoder are close together.
    assert np.corrcoef(scores, half)[0, 1] > 0.75 and not np.array_equal(scores, half)
    assert abs(np.corrcoef(scores, np.random.default_rng(0).permutation(half))[0, 1]) < 0.5
    probabilities = scorer.probability(scores)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_equals_undisturbed(
    kind: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(inputs, tmp_path / "whole", tiny_backbone, kind)
    real, left = loop.linear_schedule, iter(range(7))

    def interrupted(*given: Any) -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(loop, "linear_schedule", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(inputs, tmp_path / "resumed", tiny_backbone, kind, checkpoint_seconds=1e-6)
    monkeypatch.setattr(loop, "linear_schedule", real)
    resumed = train(inputs, tmp_path / "resumed", tiny_backbone, kind, checkpoint_seconds=1e-6)
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)
    other = train(inputs, tmp_path / "other", tiny_backbone, kind, seed=1)
    assert not all(np.array_equal(whole[name], other[name]) for name in whole)


def test_all_kinds_are_trained_on_the_same_pairs(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.pair_loss
    seen: dict[tuple[str, int], list[PairBatch]] = {}
    for kind, seed in [(kind, 0) for kind in KINDS] + [("colbert", 1)]:
        batches = seen.setdefault((kind, seed), [])
        monkeypatch.setattr(
            module, "pair_loss", lambda *given, _b=batches, **options: (_b.append(given[2]), real(*given, **options))[1]
        )
        train(inputs, tmp_path / f"{kind}{seed}", tiny_backbone, kind, seed=seed)

    def pairs(kind: str, seed: int = 0) -> list[list[tuple[int, int]]]:
        return [list(zip(b.query.tolist(), b.passage.tolist(), strict=True)) for b in seen[kind, seed]]

    assert len(pairs("colbert")) == 16
    assert pairs("cross_encoder") == pairs("bert_dmn") == pairs("colbert") != pairs("colbert", 1)
    batches = pairs("colbert")
    first, second = ({pair for batch in half for pair in batch} for half in (batches[:8], batches[8:]))
    assert first == second


def test_the_margin_is_between_probabilities_where_scores_are_logits(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, ranges = module.pair_loss, {}

    def spying(score: Any, lengths: Any, batch: PairBatch, **options: Any) -> Any:
        scores = score(batch.query, batch.passage).detach()
        ranges.setdefault(kind, []).append((scores.min().item(), scores.max().item()))
        return real(score, lengths, batch, **options)

    monkeypatch.setattr(module, "pair_loss", spying)
    for kind in KINDS:
        train(inputs, tmp_path / kind, tiny_backbone, kind, loss="pairwise_margin")
    for kind in ("cross_encoder", "bert_dmn"):
        assert all(0 < low <= high < 1 for low, high in ranges[kind])
    assert max(high for _, high in ranges["colbert"]) > 1


def test_average_precision_of_two_queries() -> None:
    hits = np.array([[True, False, True, False], [False, False, False, False]])
    assert average_precision(hits, np.array([3, 1])) == pytest.approx((1 + 2 / 3) / 3 / 2)


def test_without_labels_it_says_so(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dataset, "split_qrels", lambda self, split, _real=Dataset.split_qrels: _real(self, "none"))
    with pytest.raises(UserError, match="no labelled training pairs"):
        train(inputs, tmp_path / "out", tiny_backbone, "colbert")
