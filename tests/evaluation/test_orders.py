"""The order of systems by two sets of queries, against scipy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command_line import call
from scipy.stats import ttest_rel, weightedtau

from gnn_encoder.artifacts import Report, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.orders import orders
from gnn_encoder.evaluation.remarks import written_remarks

MEANS = {"strong": 0.8, "middle": 0.5, "near": 0.499, "weak": 0.2}


def values(means: dict[str, float], queries: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: np.clip(random.normal(mean, 0.1, queries), 0, 1) for name, mean in means.items()}


def test_orders_that_agree_and_the_reverse() -> None:
    first, second = values(MEANS, 80, 0), values(MEANS, 60, 1)
    order = orders(first, second | {"elsewhere": np.ones(60)})
    means = [[float(of[name].mean()) for name in MEANS] for of in (first, second)]
    # Without weights, `weightedtau` is Kendall's τ by another algorithm than `kendalltau`'s.
    assert order.tau == pytest.approx(weightedtau(*means, weigher=lambda rank: 1).statistic)
    assert next(iter(order.systems)) == "strong" and set(order.systems) == set(MEANS)
    # All pairs differ but that of `middle` and `near`, which is noise.
    assert ttest_rel(second["middle"], second["near"]).pvalue > 0.05
    assert (order.distinct, order.same, order.reversed, order.proved, order.proved_same) == (5, 5, 0, 5, 5)
    assert order.tau_distinct == 1 and order.lost == 0

    backwards = orders({name: 1 - of for name, of in first.items()}, second)
    assert backwards.tau == pytest.approx(-order.tau)
    assert (backwards.same, backwards.reversed, backwards.tau_distinct) == (0, 5, -1)
    assert backwards.lost == pytest.approx(second["strong"].mean() - second["weak"].mean())


def test_equal_systems_are_one_and_equal_means_have_no_order() -> None:
    first, second = values(MEANS, 80, 0), values(MEANS, 60, 1)
    order = orders(first | {"twin": first["weak"]}, second | {"twin": second["weak"]})
    assert order == replace(orders(first, second), alike={"weak": ["twin"]})
    level = {"a": np.full(9, 0.5), "b": np.full(9, 0.5)}
    order = orders(level, values({"a": 0.9, "b": 0.1}, 20, 0))
    assert order.tau is None and (order.distinct, order.same, order.reversed) == (1, 0, 0)
    with pytest.raises(UserError, match="1 of the systems a, b"):
        orders(level, level)


def test_the_command_reads_two_splits_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splits = {"dev": values(MEANS, 70, 0), "test": values(MEANS, 50, 1)}
    rows = [
        {"split": split, "system": system, "RR@10": float(value)}
        for split, systems in splits.items()
        for system, of in systems.items()
        for value in of
    ]
    metrics = {
        "measures": ["RR@10"],
        "written": ["dev"],
        "queries": {"dev": 70, "test": 50},
        "results": {split: {name: {} for name in MEANS} for split in splits},
    }
    (tmp_path / "latest").mkdir()
    with drafting(tmp_path / "latest" / "report", "report") as draft:
        Report.write(draft, metrics=metrics, per_query=pa.Table.from_pylist(rows), plots={}, page="")
    assert call("orders", f"{tmp_path}:dev", str(tmp_path / "latest" / "report")) == 0
    shown = capsys.readouterr().out
    assert "5 have the same order on dev, on generated queries (70 queries), 0 the reverse (τ 1.00)" in shown
    assert call("orders", str(tmp_path), str(tmp_path), "--measure", "R@5") == 2
    assert "has no R@5: choose one of RR@10" in capsys.readouterr().err


def test_figures_on_generated_queries_come_with_what_they_are_worth() -> None:
    (remark,) = written_remarks(["dev", "test"])
    page = (Path(__file__).parents[2] / "docs" / "notebook.md").read_text("utf-8")
    heading = remark.partition("docs/notebook.md, ")[2].rstrip(")")
    assert remark.startswith("dev and test: ") and f"\n### {heading}\n" in page
    assert "26 of 32 pairs" in page and "ordered 26 of 32 pairs" in remark
    assert written_remarks([]) == [], "the control: people's queries alone"
