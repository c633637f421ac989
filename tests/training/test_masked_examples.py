"""What the step makes of its inputs before it trains: examples of graph queries, and negatives from the graph."""

import numpy as np

from gnn_encoder.artifacts import Graph, KnownPositives, TrainingSet, reverse_csr
from gnn_encoder.training.masked_graph import graph_examples, retrieved_negatives


def examples() -> TrainingSet:
    generator = np.random.default_rng(0)
    query = np.array([4, -1, 7, 7, 9, 4], dtype=np.int32)
    negatives = generator.integers(0, 30, (6, 2)).astype(np.int32)
    return TrainingSet([f"q{q}" for q in query], query, np.arange(6, dtype=np.int32), negatives, np.zeros(6, np.int8))


def test_generated_queries_are_left_out() -> None:
    kept = graph_examples(examples())
    assert kept.query.tolist() == [4, 7, 7, 9, 4]
    assert kept.query_text == ["q4", "q7", "q7", "q9", "q4"] and kept.positive.tolist() == [0, 2, 3, 4, 5]


def test_retrieved_negatives_are_the_querys_own_without_its_positives() -> None:
    generator = np.random.default_rng(1)
    nodes = np.array([4, 7, 9], dtype=np.int32)
    retrieved = np.stack([generator.permutation(12)[:6] for _ in nodes]).astype(np.int32)
    edges = retrieved[:, :2]
    graph = Graph(nodes, edges, edges < -1, None, *reverse_csr(edges, 12), retrieved=retrieved)
    kept = graph_examples(examples())
    known = KnownPositives(kept.query, kept.positive)
    found = retrieved_negatives(kept, graph, known)
    positives = {4: {0, 5}, 7: {2, 3}, 9: {4}}
    dropped = 0
    for row, query in enumerate(kept.query.tolist()):
        own = retrieved[nodes.tolist().index(query)]
        assert found[row].tolist() == [-1 if p in positives[query] else p for p in own]
        dropped += int((found[row] < 0).sum())
    assert dropped > 0
