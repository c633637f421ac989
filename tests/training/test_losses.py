"""The contrastive loss against eq. 2 written by hand, in float64."""

import math

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Qrels, TrainingSet
from gnn_encoder.training.batches import ExampleBatches, MaskedBatches, draw_negatives
from gnn_encoder.training.losses import KnownPositives, contrastive_loss, loss_scale
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


def test_known_positives_are_labels_and_examples():
    qrels = Qrels(np.array([0, 1]), np.array([3, 4]), np.array([1, 0]))
    examples = TrainingSet(["a", "b"], np.array([0, -1]), np.array([7, 9]), np.empty((2, 0), int), np.zeros(2, int))
    known = KnownPositives.of(qrels, examples)
    found = known.contains(np.array([0, 0, 1, 0]), np.array([3, 7, 4, 9]))
    assert found.tolist() == [True, True, False, False]


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
        examples, node, len(nodes), schedule="folds", fraction=0.2, batch_size=5, negatives=1, known=known, seed=0
    )
    batches = list(made(plan, 0))
    assert len(batches) == plan.steps_per_epoch
    assert sorted(np.concatenate([b.examples for b in batches])) == list(range(60))
    for batch in batches:
        assert batch.masked[node[batch.examples]].all()
        assert 0.5 < batch.masked.mean() / 0.2 < 1.5
    none = MaskedBatches(
        examples, node, len(nodes), schedule="none", fraction=0.2, batch_size=5, negatives=1, known=known, seed=0
    )
    assert not any(b.masked.any() for b in made(none, 0))


@pytest.mark.parametrize("fraction", [0.15, 0.5, 0.8])
def test_a_sampled_round_masks_beta_of_the_queries_and_trains_on_those(fraction):
    examples = random_examples(60)
    nodes = np.unique(examples.query)
    node = np.searchsorted(nodes, examples.query)
    known = KnownPositives(examples.query, examples.positive)
    plan = MaskedBatches(
        examples, node, len(nodes), schedule="sample", fraction=fraction, batch_size=5, negatives=1, known=known, seed=0
    )
    batches = list(made(plan, 0))
    assert len(batches) == plan.steps_per_epoch
    assert {b.masked.sum() for b in batches} == {round(fraction * len(nodes))}
    assert all(b.masked[node[b.examples]].all() for b in batches)
    drawn = {b.masked.tobytes() for b in [*batches, *made(plan, 1)]}
    assert len(drawn) > 1


def test_drawn_negatives_are_distinct_members_of_their_row():
    pool = np.array([[3, 4, 5, -1], [9, -1, -1, -1], [-1, -1, -1, -1]])
    drawn = draw_negatives(pool, 2, np.random.default_rng(0))
    assert set(drawn[0]) <= {3, 4, 5} and len(set(drawn[0])) == 2
    assert sorted(drawn[1]) == [-1, 9] and (drawn[2] == -1).all()
