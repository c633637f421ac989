"""Published re-rankers in the steps: as they are, trained further, as teachers, and as judges of candidates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_first_run
from published_rerankers import write_reranker
from safetensors.numpy import load_file

from gnn_encoder.artifacts import Dataset, Graph, PairScores, Run, drafting, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.query_graph.edge_features import EdgeFeatures
from gnn_encoder.retrieval.scorers import PublishedScorer, load_scorer
from gnn_encoder.settings.foundation import ScoreCandidates, TrainCrossEncoder
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.score_candidates import score_candidates
from gnn_encoder.steps.train_cross_encoder import train_cross_encoder
from gnn_encoder.steps.train_reranker import train_reranker
from gnn_encoder.tracking.context import CHECKPOINTS


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("models") / "published")


@pytest.fixture
def runs(tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs = {name: write_first_run(tiny_dataset, tmp_path / name) for name in ("bm25_run", "dpr_run")}
    return {"dataset": tiny_dataset.path, **runs}


def settings(published: Path, **values: Any) -> dict[str, Any]:
    return {"published": str(published), "precision": "fp32", "dev_queries": 20, "batch_size": 24, **values}


def dev_pairs(inputs: dict[str, Path]) -> tuple[Dataset, np.ndarray, np.ndarray]:
    data, run = Dataset(inputs["dataset"]), Run.read(next(path for name, path in inputs.items() if "run" in name))
    dev = np.isin(run.query, data.query_rows("dev"))
    return data, run.query[dev], run.passage[dev]


def by_library(folder: Path, data: Dataset, query: np.ndarray, passage: np.ndarray) -> np.ndarray:
    from sentence_transformers import CrossEncoder

    texts = list(zip(data.query_texts(query), data.passages.take(passage).full_texts(), strict=True))
    probabilities: np.ndarray = CrossEncoder(str(folder), device="cpu").predict(texts, show_progress_bar=False)
    return probabilities


def test_a_reranker_as_it_is_is_not_trained(published: Path, tiny_dataset: Dataset, tmp_path: Path) -> None:
    inputs = {"dataset": tiny_dataset.path, "first_run": write_first_run(tiny_dataset, tmp_path / "run")}
    train_reranker(TrainReranker(**settings(published)), **inputs, reranker=tmp_path / "out")
    scorer, pairs = load_scorer(tmp_path / "out"), dev_pairs(inputs)
    expected = by_library(published, *pairs)
    np.testing.assert_allclose(scorer.probability(scorer.score(*pairs, precision="fp32")), expected, atol=1e-5)
    manifest = read_manifest(tmp_path / "out")
    assert 0 < manifest.metrics["dev/reranked_AP"] < 1 and "steps" not in manifest.metrics
    assert "loss" not in read_history(tmp_path / "out")["train_reranker"].curves
    weights = "model.safetensors"
    before, after = load_file(published / weights), load_file(tmp_path / "out" / weights)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_reranker_is_trained_further_with_its_head(published: Path, tiny_dataset: Dataset, tmp_path: Path) -> None:
    inputs = {"dataset": tiny_dataset.path, "first_run": write_first_run(tiny_dataset, tmp_path / "run")}
    values = settings(published, train_published=True, epochs=6, negatives=2, learning_rate=3e-3, dropout=0.0)
    train_reranker(TrainReranker(**values, loss="pairwise_softmax"), **inputs, reranker=tmp_path / "out")
    curve = [value for _, value in read_history(tmp_path / "out")["train_reranker"].curves["loss"]]
    assert np.mean(curve[-3:]) < 0.9 * np.mean(curve[:3])
    before, after = load_file(published / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    moved = {name: np.abs(after[name] - before[name]).max() for name in before if "dummy" not in name}
    assert all(0 < most < 0.25 for most in moved.values()), "from the published weights, the head's among them"
    pairs = dev_pairs(inputs)
    scorer = load_scorer(tmp_path / "out")
    expected = by_library(tmp_path / "out", *pairs)
    np.testing.assert_allclose(scorer.probability(scorer.score(*pairs, precision="fp32")), expected, atol=1e-5)
    assert np.abs(expected - by_library(published, *pairs)).max() > 0.05


@pytest.mark.parametrize("kind", ["bert", "yes-no"])
def test_a_judge_of_candidates_gives_probabilities_edges_and_a_teachers_scores(
    kind: str, runs: dict[str, Path], tmp_path: Path, tiny_backbone: Path
) -> None:
    folder = write_reranker(tmp_path / "published", kind)
    judge = TrainCrossEncoder(**settings(folder))
    train_cross_encoder(judge, **runs, cross_encoder=tmp_path / "judge")
    assert "as published" in read_manifest(tmp_path / "judge").metrics["headline"]
    scoring = ScoreCandidates(candidates=6, precision="fp32")
    score_candidates(scoring, **runs, cross_encoder=tmp_path / "judge", pair_scores=tmp_path / "pair_scores")
    pairs, data = PairScores.read(tmp_path / "pair_scores"), Dataset(runs["dataset"])
    expected = by_library(folder, data, pairs.query, pairs.passage)
    np.testing.assert_allclose(pairs.probability, expected, atol=1e-5)
    np.testing.assert_allclose(1 / (1 + np.exp(-pairs.score.astype(np.float64))), expected, atol=1e-5)

    torch.manual_seed(0)
    with drafting(tmp_path / "dual_encoder", "model") as draft:
        lengths = {"query_length": 32, "passage_length": 32, "share_encoders": True}
        DualEncoder.from_backbone(str(tiny_backbone), pooling="mean", normalize="yes", **lengths).save(draft.path)
    inputs = {"dataset": data.path, "dual_encoder": tmp_path / "dual_encoder", "cross_encoder": tmp_path / "judge"}
    built = {"graph": tmp_path / "graph", "passage_vectors": tmp_path / "vectors"}
    build_graph(BuildGraph(neighbors=3, precision="fp32"), **inputs, **built)
    graph, scorer = Graph.read(tmp_path / "graph"), load_scorer(tmp_path / "judge")
    assert isinstance(scorer, PublishedScorer)
    _, vectors = scorer.model.eval()(
        *map(torch.from_numpy, scorer.model.arrays(_texts(data, graph.queries[:1].repeat(3), graph.edges[0])))
    )
    np.testing.assert_allclose(EdgeFeatures(graph).vectors(np.arange(3)), vectors.detach().numpy(), atol=2e-3)

    if kind == "bert":
        student = {"kind": "colbert", "loss": "listwise_distillation", "epochs": 1, "token_width": 16, "keep": "last"}
        values = {"backbone": str(tiny_backbone), "precision": "fp32", "query_length": 24, "passage_length": 40}
        first = {"dataset": data.path, "first_run": runs["bm25_run"]}
        chosen = TrainReranker.model_validate(student | values)
        train_reranker(chosen, **first, pair_scores=tmp_path / "pair_scores", reranker=tmp_path / "student")
        assert read_manifest(tmp_path / "student").metrics["steps"] > 0


def _texts(data: Dataset, query: np.ndarray, passage: np.ndarray) -> list[tuple[str, str]]:
    return list(zip(data.query_texts(query), data.passages.take(passage).full_texts(), strict=True))


def test_a_reranker_that_is_not_trained_needs_no_labels(published: Path) -> None:
    with pytest.raises(ValueError, match="train_published = true needs a re-ranker"):
        TrainCrossEncoder(train_published=True)
    with pytest.raises(ValueError, match="needs one process"):
        TrainCrossEncoder(published=str(published), processes=2)
