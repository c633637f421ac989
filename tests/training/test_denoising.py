"""RocketQA's rule against a plain loop over candidates, and the little table algebra."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from gnn_encoder.artifacts import KnownPositives, PairScores, Qrels
from gnn_encoder.training.denoising import Pairs, denoised_positives, hard_negatives, labelled_positives


def random_candidates(seed: int, queries: int = 6, passages: int = 12) -> tuple[PairScores, Qrels]:
    """Distinct scored pairs, many with equal scores, and labels of relevance 0, 1 and 2 on some of them."""
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.permutation(queries * passages)[: generator.integers(1, queries * passages)])
    query, passage = (rows // passages).astype(np.int32), (rows % passages).astype(np.int32)
    score = generator.choice([-5.0, -3.0, -1.0, 0.0, 3.0, 5.0], len(rows)).astype(np.float32)
    labelled = np.flatnonzero(generator.random(len(rows)) < 0.3)
    relevance = generator.integers(0, 3, len(labelled)).astype(np.int32)
    return (
        PairScores(query, passage, score, expit(score), np.zeros((len(rows), 1), np.float16)),
        Qrels(query[labelled], passage[labelled], relevance),
    )


def listed(pairs: Pairs) -> list[tuple[int, int]]:
    return list(zip(pairs.query.tolist(), pairs.passage.tolist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), twins=st.booleans())
def test_rule_equals_a_loop(seed: int, twins: bool) -> None:
    """`twins`: queries 1 and 4 ask the same."""
    pairs, labels = random_candidates(seed)
    groups = np.array([0, 1, 2, 3, 1 if twins else 4, 5])
    judged: dict[tuple[int, int], int] = {}
    for q, p, r in zip(*(c.tolist() for c in (labels.query, labels.passage, labels.relevance)), strict=True):
        judged[groups[q], p] = max(r, judged.get((groups[q], p), 0))
    negatives, positives = [], []
    for q, p, s in sorted(
        zip(*(c.tolist() for c in (pairs.query, pairs.passage, pairs.score)), strict=True),
        key=lambda x: (x[0], -x[2], x[1]),
    ):
        probability = 1 / (1 + np.exp(-s))
        if probability < 0.1 and judged.get((groups[q], p), 0) == 0:
            negatives.append((q, p))
        if probability > 0.9 and (groups[q], p) not in judged:
            positives.append((q, p))
    positive = labels.positive()
    known = KnownPositives(positive.query, positive.passage, groups)
    assert listed(hard_negatives(pairs, known, 0.1)) == negatives
    assert listed(denoised_positives(pairs, labels, 0.9, groups)) == positives
    rows = zip(labels.query.tolist(), labels.passage.tolist(), labels.relevance.tolist(), strict=True)
    assert listed(labelled_positives(labels)) == sorted((q, p) for q, p, r in rows if r >= 1)


def test_between_the_thresholds_is_neither_and_thresholds_matter() -> None:
    score = np.array([-4.0, 0.0, 4.0], np.float32)
    pairs = PairScores(
        np.zeros(3, np.int32), np.array([1, 2, 3], np.int32), score, expit(score), np.zeros((3, 1), np.float16)
    )
    none, groups = Qrels(*(np.zeros(0, np.int32) for _ in range(3))), np.arange(1)
    known = KnownPositives(none.query, none.passage)
    assert listed(hard_negatives(pairs, known, 0.1)) == [(0, 1)]
    assert listed(denoised_positives(pairs, none, 0.9, groups)) == [(0, 3)]
    assert listed(hard_negatives(pairs, known, 0.6)) == [(0, 2), (0, 1)]
    assert listed(denoised_positives(pairs, none, 0.4, groups)) == [(0, 3), (0, 2)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=25),
    queries=st.lists(st.integers(0, 7), max_size=9),
    width=st.integers(1, 4),
)
def test_table_and_first_equal_a_loop(rows: list[tuple[int, int]], queries: list[int], width: int) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    pairs = Pairs(*(np.array([row[i] for row in rows], np.int32) for i in (0, 1)))
    table = pairs.table(np.array(queries, dtype=np.int32), width)
    assert table.shape == (len(queries), width)
    for line, query in zip(table.tolist(), queries, strict=True):
        passages = [p for q, p in rows if q == query][:width]
        assert line == passages + [-1] * (width - len(passages))
    kept = [(q, p) for i, (q, p) in enumerate(rows) if sum(other == q for other, _ in rows[:i]) < width]
    assert listed(pairs.first(width)) == kept
