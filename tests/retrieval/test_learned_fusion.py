"""Learned fusions: the regression against scikit-learn's, and files that give the same scores."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.learned_fusion import Linear, Trees, read_fusion

NAMES = ("a", "b", "c", "constant")


def candidates(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, relevance and sizes: the first two features matter, the second on another scale."""
    generator = np.random.default_rng(seed)
    sizes = generator.integers(5, 40, size=60)
    features = generator.normal(size=(sizes.sum(), 4)).astype(np.float32) * [1, 100, 1, 0] + [0, 5, 0, 3]
    chance = 1 / (1 + np.exp(-(2 * features[:, 0] + 0.01 * features[:, 1] - 3)))
    return features.astype(np.float32), generator.uniform(size=len(features)) < chance, sizes


def test_the_regression_is_scikit_learns() -> None:
    features, relevant, _ = candidates()
    scaler = StandardScaler().fit(features)
    reference = LogisticRegression(max_iter=1000, tol=1e-8).fit(scaler.transform(features), relevant)
    scores = Linear.fit(features, relevant).scores(features)
    assert np.allclose(scores, reference.decision_function(scaler.transform(features)), atol=2e-3)
    other = Linear.fit(features, relevant, penalty=100.0).scores(features)
    assert not np.allclose(scores, other, atol=0.1)


def test_a_weight_that_would_fall_is_zero_and_the_others_are_the_best_without_it() -> None:
    """Where each passage answers one query, a label says that a passage is not relevant to another query."""
    features, relevant, _ = candidates()
    features[:, 2] = np.where(relevant, 0.0, features[:, 0] > 0)  # as query memory: nothing relevant has a label
    rising = np.array([False, False, True, False])
    held, free = Linear.fit(features, relevant, rising), Linear.fit(features, relevant)
    assert held.weights[2] == 0 and free.weights[2] < -1
    without = Linear.fit(features * ~rising, relevant)
    np.testing.assert_allclose(held.weights, without.weights, rtol=1e-3, atol=1e-6)
    gaining = Linear.fit(features, relevant, np.array([True, False, False, False]))
    np.testing.assert_allclose(gaining.weights, free.weights, rtol=1e-3, atol=1e-6)


def test_trees_never_fall_with_a_feature_that_may_only_raise() -> None:
    features, relevant, sizes = candidates()
    features[:, 2] = np.where(relevant, 0.0, features[:, 0] > 0)
    with_label = features.copy()
    with_label[:, 2] = 1.0
    falls = []
    for rising in (np.array([False, False, True, False]), None):
        trees = Trees.fit(features, relevant, sizes, rising)
        falls.append((trees.scores(with_label) < trees.scores(features) - 1e-6).any())
    assert falls == [False, True]


@pytest.mark.parametrize("form", ["trees", "linear"])
def test_a_written_fusion_has_the_same_scores_and_no_pickle(form, tmp_path) -> None:
    features, relevant, sizes = candidates()
    fusion = Trees.fit(features, relevant, sizes) if form == "trees" else Linear.fit(features, relevant)
    fusion.write(tmp_path, NAMES)
    again = read_fusion(tmp_path, NAMES)
    assert type(again) is type(fusion)
    assert np.array_equal(again.scores(features), fusion.scores(features))
    assert all(file.suffix in (".json", ".txt") and file.read_text("utf-8") for file in tmp_path.iterdir())
    with pytest.raises(UserError, match="fuses a, b, c, constant"):
        read_fusion(tmp_path, NAMES[:3])
    assert len(again.scores(features[:0])) == 0


def test_trees_are_the_same_again_and_order_relevant_candidates_first() -> None:
    features, relevant, sizes = candidates()
    scores = Trees.fit(features, relevant, sizes).scores(features)
    assert np.array_equal(scores, Trees.fit(features, relevant, sizes).scores(features))
    assert scores[relevant].mean() > scores[~relevant].mean() + 0.5
