"""The table of an ablation against plain loops; its curves."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from table_cells import printed

from gnn_encoder.artifacts import Figures, Manifest
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.significance import paired_randomization
from gnn_encoder.report.ablation import (
    Variant,
    ablation_table,
    ablation_tables,
    compared,
    compared_strata,
    gathered,
    sweep,
)
from gnn_encoder.settings.graph import CompareVariants, TryVariant
from gnn_encoder.settings.studies import FULL

N = 30
WARM_QUERIES = [row % 3 == 0 for row in range(N)]
SETTINGS = CompareVariants(permutations=500, resamples=200, seed=3)


def figures(variant: str, seed: int, gain: float = 0.0, first: int = 0, **settings: Any) -> Figures:
    generator = np.random.default_rng(seed)
    values = np.clip(generator.random((N, len(NAMES))) + gain, 0, 1)
    split = ["dev"] * 10 + ["test"] * (N - 10)
    columns = {"split": split, "query": pa.array(range(first, first + N), pa.int32()), "warm": WARM_QUERIES}
    table = pa.table({**columns, **dict(zip(NAMES, values.T, strict=True))})
    chosen = TryVariant(variant=variant, seed=seed, **settings).model_dump(mode="json")
    artifact = Figures(Path(), Manifest("figures", 1, settings=chosen))
    vars(artifact)["per_query"] = table
    return artifact


def test_means_deviations_and_p_values() -> None:
    all_ = [figures(FULL, 0), figures(FULL, 1), figures("worse", 0, -0.2), figures("worse", 1, -0.2), figures("one", 5)]
    variants = gathered(all_)
    facts = compared(variants, SETTINGS)
    deviations, p_values, p_holm = (facts[kind]["test"] for kind in ("deviations", "p_values", "p_holm"))
    for name, of in {FULL: all_[:2], "worse": all_[2:4], "one": all_[4:]}.items():
        for measure in NAMES:
            means = [np.mean(trial.per_query.column(measure).to_pylist()[10:]) for trial in of]
            assert facts["results"]["test"][name][measure] == pytest.approx(np.mean(means))
            spread = pytest.approx(np.std(means, ddof=1)) if len(of) > 1 else None
            assert deviations.get(name, {}).get(measure) == spread
            assert (name in p_values) == (name in p_holm) == (name != FULL)
            if name != FULL:
                p = {other: p_values[other][measure] for other in ("worse", "one")}
                smallest = min(p.values())
                expected = min(2 * smallest, 1) if p[name] == smallest else min(max(p[name], 2 * smallest), 1)
                assert p_holm[name][measure] == pytest.approx(expected)
            if name == "worse":
                a, b = (
                    np.mean([trial.per_query.column(measure).to_pylist()[10:] for trial in side], axis=0)
                    for side in (all_[2:4], all_[:2])
                )
                assert abs(p_values[name][measure] - paired_randomization((a - b)[:, None], 500, 3)[0]) < 0.03
    assert p_values["worse"]["RR@10"] < 0.05 < p_values["one"]["RR@10"]
    metrics = {"baseline": FULL, **facts}
    assert ablation_table(metrics).row_count == 8


def test_warm_and_cold_queries_are_compared_alone() -> None:
    variants = gathered([figures(FULL, 0), figures(FULL, 1), figures("worse", 2, -0.4)])
    strata = compared_strata(variants, SETTINGS)
    table = figures("worse", 2, -0.4).per_query
    for name, inside in (("warm", WARM_QUERIES), ("cold", [not warm for warm in WARM_QUERIES])):
        facts = strata[name]
        for split, rows in (("dev", range(10)), ("test", range(10, N))):
            chosen = [row for row in rows if inside[row]]
            assert facts["queries"][split] == len(chosen)
            values = [table.column("AP").to_pylist()[row] for row in chosen]
            assert facts["results"][split]["worse"]["AP"] == pytest.approx(np.mean(values))
            low, high = facts["intervals"][split]["worse"]["AP"]
            assert low < np.mean(values) < high
            full = np.mean([figures(FULL, seed).per_query.column("AP").to_pylist() for seed in (0, 1)], axis=0)[chosen]
            assert facts["worse"][split]["worse"]["AP"] == pytest.approx(np.mean(values < full))
    everything = compared(variants, SETTINGS)
    metrics = {"baseline": FULL, "headline_split": "test", "strata": strata, **everything}
    shown = printed(ablation_tables(metrics))
    warm, cold = strata["warm"]["results"]["test"]["worse"], strata["cold"]["results"]["test"]["worse"]
    assert "warm (6)" in shown and "cold (14)" in shown
    assert f"{warm['RR@10']:.3f}" in shown and f"{cold['RR@10']:.3f}" in shown
    for name, variant in variants.items():
        variants[name] = Variant(
            variant.settings, variant.values, {split: rows | True for split, rows in variant.warm.items()}
        )
    assert list(compared_strata(variants, SETTINGS)) == ["warm"]


def test_figures_of_other_queries_are_refused() -> None:
    with pytest.raises(UserError, match="different queries"):
        gathered([figures(FULL, 0), figures("other", 0, first=1)])


def test_a_curve_holds_what_differs_along_it_alone() -> None:
    variants = gathered([
        figures(FULL, 0, neighbors=10), figures("k 5", 0, neighbors=5), figures("k 20", 0, neighbors=20),
        figures("k 5, one layer", 0, neighbors=5, layers=1),
        figures("b 1", 0, neighbors=10, mask="sample", mask_fraction=0.01),
        figures("b 2", 0, neighbors=10, mask="sample", mask_fraction=0.5),
    ])  # fmt: skip
    assert sweep(variants, "neighbors") == [(5, "k 5"), (10, FULL), (20, "k 20")]
    assert sweep(variants, "mask_fraction") == [(0.01, "b 1"), (0.5, "b 2")]
    assert sweep(variants, "gate_alpha") == [(0.5, FULL)]
