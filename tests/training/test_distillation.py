"""Listwise distillation against float64 loops, and a dual encoder that learns a teacher's order."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from ordered_sums import OrderedSums
from safetensors.torch import load_file
from small_training import two_encoders

from gnn_encoder.artifacts import Dataset, PairScores, Qrels, TrainingSet, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.steps.train_dual_encoder import train_dual_encoder
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.training import embed, losses
from gnn_encoder.training.distillation import Teacher
from gnn_encoder.training.losses import list_scores, listwise_distillation
from gnn_encoder.training.pairs import PairBatches, pair_loss
from gnn_encoder.training.prefetch import batches_of


def by_hand(scores: torch.Tensor, teacher: torch.Tensor, temperature: float) -> float:
    losses = []
    for row, wanted in zip(scores.tolist(), teacher.tolist(), strict=True):
        listed = [(s / temperature, t / temperature) for s, t in zip(row, wanted, strict=True) if t > -math.inf]
        if listed:
            z, y = (sum(math.exp(pair[i]) for pair in listed) for i in range(2))
            losses.append(
                sum(math.exp(t) / y * (math.log(math.exp(t) / y) - math.log(math.exp(s) / z)) for s, t in listed)
            )
    return sum(losses) / len(losses)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_equals_the_divergence_by_hand(temperature: float) -> None:
    torch.manual_seed(0)
    scores, teacher = 3 * torch.randn(6, 5), 3 * torch.randn(6, 5)
    teacher[torch.rand(6, 5) < 0.3] = -math.inf
    teacher[2], teacher[4, 1:] = -math.inf, -math.inf  # no list, and a list of one passage, whose divergence is 0
    live = scores.clone().requires_grad_()
    loss = listwise_distillation(live, teacher, temperature)
    assert loss.item() == pytest.approx(by_hand(scores, teacher, temperature), rel=1e-5)
    loss.backward()
    assert not live.grad[teacher.isneginf()].any() and live.grad[0].any() and not live.grad[4].any()
    for row, column in [(0, int(teacher[0].argmax())), (5, int(teacher[5].argmax()))]:
        step = torch.zeros_like(scores, dtype=torch.float64)
        step[row, column] = 1e-4
        up, down = (by_hand(scores.double() + sign * step, teacher, temperature) for sign in (1, -1))
        assert live.grad[row, column].item() == pytest.approx((up - down) / 2e-4, rel=1e-3, abs=1e-6)
    # Controls: the divergence is 0 for the teacher's own scores alone, and has a direction and a temperature.
    assert listwise_distillation(teacher, teacher, temperature).item() == pytest.approx(0, abs=1e-6)
    full = torch.randn(6, 5)
    assert abs(by_hand(scores, full, 1.0) - by_hand(full, scores, 1.0)) > 1e-2
    assert listwise_distillation(scores, full, 1.0).item() == pytest.approx(by_hand(scores, full, 1.0), rel=1e-5)
    assert abs(listwise_distillation(scores, teacher, 2 * temperature).item() - loss.item()) > 1e-3


def test_without_a_list_the_loss_is_zero() -> None:
    scores = torch.randn(3, 4, requires_grad=True)
    loss = listwise_distillation(scores, torch.full((3, 4), -math.inf), 1.0)
    loss.backward()
    assert loss.item() == 0 and not scores.grad.any()


def test_scores_of_lists_equal_single_products_also_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, passages = torch.randn(7, 8, generator=generator), torch.randn(9, 8, generator=generator)
    listed = torch.randint(0, 9, (7, 3), generator=generator)
    wanted = [[0.5 * float(queries[i].double() @ passages[j].double()) for j in listed[i]] for i in range(7)]
    monkeypatch.setattr(losses, "SCORED", 48)  # two queries at a time
    for cached in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = list_scores(queries.requires_grad_(), passages, listed, 0.5, cached=cached)
        assert torch.allclose(scores.double(), torch.tensor(wanted, dtype=torch.float64), atol=1e-6)
        scores.sum().backward()
    assert torch.allclose(queries.grad, 2 * 0.5 * passages[listed].sum(1), atol=1e-5)
    assert not torch.allclose(scores, list_scores(queries, passages, listed.flip(0), 0.5))


def test_the_lists_of_a_re_ranker_are_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "TOKENS_PER_PASS", {"cpu": 64, "cuda": 64})  # several parts
    pool = np.arange(20, 140).reshape(20, 6)
    pool[np.arange(6) >= (np.arange(20) % 7)[:, None]] = -1
    rows = np.arange(20, dtype=np.int32)
    settings = TrainReranker(loss="listwise_distillation", batch_size=32, negatives=3)
    plan = PairBatches(Qrels(rows, rows, np.ones(20, np.int32)), pool, settings)
    scores, teacher = (3 * np.random.default_rng(seed).standard_normal((20, 140)) for seed in range(2))
    lengths = np.random.default_rng(2).integers(5, 20, (20, 140))

    def score(query: np.ndarray, passage: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(scores[query, passage]).float()

    def tokens(query: np.ndarray, passage: np.ndarray) -> np.ndarray:
        return lengths[query, passage]

    for batch in batches_of(plan, 0):
        teacher_scores = teacher[batch.query, batch.passage].astype(np.float32)
        options = {"loss": "listwise_distillation", "temperature": 2.0}
        tables = [torch.full((20, 140), -math.inf, dtype=torch.float64) for _ in range(2)]
        for table, values in zip(tables, (scores, teacher), strict=True):
            table[batch.query, batch.passage] = torch.from_numpy(values[batch.query, batch.passage])
        wanted = by_hand(*tables, 2.0)
        assert pair_loss(score, tokens, batch, **options, teacher=teacher_scores).item() == pytest.approx(
            wanted, rel=1e-4
        )
        turned = pair_loss(score, tokens, batch, **options, teacher=np.roll(teacher_scores, 1))
        assert abs(turned.item() - wanted) > 1e-3


def scored_pairs(dataset: Dataset, per_query: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Candidates by chance of all training queries but the first, most without a label, and scores by chance."""
    generator = np.random.default_rng(0)
    queries = dataset.query_rows("train")[1:]
    passage = np.concatenate([np.sort(generator.permutation(100)[:per_query]) for _ in queries])
    scores = 3 * generator.standard_normal(len(passage))
    return np.repeat(queries, per_query), passage.astype(np.int32), scores.astype(np.float32)


def test_lists_are_drawn_from_a_querys_scored_passages(tiny_dataset: Dataset) -> None:
    query, passage, score = scored_pairs(tiny_dataset)
    pairs = PairScores(query, passage, score, score, score)
    known = {(q, p): s for q, p, s in zip(query.tolist(), passage.tolist(), score.tolist(), strict=True)}
    queries = np.array([query[30], -1, query[0], tiny_dataset.query_rows("train")[0], query[30]])
    teacher = Teacher(pairs, TrainDualEncoder(distillation_candidates=4))
    passages, scores = teacher.lists(queries, seed=0)
    assert passages.shape == scores.shape == (5, 4) and scores.dtype == np.float32
    assert (passages[[1, 3]] == -1).all() and (scores[[1, 3]] == -np.inf).all()
    for row in (0, 2, 4):
        assert len(set(passages[row])) == 4
        assert [known[queries[row], p] for p in passages[row]] == scores[row].tolist()
    assert np.array_equal(teacher.lists(queries, seed=0)[0], passages)
    assert not np.array_equal(teacher.lists(queries, seed=1)[0], passages)
    whole, _ = Teacher(pairs, TrainDualEncoder(distillation_candidates=50)).lists(queries, seed=0)
    assert set(whole[0]) == set(passage[query == query[30]])


@pytest.fixture
def inputs(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Path]:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    labels = tiny_dataset.split_qrels("train")
    negatives = np.full((len(labels.query), 1), -1, dtype=np.int32)
    with drafting(tmp_path / "training_set", "training_set") as draft:
        texts, origin = tiny_dataset.query_texts(labels.query), np.zeros(len(labels.query), dtype=np.int8)
        TrainingSet(texts, labels.query, labels.passage, negatives, origin).write(draft)
    with drafting(tmp_path / "start", "model") as draft:
        two_encoders(tiny_backbone).save(draft.path)
    with drafting(tmp_path / "pair_scores", "pair_scores") as draft:
        query, passage, score = scored_pairs(tiny_dataset)
        PairScores.create_cls(draft, len(query), 2).flush()
        PairScores.write(draft, query, passage, score, score)
    names = ("training_set", "start", "pair_scores")
    return {"dataset": tiny_dataset.path, **{name: tmp_path / name for name in names}}


def train(out: Path, inputs: dict[str, Path], **settings: object) -> dict[str, torch.Tensor]:
    values = {
        "epochs": 3, "batch_size": 16, "start_from": "dpr", "precision": "fp32", "dropout": 0.0, "dev_queries": 0,
        "learning_rate": 3e-3,
    }  # fmt: skip
    with OrderedSums():
        train_dual_encoder(TrainDualEncoder.model_validate({**values, **settings}), **inputs, dual_encoder=out)
    files = sorted(out.rglob("*.safetensors"))
    return {f"{file.parent.name}.{name}": value for file in files for name, value in load_file(file).items()}


@pytest.mark.slow
def test_the_dual_encoder_learns_the_teachers_order_of_unlabelled_passages(
    inputs: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    query, passage, score = scored_pairs(tiny_dataset)

    def agreement(out: Path) -> float:
        model = DualEncoder.load(out)
        vectors = np.empty((100, 32), dtype=np.float32)
        encode_passages(model.passage_encoder, tiny_dataset.passages, vectors, precision="fp32")
        query_vectors = encode_texts(model.query_encoder, tiny_dataset.query_texts(query), precision="fp32")
        scores = (query_vectors * vectors[passage]).sum(1).reshape(-1, 10)
        return float(np.mean([np.corrcoef(*rows)[0, 1] for rows in zip(scores, score.reshape(-1, 10), strict=True)]))

    train(tmp_path / "taught", inputs, distillation=0.9, epochs=15)
    train(tmp_path / "plain", inputs, epochs=15)
    assert agreement(tmp_path / "taught") > 0.4 > 0.2 > agreement(tmp_path / "plain")


@pytest.mark.slow
def test_without_distillation_the_scores_change_nothing(inputs: dict[str, Path], tmp_path: Path) -> None:
    def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(one[name], two[name]) for name in one)

    with_scores = train(tmp_path / "given", inputs)
    assert same(with_scores, train(tmp_path / "temperature", inputs, distillation_temperature=3.0))
    taught = train(tmp_path / "taught", inputs, distillation=0.5)
    assert not same(with_scores, taught)
    assert not same(taught, train(tmp_path / "flatter", inputs, distillation=0.5, distillation_temperature=3.0))
    cached = train(tmp_path / "cached", inputs, distillation=0.5, gradient_cache=True)
    assert max(float((cached[name] - taught[name]).abs().max()) for name in taught) < 1e-3
    del inputs["pair_scores"]
    assert same(with_scores, train(tmp_path / "without", inputs))
    with pytest.raises(UserError, match="needs M_ce's scores"):
        train(tmp_path / "none", inputs, distillation=0.5)
