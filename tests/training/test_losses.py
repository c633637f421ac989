"""The contrastive loss against eq. 2 written by hand, in float64."""

import math

import numpy as np
import pytest
import torch

from gnn_encoder.artifacts import Dataset, KnownPositives, Qrels, TrainingSet
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import TrainCrossEncoder
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.training import embed
from gnn_encoder.training.batches import ExampleBatches, draw_negatives
from gnn_encoder.training.losses import contrastive_loss, loss_scale, matryoshka_loss, pairwise_margin, pairwise_softmax
from gnn_encoder.training.masked_graph import MaskedBatches
from gnn_encoder.training.pairs import PairBatch, PairBatches, in_batch_loss, pair_loss
from gnn_encoder.training.prefetch import batches_of

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


@pytest.mark.parametrize("unit_length", [True, False])
def test_the_matryoshka_loss_is_a_sum_over_first_components(unit_length):
    torch.manual_seed(2)
    queries, passages, positive = torch.randn(4, 8), torch.randn(7, 8), torch.tensor([2, 0, 6, 2])
    if unit_length:
        queries, passages = (side / side.norm(dim=1, keepdim=True) for side in (queries, passages))

    def loss(query_vectors, read):
        return contrastive_loss(query_vectors, read, positive, NOTHING, 0.7)

    expected = 0.0
    for dimension in (8, 5, 2):
        sides = [[row[:dimension] for row in side.double()] for side in (queries, passages)]
        if unit_length:
            sides = [[row / math.sqrt(float((row**2).sum())) for row in side] for side in sides]
        expected += by_hand(*map(torch.stack, sides), positive, [], 0.7)
    assert abs(matryoshka_loss(loss, queries, passages, (8, 5, 2), unit_length).item() - expected) < 1e-5
    assert matryoshka_loss(loss, queries, passages, (8,), unit_length) == loss(queries, passages)
    # Control: whether the first components have unit length is seen.
    assert abs(matryoshka_loss(loss, queries, passages, (8, 5, 2), not unit_length).item() - expected) > 1e-3


def test_scores_are_fp32_under_autocast():
    torch.manual_seed(1)
    queries, passages = 4 * torch.randn(4, 64), torch.randn(7, 64)
    positive = torch.tensor([2, 0, 6, 3])
    exact = contrastive_loss(queries, passages, positive, NOTHING, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(contrastive_loss(queries, passages, positive, NOTHING, 1.0), exact)
        assert (queries.float() @ passages.float().T).dtype is torch.bfloat16  # what it is kept from


def test_known_positives_are_labels_and_further_pairs(tiny_dataset: Dataset):
    labels = tiny_dataset.split_qrels("train")
    other = (labels.passage + 1) % 100
    known = KnownPositives.of(tiny_dataset, "train", np.array([0, -1]), np.array([other[0], other[1]]))
    assert known.contains(labels.query, labels.passage).all()
    assert np.flatnonzero(known.contains(labels.query, other)).tolist() == [0]
    dev = tiny_dataset.split_qrels("dev")
    assert not known.contains(dev.query, dev.passage).any()


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
    batches = list(batches_of(plan, 3))
    assert len(batches) == plan.steps_per_epoch
    assert sorted(np.concatenate([b.examples for b in batches])) == list(range(53))
    again = list(batches_of(plan, 3))
    assert all(np.array_equal(a.passages, b.passages) for a, b in zip(batches, again, strict=True))
    assert not np.array_equal(batches[0].examples, next(batches_of(plan, 4)).examples)
    for batch in batches:
        assert np.array_equal(batch.passages[batch.positive], examples.positive[batch.examples])


def masking(schedule: str, fraction: float, negatives: int = 1, seed: int = 0) -> TrainGnn:
    return TrainGnn(mask=schedule, mask_fraction=fraction, batch_size=5, negatives=negatives, seed=seed)


def masked_plan(schedule: str, fraction: float) -> MaskedBatches:
    """Over 60 random examples, whose queries are the nodes."""
    examples = random_examples(60)
    nodes, node = np.unique(examples.query, return_inverse=True)
    known = KnownPositives(examples.query, examples.positive)
    return MaskedBatches(examples, node, np.arange(len(nodes)), known, masking(schedule, fraction))


def test_folds_are_disjoint_and_train_exactly_the_masked_queries():
    plan = masked_plan("folds", 0.2)
    batches = list(batches_of(plan, 0))
    assert len(batches) == plan.steps_per_epoch
    assert sorted(np.concatenate([b.examples for b in batches])) == list(range(60))
    for batch in batches:
        assert batch.masked[plan.node[batch.examples]].all()
        assert 0.5 < batch.masked.mean() / 0.2 < 1.5
    assert not any(b.masked.any() for b in batches_of(masked_plan("none", 0.2), 0))


@pytest.mark.parametrize("fraction", [0.15, 0.5, 0.8])
def test_a_sampled_round_masks_beta_of_the_queries_and_trains_on_those(fraction):
    plan = masked_plan("sample", fraction)
    batches = list(batches_of(plan, 0))
    assert len(batches) == plan.steps_per_epoch
    assert {b.masked.sum() for b in batches} == {round(fraction * len(plan.groups))}
    assert all(b.masked[plan.node[b.examples]].all() for b in batches)
    drawn = {b.masked.tobytes() for b in [*batches, *batches_of(plan, 1)]}
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
    plan = MaskedBatches(examples, examples.query, groups, known, masking(schedule, 0.2, negatives=2, seed=3))
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


def groups_by_hand(loss: str, groups: list[tuple[float, list[float]]], margin: float) -> float:
    """The losses of positives, each with its negatives, in float64."""
    pairs = [(positive, negative) for positive, negatives in groups for negative in negatives]
    if loss == "pairwise_margin":
        return sum(max(0.0, margin - positive + negative) for positive, negative in pairs) / len(pairs)
    if loss == "pairwise_softmax":
        shares = [math.exp(p) / (math.exp(p) + sum(math.exp(n) for n in negatives)) for p, negatives in groups]
        return -sum(map(math.log, shares)) / len(groups)
    likelihoods = [1 / (1 + math.exp(-p)) for p, _ in groups] + [1 / (1 + math.exp(n)) for _, n in pairs]
    return -sum(map(math.log, likelihoods)) / len(likelihoods)


def pair_plan(loss: str, negatives: int = 3) -> tuple[PairBatches, np.ndarray]:
    """20 labelled pairs of 20 queries, with 0 to 5 candidates each."""
    generator = np.random.default_rng(0)
    pool = generator.integers(20, 60, (20, 5)).astype(np.int32)
    pool[np.arange(5) >= (np.arange(20) % 6)[:, None]] = -1
    rows = np.arange(20, dtype=np.int32)
    settings = TrainCrossEncoder.model_validate({"loss": loss, "batch_size": 32, "negatives": negatives})
    return PairBatches(Qrels(rows, rows, np.ones(20, np.int32)), pool, settings), pool


@pytest.mark.parametrize("loss", ["pointwise", "pairwise_margin", "pairwise_softmax"])
def test_losses_of_pairs_equal_a_plain_loop(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "TOKENS_PER_PASS", {"cpu": 64, "cuda": 64})
    plan, _ = pair_plan(loss)
    table = 3 * torch.randn(20, 60, generator=torch.Generator().manual_seed(1))
    lengths = np.random.default_rng(2).integers(5, 20, (20, 60))
    parts = []

    def score(query: np.ndarray, passage: np.ndarray) -> torch.Tensor:
        parts.append(len(query))
        return live[torch.from_numpy(query), torch.from_numpy(passage)]

    for batch in batches_of(plan, 0):
        live = table.clone().requires_grad_()
        value = pair_loss(score, lambda query, passage: lengths[query, passage], batch, loss=loss, margin=0.7)
        value.backward()
        # By hand: the pairs of a query are its group, its own passage is the positive.
        pairs = list(zip(batch.query.tolist(), batch.passage.tolist(), strict=True))
        groups = [(q, [p for other, p in pairs if other == q and p != q]) for q, p in pairs if p == q]
        scored = [(float(table[q, q]), [float(table[q, n]) for n in negatives]) for q, negatives in groups]
        assert value.item() == pytest.approx(groups_by_hand(loss, scored, 0.7), abs=1e-5)
        # Control: with a positive and one of its negatives in each other's place the loss is another.
        turned = [
            (negatives[0], [positive, *negatives[1:]]) if negatives else (positive, [])
            for positive, negatives in scored
        ]
        assert abs(value.item() - groups_by_hand(loss, turned, 0.7)) > 1e-2
        assert live.grad is not None and {tuple(cell) for cell in live.grad.nonzero().tolist()} <= set(pairs)
        assert torch.isfinite(live.grad).all()
    assert len(parts) > 2 * plan.steps_per_epoch, "groups are spread over parts"


def test_losses_of_full_groups_equal_torchs_own() -> None:
    scores = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    positive, negative = scores[:, :1].expand(9, 3), scores[:, 1:]
    margin = torch.nn.functional.margin_ranking_loss(positive, negative, torch.ones(9, 3), margin=0.2)
    assert torch.allclose(pairwise_margin(scores, 0.2), margin)
    assert not torch.allclose(pairwise_margin(scores, 0.3), margin)
    likelihood = torch.nn.functional.nll_loss(scores.log_softmax(1), torch.zeros(9, dtype=torch.int64))
    assert torch.allclose(pairwise_softmax(scores), likelihood)
    assert not torch.allclose(pairwise_softmax(scores.flip(1)), likelihood)
    # With one negative it is the logistic loss of the difference.
    assert torch.allclose(
        pairwise_softmax(scores[:, :2]), torch.nn.functional.softplus(negative[:, 0] - positive[:, 0]).mean()
    )


@pytest.mark.parametrize("loss", ["pointwise", "pairwise_margin"])
def test_pairwise_losses_leave_out_positives_without_a_candidate(loss: str) -> None:
    plan, pool = pair_plan(loss)
    seen = np.concatenate([batch.query[batch.column == 0] for batch in batches_of(plan, 0)])
    with_candidates = (pool >= 0).any(axis=1)
    assert sorted(seen) == np.flatnonzero(with_candidates | (loss == "pointwise")).tolist()
    assert not with_candidates.all()
    for batch in batches_of(plan, 1):
        for group in range(batch.group.max() + 1):
            query, columns = batch.query[batch.group == group], batch.column[batch.group == group]
            assert len(set(query.tolist())) == 1 and columns.tolist() == list(range(len(columns)))
            assert set(batch.passage[(batch.group == group) & (batch.column > 0)]) <= set(pool[query[0]])


def test_pairwise_losses_need_a_candidate() -> None:
    labels, none = Qrels(*(np.zeros(3, np.int32) for _ in range(3))), np.full((3, 5), -1, np.int32)
    with pytest.raises(UserError, match="loss = pairwise_softmax needs negatives"):
        PairBatches(labels, none, TrainCrossEncoder(loss="pairwise_softmax"))
    assert PairBatches(labels, none, TrainCrossEncoder()).steps_per_epoch == 1


@pytest.mark.parametrize("twins", [True, False])
def test_in_batch_negatives_are_all_passages_but_known_positives(twins: bool) -> None:
    generator = np.random.default_rng(0)
    table = torch.tensor(generator.normal(size=(14, 40)))  # rows 12 and 13: generated queries
    query = np.array([0, 0, 3, 7, 12, 13, 9, 12])
    passage = np.array([5, 6, 1, 8, 5, 9, 2, 30])
    negatives = np.array([[20, 21], [20, 22], [5, 8], [1, -1], [8, 6], [-1, -1], [9, 23], [2, 5]])
    group, column = np.nonzero(negatives >= 0)
    batch = PairBatch(
        np.concatenate([query, query[group]]), np.concatenate([passage, negatives[group, column]]),
        np.concatenate([np.arange(8), group]), np.concatenate([np.zeros(8, int), column + 1]),
    )  # fmt: skip
    labels = [(0, 5), (0, 6), (3, 1), (7, 8), (9, 2), (2, 9), (11, 21)]
    groups = np.arange(12)
    groups[[7, 2]] = 3, 9  # 7 asks what 3 asks; 9 asks what 2 asks
    known = KnownPositives(*np.array(labels).T, groups if twins else None)

    def by_hand(twins: bool) -> float:
        losses = []
        for q, p in zip(query, passage, strict=True):
            same = [o for o in range(12) if q < 12 and (o == q or (twins and groups[o] == groups[q]))]
            out = {other for o, other in labels if o in same and other != p}
            terms = [math.exp(table[q, other]) for other in set(batch.passage.tolist()) - out]
            losses.append(-math.log(math.exp(table[q, p]) / sum(terms)))
        return sum(losses) / len(losses)

    value = in_batch_loss(lambda q, p: table[q][:, p], batch, known, 12).item()
    assert value == pytest.approx(by_hand(twins), abs=1e-12)
    assert abs(value - by_hand(not twins)) > 1e-3
