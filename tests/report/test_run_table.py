"""The table of a run in a terminal."""

from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import RenderableType
from table_cells import printed

from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.results import block
from gnn_encoder.report.table import MOST, distinct, results_table, run_table, strata_table

BASELINE, CANDIDATE = "Dual encoder", "GNN-encoder"


def metrics_of(systems: dict[str, np.ndarray], chosen: str = "") -> dict[str, Any]:
    """An evaluation from values [queries, measures] of each system, on dev and test; 200 are warm, 150 cold."""
    how: dict[str, Any] = {"permutations": 200, "resamples": 10, "seed": 0, "baseline": BASELINE}
    warm, cold = ({name: values[part] for name, values in systems.items()} for part in (slice(200), slice(-150, None)))
    strata = {"warm": {"dev": warm}, "cold": {"dev": cold, "test": cold}}
    return {
        **block({"dev": systems, "test": systems}, NAMES, **how),
        "strata": {name: block(part, NAMES, **how) for name, part in strata.items()},
        "headline_split": "test", "baseline": BASELINE, "candidate": CANDIDATE, "fusions": {}, "test": "randomization",
        "recommendation": {"system": chosen},
    }  # fmt: skip


def systems() -> dict[str, np.ndarray]:
    base = np.random.default_rng(0).random((300, len(NAMES)))
    return {"BM25": base * 0.5, BASELINE: base, CANDIDATE: np.clip(base + 0.01, 0, 1)}


def lines_of(metrics: dict[str, Any], tables: Callable[[dict], RenderableType] = run_table) -> list[str]:
    return printed(tables(metrics)).splitlines()


def rows(metrics: dict[str, Any]) -> dict[str, list[str]]:
    """The table's rows: label without its mark → cells."""
    lines = [line for line in lines_of(metrics)[3:] if line[:1] in "▸ " and "0." in line]
    parts = (line[2:].split("  ", 1) for line in lines)
    return {label: cells.split() for label, cells in parts}


def test_a_table_has_test_and_dev_and_warm_and_cold_queries_if_there_are_enough() -> None:
    metrics = metrics_of(systems())
    first, second, *rest = lines_of(metrics)
    assert first.split() == ["MRR@10", "MRR@10"] and second.split()[:4] == ["test", "300", "dev", "300"]
    assert "all 150 test queries are cold" in rest[-2] + rest[-1], "nothing to compare"
    metrics["headline_split"] = "dev"
    first, second, *_ = lines_of(metrics)
    assert first.split() == ["MRR@10", "warm", "cold"] and second.split()[:5] == ["dev", "300", "200", "150", "nDCG@10"]
    parts = (metrics, metrics["strata"]["warm"], metrics["strata"]["cold"])
    means = [f"{part['results']['dev']['BM25']['RR@10']:.3f}*" for part in parts]
    assert rows(metrics)["BM25"][:3] == means and len({*means}) == 3
    assert not any("*" in cell for cell in rows(metrics)[BASELINE]), "it does not differ from itself"
    metrics["strata"]["warm"]["queries"]["dev"] = 49
    assert lines_of(metrics)[0].split() == ["MRR@10"], "too few"


def test_equal_systems_are_one_row_and_the_recommended_one_is_marked() -> None:
    values = systems()
    same, nearly = values[CANDIDATE], values[CANDIDATE].copy()
    nearly[0, -1] += 0.1
    metrics = metrics_of({**values, "Other": same, "Equal": same, "Nearly": nearly}, chosen="Equal")
    assert distinct(metrics) == {"BM25": [], BASELINE: [], "Equal": [CANDIDATE, "Other"], "Nearly": []}
    lines = lines_of(metrics)
    assert list(rows(metrics)) == ["BM25", BASELINE, "Equal +2", "Nearly"]
    assert [line[2:10] for line in lines if line.startswith("▸ ")] == ["Equal +2", "recommen"]
    assert "Equal +2: the same figures as GNN-encoder; Other" in [line.strip() for line in lines]
    assert max(map(len, lines)) <= 80 and not any("…" in line for line in lines)


def test_a_table_has_a_dozen_rows_the_best_the_chosen_one_and_the_baseline() -> None:
    levels = {f"System {number:02}": np.full((300, len(NAMES)), number / 100) for number in range(10, 40)}
    metrics = metrics_of({**levels, BASELINE: np.full((300, len(NAMES)), 0.01)}, chosen="System 10")
    shown = list(rows(metrics))
    assert shown == ["System 10", *(f"System {number}" for number in range(30, 40)), BASELINE] and len(shown) == MOST
    assert "19 worse systems are in the report" in "\n".join(lines_of(metrics))


def test_brackets_in_a_name_are_no_markup() -> None:
    # The first stage of a re-ranking is named as its file.
    values = systems()
    metrics = metrics_of({**values, "run [v2]": values[BASELINE], "of [/b]": values["BM25"] * 0.9}, chosen="run [v2]")
    metrics["baseline"] = "of [/b]"
    assert {"run [v2] +1", "of [/b]"} <= rows(metrics).keys()
    for lines in (lines_of(metrics), lines_of(metrics, results_table)):
        assert "* differs from of [/b]: " in "\n".join(lines) and any("run [v2]" in line for line in lines)


def test_a_table_of_strata_has_the_share_of_worse_queries() -> None:
    metrics = metrics_of(systems())
    metrics["headline_split"] = "dev"
    header, _, *lines = lines_of(metrics, strata_table)
    assert header.split() == ["MRR@10,", "dev", "warm", "(200)", "worse", "cold", "(150)", "worse"]
    assert lines[0].split()[-2:] == ["100.0", "%"] and len(lines[1].split()) == 4, (
        "the baseline is no worse than itself"
    )
    assert lines[-1].startswith("worse: share of the queries below Dual encoder")
