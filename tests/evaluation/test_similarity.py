import numpy as np
import pytest

from gnn_encoder.evaluation.similarity import NAMES, PAPER, beside_paper, distribution


def test_distribution_puts_thresholds_where_selection_does() -> None:
    similarity = np.array([-0.5, 0.099, 0.1, 0.29, 0.3, 0.3, 0.59, 0.6, 1.0, 0.05], np.float32)
    assert distribution(similarity) == [30.0, 20.0, 30.0, 20.0]
    assert distribution(np.zeros(0, np.float32)) == [0.0] * 4


def test_the_papers_distribution_is_whole_and_stands_beside_ours() -> None:
    assert sum(PAPER) == pytest.approx(100)
    rows = beside_paper(dict(zip(NAMES, (30.0, 20.0, 40.0, 10.0), strict=True)))
    assert rows[0] == ("below 0.1", 30.0, 20.17) and rows[-1] == ("above 0.6", 10.0, 10.12)
