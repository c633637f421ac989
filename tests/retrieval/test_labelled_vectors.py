"""Scores with labels against a plain loop in float64, for every use of labels."""

from dataclasses import replace

import numpy as np
import pytest
from labelled import USES, best_by_loop, random_labels, scores_by_loop, unit

from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse
from gnn_encoder.retrieval import exact, labelled_vectors
from gnn_encoder.retrieval.hits import Hits
from gnn_encoder.retrieval.labelled_vectors import clusters, label_blocks
from gnn_encoder.retrieval.memory import Memory
from gnn_encoder.retrieval.passage_index import PassageIndex


def index_of(use: LabelUse, passages: np.ndarray, labels: LabelledQueries) -> PassageIndex:
    """The index as a bundle has it."""
    blocks = list(label_blocks(use, passages, labels, np.arange(len(passages))))
    vectors, of = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    memory = Memory(labels, use) if use.method == "softmax" and use.weight else None
    return PassageIndex(vectors, vectors, of if len(vectors) > len(passages) else None, memory)


@pytest.mark.parametrize("length", [1.0, 5.0])
@pytest.mark.parametrize("method", USES)
@pytest.mark.parametrize("block", [3, 1000])
def test_equals_the_loop(method: str, length: float, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelled_vectors, "BLOCK", block)
    passages, labels = random_labels(length=length)
    questions = np.random.default_rng(9).normal(size=(20, passages.shape[1])).astype(np.float32)
    scores, rows = index_of(USES[method], passages, labels).search(questions, 15)
    other, _ = index_of(replace(USES[method], weight=0.5), passages, labels).search(questions, 15)
    for question, values, hits in zip(questions, scores, rows, strict=True):
        expected = scores_by_loop(USES[method], passages, labels, question)
        best = best_by_loop(expected, 15)
        assert hits.tolist() == best
        np.testing.assert_allclose(values, expected[best], rtol=2e-5, atol=2e-5 * length**2)
    assert np.abs(other - scores).max() > 1e-2 * length**2  # the control: another weight is another score


def test_sums_have_the_bits_of_numpys() -> None:
    random = np.random.default_rng(1)
    for most in (1, 2, 40):
        starts = np.append(0, np.cumsum(random.integers(1, most + 1, 50)))
        vectors = random.normal(size=(int(starts[-1]) + 3, 24)).astype(np.float32)
        sums = np.add.reduceat(vectors, starts)
        assert np.array_equal(labelled_vectors._sums(vectors, starts), sums)
        assert not np.array_equal(vectors[starts], sums)  # the control: the last group has several


@pytest.mark.parametrize("method", USES)
def test_without_a_weight_or_a_label_nothing_changes(method: str) -> None:
    passages, labels = random_labels()
    questions = passages[:5]
    none = LabelledQueries.of(np.empty(0, int), np.empty(0, int), len(passages), labels.vectors)
    for use, known in ((replace(USES[method], weight=0.0), labels), (USES[method], none)):
        index = index_of(use, passages, known)
        assert np.array_equal(index.vectors, passages) and index.of is None
        for mine, plain in zip(index.search(questions, 50), exact.search(passages, questions, 50), strict=True):
            np.testing.assert_array_equal(mine, plain)
    index, cold = index_of(USES[method], passages, labels), np.setdiff1d(np.arange(40), labels.passages)
    of = np.arange(40) if index.of is None else index.of
    assert len(cold) > 10 and np.array_equal(index.vectors[np.isin(of, cold)], passages[cold])


@pytest.mark.parametrize("method", USES)
def test_ties_go_to_the_lower_passage(method: str) -> None:
    """Passages in pairs of equal vectors and equal labels."""
    random = np.random.default_rng(3)
    passages, queries = np.repeat(unit(random.normal(size=(10, 6))), 2, axis=0), unit(random.normal(size=(5, 6)))
    query = np.repeat(np.arange(5), 4)
    labels = LabelledQueries.of(query, np.tile([0, 1, 6, 7], 5), 20, queries)
    _, rows = index_of(USES[method], passages, labels).search(queries, 20)
    assert np.array_equal(np.sort(rows, axis=1), np.tile(np.arange(20), (5, 1)))
    places = np.argsort(rows, axis=1)
    assert (places[:, 1::2] == places[:, ::2] + 1).all()


def test_more_than_there_are() -> None:
    passages, labels = random_labels(m=6, n=4, pairs=5)
    for use in USES.values():
        scores, rows = index_of(use, passages, labels).search(passages, 9)
        assert np.array_equal(np.sort(rows, axis=1), np.tile([-1, -1, -1, *range(6)], (6, 1)))
        assert np.isneginf(scores[:, 6:]).all() and np.isfinite(scores[:, :6]).all()
    for use in USES.values():
        scores, rows = index_of(use, passages, labels).search(passages[:0], 3)
        assert scores.shape == rows.shape == (0, 3)


def test_groups_have_every_query_and_their_mean() -> None:
    random = np.random.default_rng(1)
    owner = np.repeat([2, 5, 9], [1, 4, 60])
    queries = unit(random.normal(size=(65, 8)))
    queries[2] = queries[1]  # twins
    of, centroids, group = clusters(owner, queries, 4)
    assert of.tolist() == sorted(of.tolist()) and np.array_equal(of[group], owner)
    assert np.bincount(of, minlength=10).tolist() == [0, 0, 1, 0, 0, 3, 0, 0, 0, 4]
    for number, centroid in enumerate(centroids):
        np.testing.assert_allclose(centroid, queries[group == number].mean(axis=0), atol=1e-6)
    # Each query of the large group is nearest to its own centroid: k-means has settled.
    inside = owner == 9
    near = np.argmax(queries[inside] @ unit(centroids[of == 9]).T, axis=1)
    assert (near + np.searchsorted(of, 9) == group[inside]).mean() > 0.9


def test_a_memory_lifts_what_no_search_found() -> None:
    """The labelled passage is the last of 50 by its own score, and the first with its neighbour's label."""
    random = np.random.default_rng(5)
    question = unit(random.normal(size=(1, 8)))
    passages = unit(question + 0.3 * random.normal(size=(50, 8)))
    passages[49] = -question
    labels = LabelledQueries.of(np.zeros(1, int), np.array([49]), 50, question)
    memory = Memory(labels, LabelUse("softmax", 3.0, neighbours=5, temperature=0.1))
    hits: Hits = exact.search(passages, question, 4)
    assert 49 not in hits[1]
    scores, rows = memory.search(passages, question, hits)
    assert rows[0].tolist() == [49, *hits[1][0, :3].tolist()]
    np.testing.assert_allclose(scores[0, 0], 2.0, atol=1e-6)
