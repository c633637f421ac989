"""The queries that a page shows as examples."""

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, Qrels
from gnn_encoder.report.examples import examples, most_changed


@pytest.mark.parametrize(
    ("gains", "won", "lost"),
    [([0.1, -0.5, 0.0, 0.9], [3, 0], [1]), ([0.0, 0.0], [], []), ([0.2, 0.2, 0.2], [0, 1], [])],
)
def test_most_changed(gains: list[float], won: list[int], lost: list[int]) -> None:
    best, worst = most_changed(np.array(gains), 2)
    assert (best.tolist(), worst.tolist()) == (won, lost)


def test_a_passage_is_relevant_from_the_measure_s_level_on(
    tiny_dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded = Qrels(*(np.array(of, np.int32) for of in ([7, 7], [0, 1], [1, 2])))
    monkeypatch.setattr(Dataset, "judged", lambda *_: graded)
    hits, figures = {"a": np.array([[0, 1, 2]])}, {"a": np.ones(1)}
    for level, expected in ((1, [True, True, False]), (2, [False, True, False])):
        (example,) = examples(tiny_dataset, "test", np.array([0]), figures, hits, level)
        assert [passage.relevant for passage in example.rankings["a"]] == expected
