"""Re-rankers of every kind: trained, saved, loaded, resumed, and trained on the same pairs."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from conftest import first_stage, write_first_run
from ordered_sums import OrderedSums
from safetensors.numpy import load_file
from safetensors.torch import save_file
from saved_states import wait_for_each

from gnn_encoder.artifacts import Dataset, KnownPositives, PairScores, Run, TrainingSet, drafting, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.scorers import load_scorer
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.settings.reranking_systems import DOCUMENT_KINDS, SYSTEMS, WORD_KINDS, RerankerKind
from gnn_encoder.steps import train_reranker as module
from gnn_encoder.steps.train_reranker import train_reranker
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.training import checkpoint, lite, loop
from gnn_encoder.training.dev import average_precision
from gnn_encoder.training.pairs import PairBatch
from gnn_encoder.training.rerankers import new_reranker

KINDS = [kind for kind in get_args(RerankerKind) if kind not in DOCUMENT_KINDS]


@pytest.fixture
def inputs(tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The data set, and a first stage with each query's positive in sixth place."""
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return {"dataset": tiny_dataset.path, "first_run": write_first_run(tiny_dataset, tmp_path / "first_run")}


def train(inputs: dict[str, Path], out: Path, backbone: Path, name: str, **settings: Any) -> dict[str, np.ndarray]:
    """All weights of the trained re-ranker of a system."""
    system = SYSTEMS[name]
    values = {
        "kind": system.kind, "backbone": str(backbone), "pair_length": 48, "batch_size": 24, "negatives": 2,
        "epochs": 2, "learning_rate": 3e-3, "head_learning_rate": 3e-3, "precision": "fp32", "dev_queries": 20,
        "memory_width": 16, "token_width": 16, "query_length": 24, "passage_length": 40, "lstm_width": 16,
        "loss": "pairwise_softmax", **system.changes,
    }  # fmt: skip
    train_reranker(TrainReranker.model_validate(values | settings), **inputs, reranker=out)
    return {name: array for file in sorted(out.glob("*.safetensors")) for name, array in load_file(file).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_and_scores_as_it_did_when_it_is_loaded(
    kind: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    still = {"dropout": 0.0, "memory_dropout": 0.0, "lstm_dropout": 0.0}
    with OrderedSums():
        train(inputs, tmp_path / "out", tiny_backbone, kind, epochs=10, **still)
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
    precision = average_precision(np.take_along_axis(hits.reshape(20, 8), order, axis=1), np.ones(20))
    assert precision == pytest.approx(figures["dev/reranked_AP"])
    half = scorer.score(data, run.query[dev], run.passage[dev], precision="bf16")
    # 0.81 to 0.99: the scores of the tiny cross-encoder are close together.
    assert np.corrcoef(scores, half)[0, 1] > 0.75 and np.array_equal(scores, half) == (kind in WORD_KINDS)
    assert abs(np.corrcoef(scores, np.random.default_rng(0).permutation(half))[0, 1]) < 0.5
    probabilities = scorer.probability(scores)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


@pytest.mark.parametrize(
    "kind",
    [
        name
        for name, system in SYSTEMS.items()
        if set(system.changes) <= {"lite"} and not system.evaluates and system.kind not in DOCUMENT_KINDS
    ],
)
def test_resumed_equals_undisturbed(
    kind: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_each(monkeypatch)
    whole = train(inputs, tmp_path / "whole", tiny_backbone, kind)
    real, left = loop.linear_schedule, iter(range(7))

    def interrupted(*arguments: Any) -> float:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(loop, "linear_schedule", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(inputs, tmp_path / "resumed", tiny_backbone, kind, checkpoint_seconds=1e-6)
    monkeypatch.setattr(loop, "linear_schedule", real)
    resumed = train(inputs, tmp_path / "resumed", tiny_backbone, kind, checkpoint_seconds=1e-6)
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)
    other = train(inputs, tmp_path / "other", tiny_backbone, kind, seed=1)
    assert not all(np.array_equal(whole[name], other[name]) for name in whole)


LITE = [name for name, system in SYSTEMS.items() if system.changes.get("lite")]


def epochs(inputs: dict[str, Path], out: Path, backbone: Path, name: str, **settings: Any) -> list[np.ndarray]:
    """The learned weights, the losses and the dev figures of a lite training of two epochs."""
    weights = train(inputs, out, backbone, name, **settings)
    curves = read_history(out)["train_reranker"].curves
    head = [weights[key] for key in sorted(set(weights) - set(load_file(out / "model.safetensors")))]
    return [*head, np.array(curves["loss"]), np.array(curves["dev/reranked_AP"])]


def equal(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", LITE)
def test_kept_outputs_train_the_weights_that_outputs_of_each_batch_train(
    name: str, precision: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    kept, again, half = (
        epochs(inputs, tmp_path / cache, tiny_backbone, name, cache=cache, precision=precision)
        for cache in ("fp32", "none", "fp16")
    )
    assert equal(kept, again)
    # A bf16 number fits into fp16. The mean of a sentence's outputs does not.
    assert equal(kept, half) == ((name, precision) == ("cross_encoder_lite", "bf16"))


@pytest.mark.slow
@pytest.mark.parametrize("name", LITE)
def test_control_an_encoder_in_train_mode_would_be_noticed(
    name: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.Module, "eval", torch.nn.Module.train)
    kept, again = (
        epochs(inputs, tmp_path / cache, tiny_backbone, name, cache=cache, memory_dropout=0.0)
        for cache in ("fp32", "none")
    )
    assert not equal(kept, again)


@pytest.mark.parametrize("name", LITE)
def test_a_frozen_encoder_is_read_once_and_only_the_head_learns(
    name: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pairs, checkpoints = lite.read_outputs, [], []
    monkeypatch.setattr(
        lite, "read_outputs", lambda *arguments, **more: (pairs.append(len(arguments[2])), real(*arguments, **more))[1]
    )
    monkeypatch.setattr(
        checkpoint,
        "save_file",
        lambda tensors, *rest, **more: (checkpoints.append(tensors), save_file(tensors, *rest, **more)),
    )
    weights = train(
        inputs, tmp_path / "out", tiny_backbone, name, epochs=10, head_learning_rate=0.05, memory_dropout=0.0,
        checkpoint_seconds=1e-9,
    )  # fmt: skip
    assert pairs == [180, 160]  # of training, each with two negatives, and of dev
    curve = [value for _, value in read_history(tmp_path / "out")["train_reranker"].curves["loss"]]
    assert np.mean(curve[-4:]) < np.mean(curve[:4])
    backbone = load_file(tmp_path / "out" / "model.safetensors")
    before = load_file(tiny_backbone / "model.safetensors")
    assert all(np.array_equal(backbone[key], before[key]) for key in backbone)
    assert sum(value.numel() for key, value in checkpoints[-1].items() if key.startswith("model.")) == sum(
        value.size for key, value in weights.items() if key not in backbone
    )


@pytest.mark.parametrize("name", LITE)
def test_a_lite_scorer_ranks_as_its_training_did(
    name: str, inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    train(inputs, tmp_path / "out", tiny_backbone, name, head_learning_rate=0.05)
    data, run = Dataset(inputs["dataset"]), Run.read(inputs["first_run"])
    dev = np.isin(run.query, data.query_rows("dev"))
    scores = load_scorer(tmp_path / "out").score(data, run.query[dev], run.passage[dev], precision="fp32")
    labels = data.split_qrels("dev").positive()
    hits = KnownPositives(labels.query, labels.passage).contains(run.query[dev], run.passage[dev]).reshape(20, 8)
    order = np.argsort(-scores.reshape(20, 8), axis=1, kind="stable")
    precision = average_precision(np.take_along_axis(hits, order, axis=1), np.ones(20))
    assert precision == pytest.approx(read_manifest(tmp_path / "out").metrics["dev/reranked_AP"])


@pytest.mark.slow
def test_all_kinds_are_trained_on_the_same_pairs(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.pair_loss
    seen: dict[tuple[str, int], list[PairBatch]] = {}
    for kind, seed in [(kind, 0) for kind in KINDS] + [("colbert", 1)]:
        batches = seen.setdefault((kind, seed), [])
        monkeypatch.setattr(
            module,
            "pair_loss",
            lambda *arguments, _b=batches, **options: (_b.append(arguments[2]), real(*arguments, **options))[1],
        )
        train(inputs, tmp_path / f"{kind}{seed}", tiny_backbone, kind, seed=seed)

    def pairs(kind: str, seed: int = 0) -> list[list[tuple[int, int]]]:
        return [list(zip(b.query.tolist(), b.passage.tolist(), strict=True)) for b in seen[kind, seed]]

    assert len(pairs("colbert")) == 16
    assert pairs("cross_encoder") == pairs("bert_dmn") == pairs("colbert") != pairs("colbert", 1)
    batches = pairs("colbert")
    first, second = ({pair for batch in half for pair in batch} for half in (batches[:8], batches[8:]))
    assert first == second


@pytest.mark.slow
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


@pytest.fixture
def training_set(tiny_dataset: Dataset, tmp_path: Path) -> Path:
    """Originals, as many selected examples with two negatives, and ten generated ones."""
    labels, origins = tiny_dataset.split_qrels("train").positive(), {"labelled": 0, "selected": 2, "generated": 3}
    texts, count = tiny_dataset.query_texts(labels.query), len(labels.query)
    negatives = np.stack([(labels.passage + 1) % 100, (labels.passage + 2) % 100], axis=1).astype(np.int32)
    parts = [
        TrainingSet(texts, labels.query, labels.passage, (negatives + i) % 100, np.full(count, origins[name], np.int8))
        for i, name in enumerate(("labelled", "selected"))
    ]
    written = [f"what about the old copper {i}" for i in range(10)]
    answered = np.stack([labels.passage[:10], np.full(10, -1)], axis=1).astype(np.int32)
    unknown, origin = np.full(10, -1, np.int32), np.full(10, origins["generated"], np.int8)
    parts.append(TrainingSet(written, unknown, (labels.passage[:10] + 3) % 100, answered, origin))
    columns = (np.concatenate([getattr(p, n) for p in parts]) for n in ("query", "positive", "negatives", "origin"))
    with drafting(tmp_path / "training_set", "training_set") as draft:
        TrainingSet([text for part in parts for text in part.query_text], *columns).write(draft)
    return tmp_path / "training_set"


def test_a_positive_of_an_example_is_no_negative_of_its_query(
    inputs: dict[str, Path], tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A selected example may have a positive that the cross-encoder found; here it is the first candidate."""
    labels, (queries, hits) = tiny_dataset.split_qrels("train").positive(), first_stage(tiny_dataset)
    hit = dict(zip(queries.tolist(), hits[:, 0].tolist(), strict=True))
    denoised = np.array([hit[query] for query in labels.query.tolist()], np.int32)
    negatives, origin = np.full((len(denoised), 1), -1, np.int32), np.full(len(denoised), 2, np.int8)
    with drafting(tmp_path / "found", "training_set") as draft:
        texts = tiny_dataset.query_texts(labels.query)
        TrainingSet(texts, labels.query, denoised, negatives, origin).write(draft)
    inputs["training_set"], real = tmp_path / "found", module.PairBatches
    pools: dict[str, np.ndarray] = {}

    def reading(positives: Any, pool: np.ndarray, *options: Any) -> Any:
        pools[triples] = pool
        return real(positives, pool, *options)

    monkeypatch.setattr(module, "PairBatches", reading)
    for triples in ("labelled", "selected"):
        train(inputs, tmp_path / triples, tiny_backbone, "k_nrm", triples=triples, negatives=1, epochs=1)
    is_negative = {name: (pool[: len(denoised)] == denoised[:, None]).any(axis=1) for name, pool in pools.items()}
    assert is_negative["labelled"].mean() > 0.9 and not is_negative["selected"].any()


@pytest.mark.parametrize("kind", KINDS)
def test_triples_are_the_labelled_ones_and_those_of_the_training_set(
    kind: str, inputs: dict[str, Path], training_set: Path, tiny_backbone: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    real, seen, texts = module.pair_loss, {}, {}

    def spying(score: Any, lengths: Any, batch: PairBatch, **options: Any) -> Any:
        for group in range(batch.group.max() + 1):
            query, *_ = batch.query[batch.group == group]
            seen[triples].append((int(query), *batch.passage[batch.group == group].tolist()))
        return real(score, lengths, batch, **options)

    def reading(settings: Any, data: Any, scored: Any, generated: list[str], _real: Any = module.new_reranker) -> Any:
        texts[triples] = generated
        return _real(settings, data, scored, generated)

    monkeypatch.setattr(module, "pair_loss", spying)
    monkeypatch.setattr(module, "new_reranker", reading)
    inputs["training_set"] = training_set
    for triples in ("labelled", "selected", "augmented"):
        seen[triples] = []
        train(inputs, tmp_path / triples, tiny_backbone, kind, triples=triples, negatives=1, epochs=1)
    examples = TrainingSet.read(training_set)
    selected, generated = ([t for t in range(130) if examples.origin[t] == origin] for origin in (2, 3))
    control, mixed, all_of_them = (sorted(seen[name]) for name in ("labelled", "selected", "augmented"))
    added = mixed.copy()
    for triple in control:  # the same triples as the control's, with the same negatives
        added.remove(triple)
    assert len(control) == 60 and sorted(t[:2] for t in added) == sorted(
        (int(examples.query[t]), int(examples.positive[t])) for t in selected
    )
    pools = {(examples.query[t], examples.positive[t]): examples.negatives[t] for t in selected}
    assert all(negative in pools[query, positive] for query, positive, negative in added)
    assert all_of_them == sorted(
        mixed + [(100 + i, int(examples.positive[t]), int(examples.negatives[t][0])) for i, t in enumerate(generated)]
    )
    assert texts == {
        "labelled": [], "selected": [], "augmented": [examples.query_text[t] for t in generated]
    }  # fmt: skip


def test_a_generated_query_is_scored_by_its_text(
    inputs: dict[str, Path], tiny_dataset: Dataset, tiny_backbone: Path
) -> None:
    rows = np.arange(100)
    for kind in KINDS:
        settings = TrainReranker(
            kind=kind, backbone=str(tiny_backbone), precision="fp32", pair_length=48, memory_width=16, token_width=16,
            query_length=24, passage_length=40,
        )  # fmt: skip
        text = tiny_dataset.query_texts(np.array([7]))[0]
        reranker = new_reranker(settings, tiny_dataset, rows, [text, "the old river"])
        reranker.model.eval()
        original, same, other = (reranker.score(np.full(100, row), rows).tolist() for row in (7, 100, 101))
        assert original == same != other


def test_words_of_dev_and_test_queries_alone_are_unknown(tiny_dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("river 1 2\n")
    settings = TrainReranker(kind="k_nrm", word_vectors=str(tmp_path / "glove.txt"))
    words = new_reranker(settings, tiny_dataset, np.arange(100), ["zebra"]).model.tokenizer.get_vocab()
    train = {str(row) for row in tiny_dataset.query_rows("train")}  # a query ends with its row
    assert {word for word in words if word.isdigit()} == train and len(train) == 60
    assert {"river", "number", "zebra"} < set(words)  # of the corpus, a training query, a generated query


def test_the_table_of_colbert_has_the_scores_of_all_pairs(tiny_dataset: Dataset, tiny_backbone: Path) -> None:
    settings = TrainReranker(kind="colbert", backbone=str(tiny_backbone), precision="fp32", passage_length=40)
    reranker = new_reranker(settings, tiny_dataset, np.arange(100), ["the old river"])
    reranker.model.eval()
    query, passage = np.array([3, 100, 8]), np.random.default_rng(0).permutation(100)
    assert reranker.table is not None and (reranker.lengths(query[:1], passage).sum()) > 1024  # several passes
    table = reranker.table(query, passage)
    pairs = reranker.score(np.repeat(query, 100), np.tile(passage, 3)).reshape(3, 100)
    np.testing.assert_allclose(table.detach().numpy(), pairs.detach().numpy(), atol=1e-4)
    assert not np.allclose(table.detach().numpy(), pairs.detach().numpy()[:, ::-1], atol=1e-2)


@pytest.mark.slow
def test_in_batch_negatives_train_and_are_refused_without_a_softmax(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    weights = train(inputs, tmp_path / "own", tiny_backbone, "colbert")
    batch = train(inputs, tmp_path / "batch", tiny_backbone, "colbert", in_batch_negatives=True)
    assert not all(np.array_equal(weights[name], batch[name]) for name in weights)
    first, *_, last = (value for _, value in read_history(tmp_path / "batch")["train_reranker"].curves["loss"])
    assert last < first
    with pytest.raises(UserError, match="in_batch_negatives needs kind colbert: a cross_encoder would"):
        train(inputs, tmp_path / "out", tiny_backbone, "cross_encoder", in_batch_negatives=True)
    with pytest.raises(ValueError, match="set loss to pairwise_softmax, not pairwise_margin"):
        TrainReranker(in_batch_negatives=True, loss="pairwise_margin")


def test_triples_without_a_training_set_are_one_line(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="triples = selected needs a training set"):
        train(inputs, tmp_path / "out", tiny_backbone, "colbert", triples="selected")


@pytest.mark.slow
def test_a_student_learns_its_teachers_order(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, run, generator = Dataset(inputs["dataset"]), Run.read(inputs["first_run"]), np.random.default_rng(0)
    scored = np.isin(run.query, data.query_rows("train")) & (run.rank != 2)  # the second hits have no score
    order = np.lexsort((run.passage[scored], run.query[scored]))
    query, passage = run.query[scored][order], run.passage[scored][order]
    teacher = 3 * generator.standard_normal(100).astype(np.float32)[passage]  # it likes some passages, right or wrong
    with drafting(tmp_path / "pair_scores", "pair_scores") as draft:
        PairScores.create_cls(draft, len(query), 2).flush()
        PairScores.write(draft, query, passage, teacher, teacher)
    with_teacher, seen = inputs | {"pair_scores": tmp_path / "pair_scores"}, []
    real = module.pair_loss
    monkeypatch.setattr(
        module,
        "pair_loss",
        lambda *with_teacher, **options: (seen.append(with_teacher[2]), real(*with_teacher, **options))[1],
    )

    def agreement(kind: str, loss: str, epochs: int) -> float:
        out = tmp_path / f"{kind}-{loss}"
        options = {"distillation_candidates": 7, "epochs": epochs, "dropout": 0.0, "keep": "last"}
        train(with_teacher, out, tiny_backbone, kind, loss=loss, **options)
        scores = load_scorer(out).score(data, query, passage, precision="fp32")
        return float(np.mean([np.corrcoef(scores[query == q], teacher[query == q])[0, 1] for q in np.unique(query)]))

    assert agreement("colbert", "listwise_distillation", 6) > 0.5
    pairs = set(zip(query.tolist(), passage.tolist(), strict=True))
    for batch in seen:
        assert set(zip(batch.query.tolist(), batch.passage.tolist(), strict=True)) <= pairs
        assert set(np.bincount(batch.group)) <= {6, 7}  # all scored hits, of which two may be the positive
    assert abs(agreement("colbert", "pairwise_softmax", 6)) < 0.3
    for kind in ("cross_encoder", "bert_dmn"):
        assert np.isfinite(agreement(kind, "listwise_distillation", 1))
    with pytest.raises(UserError, match="needs a teacher"):
        train(inputs, tmp_path / "out", tiny_backbone, "colbert", loss="listwise_distillation")


def test_average_precision_of_two_queries() -> None:
    hits = np.array([[True, False, True, False], [False, False, False, False]])
    assert average_precision(hits, np.array([3, 1])) == pytest.approx((1 + 2 / 3) / 3 / 2)


def test_without_labels_it_says_so(
    inputs: dict[str, Path], tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dataset, "trained_labels", Dataset(inputs["dataset"]).split_qrels("none"))
    with pytest.raises(UserError, match="no labelled training pairs"):
        train(inputs, tmp_path / "out", tiny_backbone, "colbert")
