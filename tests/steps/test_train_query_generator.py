"""The step trains, measures on passages it did not train on, resumes to the same weights, and repeats itself."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rouge_score.rouge_scorer import RougeScorer
from safetensors.numpy import load_file
from torch import multiprocessing

from gnn_encoder.artifacts import Dataset, DatasetWriter, Qrels, drafting, read_manifest
from gnn_encoder.inference.generation import generate, pair_batch, passage_ids, query_ids
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.query_generator import QueryGenerator
from gnn_encoder.settings.foundation import TrainQueryGenerator
from gnn_encoder.steps.train_query_generator import (
    rouge,
    split_pairs,
    token_loss,
    token_parts,
    train_query_generator,
)
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.training.batches import ShuffledBatches
from gnn_encoder.training.prefetch import batches_of
from gnn_encoder.training.ranks import average_gradients


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))
    return tmp_path / "checkpoints"


def settings_for(generator: Path, **changes: object) -> TrainQueryGenerator:
    values = {"generator": str(generator), "epochs": 3, "batch_size": 8, "learning_rate": 5e-3, "precision": "fp32"}
    return TrainQueryGenerator.model_validate({**values, "passage_length": 24, "query_length": 24, **changes})


@pytest.mark.parametrize("kind", ["tiny_backbone", "tiny_seq2seq", "tiny_causal"])
def test_learns_and_reports(tmp_path: Path, tiny_dataset: Dataset, kind: str, request: pytest.FixtureRequest) -> None:
    settings = settings_for(request.getfixturevalue(kind), epochs=12, learning_rate=1e-2)
    train_query_generator(settings, dataset=tiny_dataset.path, query_generator=tmp_path / "generator")
    metrics = read_manifest(tmp_path / "generator", "model").metrics
    assert metrics["pairs"] + metrics["held_out_pairs"] == 60 and metrics["held_out_pairs"] == 6
    assert metrics["final_loss"] < 2.0 < np.log(100), "untrained it is ln(vocabulary)"
    assert metrics["held_out/loss"] < 3.0
    assert metrics["rouge1"] > 20 and metrics["rougeL"] > 20
    assert metrics["headline"].startswith("ROUGE-L")
    model = QueryGenerator.load(tmp_path / "generator")
    assert (model.passage_length, model.query_length) == (24, 24)
    assert generate(model, passage_ids(model, ["the old river"]))[0].startswith("what is the")


def test_a_model_that_follows_instructions_is_taken_as_it_is(
    tmp_path: Path, tiny_dataset: Dataset, tiny_causal: Path
) -> None:
    folder = shutil.copytree(tiny_causal, tmp_path / "chat")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}market {{ m.content }} cloud{% endfor %}")
    settings = settings_for(folder, instruction="what is the", trained=False)
    train_query_generator(settings, dataset=tiny_dataset.path, query_generator=tmp_path / "generator")
    metrics = read_manifest(tmp_path / "generator", "model").metrics
    assert metrics["held_out/loss"] > 0 and "steps" not in metrics and "pairs/s" not in metrics["headline"]
    published, saved = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "generator"))
    assert all(np.array_equal(published[name], saved[name]) for name in saved)
    model = QueryGenerator.load(tmp_path / "generator")
    assert generate(model, passage_ids(model, ["the old river"]))[0]
    with pytest.raises(ValueError, match="needs an instruction"):
        settings_for(folder, trained=False)


def test_a_batch_in_parts_has_the_same_gradient(tmp_path: Path, tiny_dataset: Dataset, tiny_causal: Path) -> None:
    options = {"epochs": 1, "max_pairs": 24, "dropout": 0.0}
    for tokens in (1, 60, 10_000):
        settings = settings_for(tiny_causal, tokens_per_pass=tokens, **options)
        train_query_generator(settings, dataset=tiny_dataset.path, query_generator=tmp_path / str(tokens))
    one, some, whole = (weights(tmp_path / name) for name in ("1", "60", "10000"))
    start = load_file(tiny_causal / "model.safetensors")
    for name in whole:
        np.testing.assert_allclose(one[name], whole[name], atol=2e-5)
        np.testing.assert_allclose(some[name], whole[name], atol=2e-5)
    assert max(abs(start[name] - whole[name]).max() for name in start) > 5e-3, "the control"


BATCHES = (np.arange(9), np.array([11]))
"""The second has no row for the second of two processes."""


def new_generator(folder: Path) -> tuple[QueryGenerator, Tokens, Tokens]:
    """A model, and passages and queries of which the later ones are longer."""
    model = QueryGenerator.from_pretrained(str(folder), 20, 20)
    passages = passage_ids(model, ["the old river " * (1 + i // 3) for i in range(12)])
    return model, passages, query_ids(model, ["what is the river " * (1 + i // 2) for i in range(12)])


def share_a_batch(rank: int, folder: Path, generator: Path) -> None:
    """One of two processes: the mean loss and gradient of each batch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    for number, rows in enumerate(BATCHES):
        model, passages, queries = new_generator(generator)
        total, parameters = 0.0, list(model.parameters())
        for part in token_parts(model, passages, queries, rows, 40, shared=True):
            value = token_loss(model, passages, queries, *part)
            value.backward()
            total += value.item()
        mean = average_gradients(parameters, torch.tensor(total, dtype=torch.float64)).item()
        torch.save((mean, total, [p.grad for p in parameters]), folder / f"{number}-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_the_shares_of_two_processes_have_the_loss_and_gradient_of_the_whole_batch(
    tmp_path: Path, tiny_seq2seq: Path
) -> None:
    """Against the mean over a batch's tokens that transformers computes."""
    multiprocessing.spawn(share_a_batch, (tmp_path, tiny_seq2seq), nprocs=2)
    for number, rows in enumerate(BATCHES):
        (mean, first, gradients), (other, second, same) = (
            torch.load(tmp_path / f"{number}-{rank}.pt", weights_only=True) for rank in (0, 1)
        )
        assert mean == other and mean == pytest.approx((first + second) / 2)
        model, passages, queries = new_generator(tiny_seq2seq)

        def whole(chosen: np.ndarray) -> torch.Tensor:
            ids, mask, labels = pair_batch(model, passages, queries, chosen)  # noqa: B023 (called in the loop alone)
            return model.model(input_ids=ids, attention_mask=mask, labels=labels).loss  # noqa: B023

        loss = whole(rows)
        loss.backward()
        assert mean == pytest.approx(loss.item(), rel=1e-5)
        for parameter, gradient, equal in zip(model.parameters(), gradients, same, strict=True):
            assert torch.equal(gradient, equal)
            torch.testing.assert_close(gradient, parameter.grad, atol=1e-6, rtol=1e-4)
        if len(rows) > 1:  # control: the mean of the shares' own means weighs tokens unequally
            assert abs((whole(rows[::2]) + whole(rows[1::2])).item() / 2 - mean) > 1e-4
        else:
            assert second == 0.0 and first == pytest.approx(2 * mean)


def test_the_separator_counts_in_the_token_budget(tiny_causal: Path) -> None:
    rows, separator = np.arange(6), "number 1 2 3 4"  # 5 tokens
    for text, parts in (("", 2), (separator, 3)):
        model = QueryGenerator.from_pretrained(str(tiny_causal), 20, 10, text)
        passages, queries = passage_ids(model, ["the old river"] * 6), query_ids(model, ["what is the river"] * 6)
        token_budgeted = token_parts(model, passages, queries, rows, tokens_per_pass=28)  # of 8 tokens each, or 13
        assert (
            len(token_budgeted) == parts
            and sorted(np.concatenate([part for part, _ in token_budgeted])) == rows.tolist()
        )


def weights(path: Path) -> dict[str, np.ndarray]:
    return load_file(path / "model.safetensors")


def test_new_weights_of_a_pair_are_seeded(tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path) -> None:
    for name in ("one", "two"):
        settings = settings_for(tiny_backbone, epochs=1, max_pairs=8, held_out=0.0)
        train_query_generator(settings, dataset=tiny_dataset.path, query_generator=tmp_path / name)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(np.array_equal(one[name], two[name]) for name in one)
    metrics = read_manifest(tmp_path / "one").metrics
    assert metrics["pairs"] == 8 and metrics["held_out_pairs"] == 0 and "rougeL" not in metrics


def apart(train: Qrels, held_out: Qrels) -> bool:
    return not set(train.query) & set(held_out.query) and not set(train.passage) & set(held_out.passage)


def test_no_held_out_query_or_passage_is_trained_on() -> None:
    generator = np.random.default_rng(0)
    pairs = Qrels(np.repeat(np.arange(100), 2), generator.integers(0, 150, 200), np.ones(200, int))
    alone = np.arange(100)
    train, held_out = split_pairs(pairs, 0.25, 0, 1000, 3, alone)
    assert apart(train, held_out) and len(set(held_out.query)) == 25 and len(held_out.query) == 50
    shared = ~np.isin(pairs.query, held_out.query) & np.isin(pairs.passage, held_out.passage)
    assert shared.sum() > 20 and len(train.query) == 150 - shared.sum()
    small, few = split_pairs(pairs, 0.25, 7, 5, 3, alone)
    assert len(small.query) == 7 and len(few.query) == 5 and set(few.query) < set(held_out.query)
    assert split_pairs(pairs, 0.25, 0, 1000, 4, alone)[1].query.tolist() != held_out.query.tolist()
    assert len(split_pairs(pairs, 0.0, 0, 5, 3, alone)[0].query) == 200, "nothing is held out"


def test_a_held_out_passage_has_no_copy_among_the_trained() -> None:
    """Passages i and i + 100 have one text."""
    rows = np.arange(200, dtype=np.int32)
    pairs, copies = Qrels(rows, rows, np.ones(200, np.int32)), (rows % 100).astype(np.int32)
    train, held_out = split_pairs(pairs, 0.25, 0, 1000, 3, rows, copies)
    assert len(held_out.query) and not set(train.passage % 100) & set(held_out.passage % 100)
    train, held_out = split_pairs(pairs, 0.25, 0, 1000, 3, rows)  # control: copies matter
    assert set(train.passage % 100) & set(held_out.passage % 100)


def test_a_held_out_query_has_no_twin_among_the_trained() -> None:
    """Query 2i asks the same as 2i + 1, and all pairs have passages of their own."""
    pairs, groups = Qrels(np.arange(200), np.arange(200), np.ones(200, int)), np.arange(200) // 2 * 2
    train, held_out = split_pairs(pairs, 0.25, 0, 1000, 3, groups)
    assert len(held_out.query) == 50 and not set(groups[train.query]) & set(groups[held_out.query])
    train, held_out = split_pairs(pairs, 0.25, 0, 1000, 3, np.arange(200))  # control: groups matter
    assert len(held_out.query) == 50 and set(groups[train.query]) & set(groups[held_out.query])


@pytest.mark.parametrize("positives", [1, 40])
def test_nearly_all_pairs_are_trained_on(positives: int) -> None:
    """Queries with many positives lose no more pairs than ROUGE needs."""
    queries = np.repeat(np.arange(4000 // positives), positives)
    pairs = Qrels(queries, np.random.default_rng(0).permutation(4000), np.ones(4000, int))
    train, held_out = split_pairs(pairs, 0.1, 0, 100, 3, np.arange(4000))
    assert apart(train, held_out) and len(held_out.query) == 100
    assert len(train.query) > 4000 - 100 - positives


def test_rouge_is_the_mean_in_percent() -> None:
    queries, written = ["what is the river", "the old stone"], ["what is a river", "stones"]
    scorer = RougeScorer(["rouge1"], use_stemmer=True)
    expected = 50 * sum(scorer.score(q, w)["rouge1"].fmeasure for q, w in zip(queries, written, strict=True))
    assert rouge(queries, written)["rouge1"] == pytest.approx(expected)
    assert rouge(queries, queries) == {"rouge1": 100.0, "rouge2": 100.0, "rougeL": 100.0}
    assert rouge([], []) == {}


def test_rouge_counts_words_of_any_script() -> None:
    queries, written = ["как быстро растёт берёза", "年假有多少天"], ["как растёт берёза", "年假几天"]
    figures = rouge(queries, written)
    harmonic = [2 * recall * precision / (recall + precision) for recall, precision in ((3 / 4, 3 / 3), (3 / 6, 3 / 4))]
    assert figures["rouge1"] == pytest.approx(100 * sum(harmonic) / 2)
    assert rouge(queries, queries)["rougeL"] == 100.0


@pytest.mark.parametrize(("rows", "size"), [(10, 4), (8, 4), (3, 64), (1, 1)])
def test_every_row_once(rows: int, size: int) -> None:
    plan = ShuffledBatches(rows, size, seed=0)
    batches = list(batches_of(plan, 0))
    assert len(batches) == plan.steps_per_epoch == -(-rows // size)
    assert max(map(len, batches)) <= size and plan.batch_examples == np.mean([len(batch) for batch in batches])
    assert sorted(np.concatenate(batches).tolist()) == list(range(rows))


def test_order_is_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(list(batches_of(ShuffledBatches(50, 8, seed), epoch))).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


@pytest.mark.parametrize("wanted", [3, 200])
def test_few_answers_to_many_questions_leave_pairs_to_train_on(wanted: int) -> None:
    """12 passages with 40 queries each: any 40 queries touch all passages."""
    pairs = Qrels(np.arange(480), np.arange(480) % 12, np.ones(480, int))
    train, held_out = split_pairs(pairs, 0.1, 0, wanted, 3, np.arange(480))
    assert apart(train, held_out) and 240 <= len(train.query) < 480
    assert 3 <= len(held_out.query) <= min(wanted, 48)


@pytest.mark.parametrize("share", [0.1, 0.9, 1.0])
def test_half_of_the_pairs_of_data_of_any_size_are_trained_on(share: float) -> None:
    generator, measured = np.random.default_rng(0), 0
    for passages in (1, 2, 3, 12, 50):
        for queries in range(1, 51, 7):
            query, passage = np.repeat(np.arange(queries), 2), generator.integers(0, passages, 2 * queries)
            pairs = Qrels(query, passage, np.ones(len(query), int))
            train, held_out = split_pairs(pairs, share, 0, 200, 1, np.arange(queries))
            assert apart(train, held_out) and 2 * len(train.query) >= len(query)
            assert passages > 1 or not len(held_out.query)
            measured += len(held_out.query) > 0
    assert measured > 5, "the control"


def test_a_generator_that_cannot_be_measured_says_so(tmp_path: Path, tiny_seq2seq: Path) -> None:
    """All queries are labelled with one of two passages, so none can be held out."""
    with drafting(tmp_path / "data", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p0", "p1"], ["", ""], ["the old river", "the bright stone"])
        writer.queries([f"q{i}" for i in range(20)], [f"what is {i}" for i in range(20)], ["train"] * 20, [[]] * 20)
        writer.qrels([f"q{i}" for i in range(20)], ["p0"] * 20, [1] * 20, list(range(20)), [0] * 20)
        writer.close()
    train_query_generator(
        settings_for(tiny_seq2seq, epochs=1), dataset=tmp_path / "data", query_generator=tmp_path / "generator"
    )
    metrics = read_manifest(tmp_path / "generator").metrics
    assert metrics["pairs"] == 20 and metrics["held_out_pairs"] == 0 and "rougeL" not in metrics
    assert "ROUGE not measured" in metrics["headline"]
