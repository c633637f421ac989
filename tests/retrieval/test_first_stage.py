"""Depths per split, and the dev figures against a plain loop."""

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, KnownPositives, Run
from gnn_encoder.retrieval.first_stage import chance_negatives, dev_figures, negative_pool, search_splits


def random_search(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    rows = np.stack([generator.permutation(len(dataset.passages)) for _ in range(dataset.queries.num_rows)])
    return np.linspace(1, 0, rows.size).reshape(rows.shape).astype(np.float32), rows.astype(np.int32)


def test_each_split_to_its_depth(tiny_dataset: Dataset) -> None:
    scores, rows = random_search(tiny_dataset)
    run = search_splits(
        tiny_dataset, lambda queries, k: (scores[queries, :k], rows[queries, :k]), train_depth=7, eval_depth=1000
    )
    depth = np.bincount(run.query, minlength=100)
    assert set(depth[tiny_dataset.query_rows("train")]) == {7}
    assert set(depth[tiny_dataset.query_rows("dev")]) == {100} == set(depth[tiny_dataset.query_rows("test")])
    for query in (0, 65, 99):
        assert run.of(np.array([query])).passage.tolist() == rows[query][: depth[query]].tolist()


def test_dev_figures_equal_a_loop(tiny_dataset: Dataset) -> None:
    scores, rows = random_search(tiny_dataset)
    rows[3, :] = -1
    run = Run.from_hits(np.arange(100), rows[:, :40], scores[:, :40])
    labels = tiny_dataset.split_qrels("dev").positive()
    recall, reciprocal = [], []
    for query in np.unique(labels.query):
        wanted = set(labels.passage[labels.query == query].tolist())
        ranking = run.passage[run.query == query].tolist()
        recall.append(len(wanted & set(ranking[:100])) / len(wanted))
        reciprocal.append(next((1 / (i + 1) for i, p in enumerate(ranking[:10]) if p in wanted), 0.0))
    figures = dev_figures(tiny_dataset, run)
    assert 0 < np.mean(recall) < 1 and 0 < np.mean(reciprocal) < 1
    np.testing.assert_allclose(
        [figures["dev/R_at_100"], figures["dev/RR_at_10"]], [np.mean(recall), np.mean(reciprocal)]
    )


def test_first_positive_at_rank_eleven_counts_for_recall_alone(tiny_dataset: Dataset) -> None:
    labels = tiny_dataset.split_qrels("dev").positive()
    others = np.stack([np.setdiff1d(np.arange(100), [p])[:20] for p in labels.passage])
    for rank, expected in ((10, 0.1), (11, 0.0)):
        rows = np.insert(others, rank - 1, labels.passage, axis=1).astype(np.int32)
        run = Run.from_hits(labels.query, rows, np.zeros(rows.shape, np.float32))
        assert dev_figures(tiny_dataset, run) == {"dev/R_at_100": 1.0, "dev/RR_at_10": pytest.approx(expected)}


def test_a_query_without_a_negative_gets_some_by_chance(tiny_dataset: Dataset) -> None:
    """Query 3 finds its positive alone, query 5 nothing; the others keep what the first stage found."""
    _, rows = random_search(tiny_dataset)
    labels = tiny_dataset.trained_labels
    positive = labels.passage[np.argsort(labels.query)]
    rows = rows[:60, :4].copy()
    rows[3], rows[5] = [positive[3], -1, -1, -1], -1
    run = Run.from_hits(np.arange(60), rows, np.zeros(rows.shape, np.float32))
    pool = negative_pool(tiny_dataset, [run], 4)
    for row, (query, passage) in enumerate(zip(labels.query, labels.passage, strict=True)):
        negatives = pool[row][pool[row] >= 0]
        assert passage not in negatives and len(set(negatives.tolist())) == len(negatives) > 0
        if query in (3, 5):
            assert len(negatives) == 4 and np.array_equal(pool[row], negative_pool(tiny_dataset, [run], 4)[row])
        else:
            assert negatives.tolist() == [p for p in rows[query] if p != passage]
    known = KnownPositives(np.repeat(3, 99), np.arange(99))
    drawn = chance_negatives(tiny_dataset, known, np.array([3]), 200)
    assert set(drawn.ravel()) <= {-1, 99}, "no positive, whatever the chance"
