"""Figures with and without the queries that nearly equal a training query, and the differences that they can show."""

from pathlib import Path

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, DatasetWriter, Evaluation, Run, drafting
from gnn_encoder.artifacts.dataset import RECURRING
from gnn_encoder.artifacts.known_positives import warm_labels
from gnn_encoder.evaluation.power import detectable
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.steps.evaluate import evaluate

RANKS = {"first": [1, 2, 3, 4, 1, 2], "second": [2, 1, 4, 4, 2, 1]}
"""Of the relevant passage of each test query."""


def write_data(path: Path, recurring: list[int]) -> Dataset:
    """Queries 0 to 5 are of train, of which 0 and 1 are twins, and 6 to 11 of test; query i's passage is i % 6 // 2."""
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(6)], [""] * 6, [f"the old stone {i}" for i in range(6)])
        rows, groups = list(range(12)), [0, 0, *range(2, 12)]
        splits = ["train"] * 6 + ["test"] * 6
        writer.queries([f"q{i}" for i in rows], [f"a stone {i}" for i in rows], splits, [[]] * 12, groups)
        passage = [i % 6 // 2 if i != 11 else 5 for i in rows]
        writer.qrels([f"q{i}" for i in rows], [f"p{p}" for p in passage], [1] * 12, rows, passage)
        if recurring:
            writer.table(RECURRING, recurring)
        writer.close()
    return Dataset(path)


def evaluated(folder: Path, recurring: list[int]) -> Evaluation:
    data = write_data(folder / "dataset", recurring)
    queries, passage = np.arange(6, 12), data.qrels.passage[6:]
    for system, ranks in RANKS.items():
        hits = np.stack([np.roll(np.arange(6), rank - 1 - p) for rank, p in zip(ranks, passage, strict=True)])
        with drafting(folder / system, "run") as draft:
            Run.from_hits(queries, hits, np.tile(-np.arange(6.0), (6, 1))).write(draft, system)
    settings = Evaluate(baseline="first", candidate="second", permutations=50, resamples=50, measures="RR@10 AP")
    evaluate(settings, dataset=data.path, runs=[folder / s for s in RANKS], evaluation=folder / "evaluation")
    return Evaluation.read(folder / "evaluation")


def test_the_first_measure_has_figures_with_and_without_recurring_queries(tmp_path: Path) -> None:
    evaluation = evaluated(tmp_path, [3, 7, 10])  # one of train, which changes nothing
    for name, places in (("recurring", [1, 4]), ("unseen", [0, 2, 3, 5])):
        block = evaluation.metrics["recurrence"][name]
        assert block["queries"] == {"test": len(places)} and block["measures"] == ["RR@10"]
        for system, ranks in RANKS.items():
            expected = np.mean([1 / ranks[i] for i in places])
            assert block["results"]["test"][system]["RR@10"] == pytest.approx(expected)
            assert evaluation.manifest.metrics[f"test/{system}/{name}/RR@10"] == pytest.approx(expected)


@pytest.mark.parametrize("recurring", [[], [3]])
def test_without_recurring_test_queries_there_are_no_such_figures(tmp_path: Path, recurring: list[int]) -> None:
    evaluation = evaluated(tmp_path, recurring)
    assert [block["results"] for block in evaluation.metrics["recurrence"].values()] == [{}, {}]


def test_the_detectable_difference_is_that_of_the_measured_deviation(tmp_path: Path) -> None:
    evaluation = evaluated(tmp_path, [])
    differences = 1 / np.array(RANKS["second"]) - 1 / np.array(RANKS["first"])
    expected = {"second": {"RR@10": detectable(float(np.std(differences, ddof=1)), 6)}}
    assert evaluation.metrics["detectable"] == {
        "test": {"second": {"RR@10": pytest.approx(expected["second"]["RR@10"])}}
    }
    assert evaluation.manifest.metrics["test/second/detectable/RR@10"] == pytest.approx(expected["second"]["RR@10"])


def test_labels_are_warm_by_another_training_query_that_is_no_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_data(tmp_path / "dataset", [])
    labels, warm = warm_labels(data, "train")
    assert dict(zip(labels.query.tolist(), warm.tolist(), strict=True)) == {
        0: False, 1: False, 2: True, 3: True, 4: True, 5: True,
    }  # fmt: skip
    labels, warm = warm_labels(data, "test")
    assert warm.tolist() == [True] * 5 + [False] and labels.passage[-1] == 5
    of_people = data.split_qrels("train")
    monkeypatch.setattr(data, "seen_labels", of_people.where(of_people.query < 0))
    assert not warm_labels(data, "test")[1].any(), "labels of written queries make no passage warm"
