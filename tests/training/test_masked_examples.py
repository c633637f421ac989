"""What the step makes of its inputs before it trains: examples of graph queries, and negatives from the graph."""

from types import SimpleNamespace

import numpy as np
import pytest

from gnn_encoder.artifacts import Graph, Qrels, TrainingSet, reverse_csr
from gnn_encoder.errors import UserError
from gnn_encoder.settings.graph import TrainGnn
from gnn_encoder.training.masked_graph import training_examples

DATA = SimpleNamespace(
    groups=np.arange(10),
    passage_groups=None,
    identical=np.full(10, -1),
    split_qrels=lambda split: Qrels(*(np.zeros(0, np.int32) for _ in range(3))),
)
"""Ten queries without labels."""


def examples() -> TrainingSet:
    generator = np.random.default_rng(0)
    query = np.array([4, -1, 7, 7, 9, 4], dtype=np.int32)
    negatives = generator.integers(0, 30, (6, 2)).astype(np.int32)
    return TrainingSet([f"q{q}" for q in query], query, np.arange(6, dtype=np.int32), negatives, np.zeros(6, np.int8))


def graph() -> Graph:
    generator = np.random.default_rng(1)
    nodes = np.array([4, 7, 9], dtype=np.int32)
    retrieved = np.stack([generator.permutation(12)[:6] for _ in nodes]).astype(np.int32)
    edges = retrieved[:, :2]
    return Graph(nodes, edges, edges < -1, None, *reverse_csr(edges, 12), retrieved=retrieved)


def test_generated_queries_are_left_out() -> None:
    kept = training_examples(TrainGnn(), DATA, examples(), graph())
    assert kept.query.tolist() == [4, 7, 7, 9, 4]
    assert kept.query_text == ["q4", "q7", "q7", "q9", "q4"] and kept.positive.tolist() == [0, 2, 3, 4, 5]
    assert kept.negatives.tolist() == np.delete(examples().negatives, 1, axis=0).tolist()


def test_retrieved_negatives_are_the_querys_own_without_its_positives() -> None:
    nodes, retrieved = graph().queries.tolist(), graph().retrieved
    kept = training_examples(TrainGnn(hard_negatives="retrieved"), DATA, examples(), graph())
    positives = {4: {0, 5}, 7: {2, 3}, 9: {4}}
    dropped = 0
    for row, query in enumerate(kept.query.tolist()):
        passages = retrieved[nodes.index(query)]
        assert kept.negatives[row].tolist() == [-1 if p in positives[query] else p for p in passages]
        dropped += int((kept.negatives[row] < 0).sum())
    assert dropped > 0


def test_queries_of_one_text_are_too_few() -> None:
    alike = SimpleNamespace(**vars(DATA) | {"groups": np.zeros(10, np.int32)})
    with pytest.raises(UserError, match="at least two training queries of different text"):
        training_examples(TrainGnn(), alike, examples(), graph())
