"""The contrastive loss against eq. 2 written by hand, in float64."""

import math

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, KnownPositives, TrainingSet
from gnn_encoder.training.batches import ExampleBatches, MaskedBatches, draw_negatives
from gnn_encoder.training.losses import contrastive_loss, loss_scale
from gnn_encoder.training.prefetch import made

NOTHING = torch.empty(2, 0, dtype=torch.int64)
"""No pair is left out."""


def by_hand(queries, passages, positive, excluded, scale):
    total = 0.0
    for i, q in enumerate(queries.double()):
        scores = [scale * float(q @ p) for p in passages.double()]
        denominator = sum(math.exp(s) for j, s in enumerate(scores) if [i, j] not in excluded)
        total -= math.log(math.exp(scores[positive[i]]) / denominator)
    return total / len(queries)


def test_equals_equation_2_with_false_negatives_masked():
    torch.manual_seed(0)
    queries, passages = torch.randn(4, 8), torch.randn(7, 8)
    positive = torch.tensor([2, 0, 6, 2])
    rows = np.array([10, 11, 12, 13, 14, 15, 16])
    known = KnownPositives(np.array([0, 0, 1, 2, 3]), np.array([12, 15, 10, 16, 12]))
    excluded = known.excluded(np.array([0, 1, 2, 3]), rows, positive.numpy())
    assert excluded.T.tolist() == [[0, 5]]
    loss = contrastive_loss(queries, passages, positive, torch.from_numpy(excluded), 0.7)
    assert abs(loss.item() - by_hand(queries, passages, positive, excluded.T.tolist(), 0.7)) < 1e-6
    # Control: with the false negative left in, the loss is another.
    kept = contrastive_loss(queries, passages, positive, NOTHING, 0.7)
    assert abs(kept.item() - loss.item()) > 1e-3


@pytest.mark.parametrize("labels", [0, 1, 400])
def test_excluded_pairs_are_those_of_a_plain_search(labels):
    generator = np.random.default_rng(labels)
    known = KnownPositives(generator.integers(-1, 30, labels), generator.integers(0, 60, labels))
    query = generator.integers(-1, 30, 50).astype(np.int32)
    passages = np.sort(generator.permutation(60)[:40]).astype(np.int32)
    positive = generator.integers(0, 40, 50)
    wanted = known.contains(query[:, None], passages[None, :]) & (query[:, None] >= 0)
    wanted[np.arange(50), positive] = False
    found = known.excluded(query, passages, positive)
    assert sorted(found.T.tolist()) == np.argwhere(wanted).tolist()
    assert (labels < 400) or len(found.T) > 100


def test_scores_are_fp32_under_autocast():
    torch.manual_seed(1)
    queries, passages = 4 * torch.randn(4, 64), torch.randn(7, 64)
    positive = torch.tensor([2, 0, 6, 3])
    exact = contrastive_loss(queries, passages, positive, NOTHING, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(contrastive_loss(queries, passages, positive, NOTHING, 1.0), exact)
        assert (queries.float() @ passages.float().T).dtype is torch.bfloat16  # what it is kept from


def test_generated_queries_exclude_nothing():
    known = KnownPositives(np.array([0, -1]), np.array([5, 5]))
    assert not known.excluded(np.array([-1]), np.array([4, 5]), np.array([0])).size


def test_known_positives_are_labels_and_further_pairs(tiny_dataset: Dataset):
    labels = tiny_dataset.split_qrels("train")
    other = (labels.passage + 1) % 100
    known = KnownPositives.of(tiny_dataset, "train", np.array([0, -1]), np.array([other[0], other[1]]))
    assert known.contains(labels.query, labels.passage).all()
    assert np.flatnonzero(known.contains(labels.query, other)).tolist() == [0]
    dev = tiny_dataset.split_qrels("dev")
    assert not known.contains(dev.query, dev.passage).any()


@pytest.mark.parametrize("twins", [True, False])
def test_queries_of_one_group_share_their_positives(twins):
    """Against a plain search; without groups the same pairs are fewer."""
    generator = np.random.default_rng(0)
    groups = np.where(np.arange(30) < 10, np.arange(30) // 2 * 2, np.arange(30)) if twins else np.arange(30)
    asked, answers = generator.integers(0, 30, 80), generator.integers(0, 60, 80)
    pairs = {(q, p) for q in range(30) for q2, p in zip(asked, answers, strict=True) if groups[q] == groups[q2]}
    known = KnownPositives(asked, answers, groups)
    found = known.contains(np.arange(30)[:, None], np.arange(60)[None, :])
    assert {(q, p) for q, p in np.argwhere(found).tolist()} == pairs
    assert (pairs == set(zip(asked, answers, strict=True))) != twins
    query, passages = np.arange(-1, 30), np.arange(0, 60, 2)
    positive = generator.integers(0, 30, 31)
    excluded = [
        [i, j] for i, q in enumerate(query) for j, p in enumerate(passages) if (q, p) in pairs and j != positive[i]
    ]
    assert sorted(known.excluded(query, passages, positive).T.tolist()) == excluded


def test_loss_scale():
    assert (loss_scale("auto", True), loss_scale("auto", False), loss_scale(5, True)) == (20.0, 1.0, 5.0)


def random_examples(count: int, seed: int = 0) -> TrainingSet:
    generator = np.random.default_rng(seed)
    negatives = generator.integers(-1, 50, (count, 6)).astype(np.int32)
    query = np.sort(generator.integers(0, 40, count)).astype(np.int32)
    return TrainingSet(
        [""] * count, query, generator.integers(0, 50, count).astype(np.int32), negatives, np.zeros(count)
    )


def test_an_epoch_visits_every_example_once_and_is_reproducible():
    examples = random_examples(53)
    plan = ExampleBatches(examples, 8, 2, KnownPositives(examples.query, examples.positive), seed=1)
    batches = list(made(plan, 3))
    assert len(batches) == plan.steps_per_epoch
    assert sorted(np.concatenate([b.examples for b in batches])) == list(range(53))
    again = list(made(plan, 3))
    assert all(np.array_equal(a.passages, b.passages) for a, b in zip(batches, again, strict=True))
    assert not np.array_equal(batches[0].examples, next(made(plan, 4)).examples)
    for batch in batches:
        assert np.array_equal(batch.passages[batch.positive], examples.positive[batch.examples])


def test_folds_are_disjoint_and_train_exactly_the_masked_queries():
    examples = random_examples(60)
    nodes = np.unique(examples.query)
    node = np.searchsorted(nodes, examples.query)
    known = KnownPositives(examples.query, examples.positive)
    plan = MaskedBatches(
        examples,
        node,
        np.arange(len(nodes)),
        schedule="folds",
        fraction=0.2,
        batch_size=5,
        negatives=1,
        known=known,
        seed=0,
    )
    batches = list(made(plan, 0))
    assert len(batches) == plan.steps_per_epoch
    assert sorted(np.concatenate([b.examples for b in batches])) == list(range(60))
    for batch in batches:
        assert batch.masked[node[batch.examples]].all()
        assert 0.5 < batch.masked.mean() / 0.2 < 1.5
    none = MaskedBatches(
        examples,
        node,
        np.arange(len(nodes)),
        schedule="none",
        fraction=0.2,
        batch_size=5,
        negatives=1,
        known=known,
        seed=0,
    )
    assert not any(b.masked.any() for b in made(none, 0))


@pytest.mark.parametrize("fraction", [0.15, 0.5, 0.8])
def test_a_sampled_round_masks_beta_of_the_queries_and_trains_on_those(fraction):
    examples = random_examples(60)
    nodes = np.unique(examples.query)
    node = np.searchsorted(nodes, examples.query)
    known = KnownPositives(examples.query, examples.positive)
    plan = MaskedBatches(
        examples,
        node,
        np.arange(len(nodes)),
        schedule="sample",
        fraction=fraction,
        batch_size=5,
        negatives=1,
        known=known,
        seed=0,
    )
    batches = list(made(plan, 0))
    assert len(batches) == plan.steps_per_epoch
    assert {b.masked.sum() for b in batches} == {round(fraction * len(nodes))}
    assert all(b.masked[node[b.examples]].all() for b in batches)
    drawn = {b.masked.tobytes() for b in [*batches, *made(plan, 1)]}
    assert len(drawn) > 1


def plain_draws(examples: TrainingSet, node: np.ndarray, nodes: int, schedule: str, batches: int, epoch: int):
    """Folds of a fifth, or samples of as many, of a graph without twins, in plain words."""
    generator = np.random.default_rng((3, epoch))
    trained = np.unique(node)
    folds = np.array_split(generator.permutation(trained), 5)
    if schedule == "sample":
        generator = np.random.default_rng((3, epoch))
    for number in range(5):
        out = folds[number]
        if schedule == "sample":
            out = generator.permutation(trained)[: round(0.2 * len(trained))]
        rows = np.array([row for row in range(len(node)) if node[row] in out])
        for part in np.array_split(generator.permutation(rows), batches):
            negatives = draw_negatives(examples.negatives[part], 2, generator)
            yield part, negatives, [n in out for n in range(nodes)], int(generator.integers(2**31))


@pytest.mark.parametrize("schedule", ["folds", "sample"])
@pytest.mark.parametrize("twins", [False, True])
def test_without_twins_folds_and_batches_are_drawn_as_if_there_were_no_groups(schedule, twins):
    examples = random_examples(60)
    nodes = np.arange(40)  # some of them have no example
    groups = (nodes + 100).astype(np.int32)  # rows of the dataset, in the order of the nodes
    if twins:
        groups[nodes[-1]] = groups[0]
    known = KnownPositives(examples.query, examples.positive)
    plan = MaskedBatches(
        examples, examples.query, groups, schedule=schedule, fraction=0.2, batch_size=5, negatives=2, known=known,
        seed=3,
    )  # fmt: skip
    same = []
    for epoch in (0, 1):
        expected = plain_draws(examples, examples.query, 40, schedule, plan.batches_per_round, epoch)
        for drawn, (rows, negatives, masked, seed) in zip(plan.draws(epoch), expected, strict=True):
            same.append(
                np.array_equal(drawn.examples, rows) and np.array_equal(drawn.negatives, negatives)
                and np.array_equal(drawn.masked, masked) and drawn.seed == seed
            )  # fmt: skip
    assert len(same) == 2 * plan.steps_per_epoch and all(same) != twins


def test_drawn_negatives_are_distinct_members_of_their_row():
    pool = np.array([[3, 4, 5, -1], [9, -1, -1, -1], [-1, -1, -1, -1]])
    drawn = draw_negatives(pool, 2, np.random.default_rng(0))
    assert set(drawn[0]) <= {3, 4, 5} and len(set(drawn[0])) == 2
    assert sorted(drawn[1]) == [-1, 9] and (drawn[2] == -1).all()
