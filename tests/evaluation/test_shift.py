"""Dev queries that are nearer to the training queries than the asked ones, on drawn similarities."""

import numpy as np
import pytest

from gnn_encoder.evaluation.shift import FEWEST, LARGEST, nearest, shift


def test_the_nearest_training_query_by_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnn_encoder.evaluation.shift.AT_ONCE", 7)
    generator = np.random.default_rng(0)
    training, queries = generator.normal(size=(40, 8)), 3 * generator.normal(size=(15, 8))
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (training, queries)]
    np.testing.assert_allclose(nearest(training, queries), (unit[1] @ unit[0].T).max(axis=1), atol=1e-6)
    assert nearest(training, np.zeros((1, 8))) == 0


def test_weighted_dev_queries_give_the_mean_of_the_asked_ones() -> None:
    """A gain that grows with the similarity is about as large on weighted dev queries as on the asked ones; without
    weights it is far larger."""
    generator = np.random.default_rng(1)
    dev, test = generator.beta(5, 2, 4000), generator.beta(3, 3, 4000)
    shifted = shift(dev, test)
    assert shifted is not None and shifted.weights.mean() == pytest.approx(1)
    gain = dev**2
    truth = (test**2).mean()
    assert abs((shifted.weights * gain).mean() - truth) < 0.2 * (gain.mean() - truth)
    assert gain.mean() - truth > 0.2
    assert "(median similarity 0.7" in str(shifted)


def test_a_dev_query_stands_for_few_others_only() -> None:
    dev, test = (
        np.concatenate([np.full(990, 0.9), np.full(10, 0.1)]),
        np.concatenate([np.full(50, 0.1), np.full(50, 0.9)]),
    )
    shifted = shift(dev, test)
    assert shifted is not None and shifted.weights.max() / shifted.weights.min() == pytest.approx(
        LARGEST / (0.5 / 0.99)
    )


def test_a_dev_query_beyond_the_asked_ones_counts_nothing() -> None:
    dev, test = np.linspace(0, 1, 101), np.linspace(0.3, 0.6, 50)
    shifted = shift(dev, test)
    assert shifted is not None and np.array_equal(shifted.weights > 0, (dev >= 0.3) & (dev <= 0.6))
    nowhere = shift(np.full(50, 0.9), test)
    assert nowhere is not None and (nowhere.weights == 1).all()


def test_alike_or_few_queries_are_not_weighted() -> None:
    generator = np.random.default_rng(2)
    alike = [shift(generator.beta(5, 2, 100), generator.beta(5, 2, 300)) is None for _ in range(100)]
    assert sum(alike) >= 95
    few = FEWEST - 1
    assert shift(np.full(few, 0.9), np.zeros(1000)) is None and shift(np.full(1000, 0.9), np.zeros(few)) is None
    assert shift(np.full(FEWEST, 0.9), np.zeros(FEWEST)) is not None
