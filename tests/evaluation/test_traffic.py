"""Measures weighted by the traffic of a log, beside the plain ones."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from gnn_encoder.artifacts import Dataset, DatasetWriter, Evaluation, Run, drafting
from gnn_encoder.artifacts.dataset import TRAFFIC
from gnn_encoder.evaluation.significance import paired_randomization
from gnn_encoder.report.table import results_table
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.steps.evaluate import evaluate

QUERIES, SYSTEMS = 60, ("BM25", "Dual encoder")


def evaluated(folder: Path, clicks: np.ndarray | None) -> dict[str, Any]:
    """The metrics of two systems: one finds each query's passage first or not at all, the other first or second."""
    random, rows = np.random.default_rng(4), np.arange(QUERIES)
    names = [f"x{i}" for i in rows]
    with drafting(folder / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(names, names, names)
        writer.queries(names, [f"query {i}" for i in rows], ["test"] * QUERIES, [[] for _ in rows])
        writer.qrels(names, names, [1] * QUERIES, rows, rows)
        if clicks is not None:
            writer.table(TRAFFIC, rows, clicks)
        writer.close()
    runs = []
    for system in SYSTEMS:
        first = random.random(QUERIES) < 0.6
        others = (rows + 1) % QUERIES
        hits = np.stack([np.where(first, rows, others), np.where(first | (system == SYSTEMS[0]), -1, rows)], axis=1)
        with drafting(folder / system, "run") as draft:
            Run.from_hits(rows, hits, np.tile(np.float32([2, 1]), (QUERIES, 1))).write(draft, system)
        runs.append(draft.target)
    settings = Evaluate(candidate=SYSTEMS[0], baseline=SYSTEMS[1], permutations=200, resamples=4000)
    evaluate(settings, dataset=folder / "dataset", runs=runs, evaluation=folder / "evaluation")
    assert Dataset(folder / "dataset").traffic is None or clicks is not None
    return {**Evaluation.read(folder / "evaluation").metrics, "table": Evaluation.read(folder / "evaluation")}


def test_means_by_traffic_and_their_intervals(tmp_path: Path) -> None:
    clicks = np.random.default_rng(0).pareto(1.5, QUERIES).round(1) + 0.1
    metrics = evaluated(tmp_path / "log", clicks)
    evaluation = metrics.pop("table")
    table = evaluation.per_query.to_pandas()
    random = np.random.default_rng(1)
    draws = random.integers(QUERIES, size=(4000, QUERIES))
    for system in SYSTEMS:
        values = table[table.system == system]["RR@10"].to_numpy()
        mean = metrics["traffic"]["results"]["test"][system]["RR@10"]
        assert mean == pytest.approx(np.average(values, weights=clicks))
        assert metrics["results"]["test"][system]["RR@10"] == pytest.approx(values.mean())
        assert mean != pytest.approx(values.mean(), abs=1e-3), "the control: weights matter here"
        ratios = (values[draws] * clicks[draws]).sum(axis=1) / clicks[draws].sum(axis=1)
        low, high = metrics["traffic"]["intervals"]["test"][system]["RR@10"]
        assert high - low == pytest.approx(np.diff(np.quantile(ratios, [0.025, 0.975]))[0], rel=0.15)
    assert "60 of 60 test queries have labels from clicks in a log" in " ".join(metrics["remarks"])
    screen = Console(file=io.StringIO(), width=100, record=True)
    screen.print(results_table(metrics))
    assert "test, traffic" in screen.export_text()
    figures = evaluation.manifest.metrics
    assert figures["test/BM25/traffic/RR@10"] == metrics["traffic"]["results"]["test"]["BM25"]["RR@10"]


def test_systems_are_compared_by_swaps_of_weighted_values(tmp_path: Path) -> None:
    clicks = np.random.default_rng(0).pareto(1.0, QUERIES) + 0.1
    clicks[0] = 100 * clicks.sum()  # one query decides the means
    metrics = evaluated(tmp_path / "log", clicks)
    table = metrics.pop("table").per_query.to_pandas()
    values = np.stack([table[table.system == system]["RR@10"].to_numpy() for system in SYSTEMS])
    weights = clicks / clicks.mean()
    differences = weights * (values[0] - values[1])
    p = metrics["traffic"]["p_values"]["test"][SYSTEMS[0]]["RR@10"]
    assert p == paired_randomization(differences[:, None], 200, metrics["seed"])[0]
    # The control: with values around the mean every query has the difference of the means.
    around = differences + (1 - weights) * differences.mean()
    assert p > 0.1 > paired_randomization(around[:, None], 200, metrics["seed"])[0]
    better = metrics["traffic"]["better"]["test"][SYSTEMS[0]]["RR@10"]
    assert better == metrics["better"]["test"][SYSTEMS[0]]["RR@10"] == (differences > 0).mean()


def test_without_a_log_nothing_is_weighted(tmp_path: Path) -> None:
    metrics = evaluated(tmp_path / "plain", None)
    assert not metrics["traffic"]["results"]
    equal = evaluated(tmp_path / "equal", np.full(QUERIES, 3.0))
    assert equal["traffic"]["results"]["test"] == {
        system: pytest.approx(values) for system, values in metrics["results"]["test"].items()
    }
