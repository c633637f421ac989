"""The report of an ablation: figures of every variant on one page, curves where there are enough points."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from gnn_encoder.artifacts import Figures, Report, drafting
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.report.ablation import ablation_tables
from gnn_encoder.settings.graph import CompareVariants, TryVariant
from gnn_encoder.settings.studies import BEFORE, FULL
from gnn_encoder.steps.compare_variants import compare_variants

N = 20


def tried(
    folder: Path, variant: str, seed: int, gain: float, history: dict[str, Record] | None = None, **settings: object
) -> Path:
    """As `try_variant` leaves it."""
    path = folder / f"{variant}-{seed}"
    values = np.clip(np.random.default_rng(seed).random((N, len(NAMES))) + gain, 0, 1)
    columns = {"split": ["test"] * N, "query": pa.array(range(N), pa.int32()), "warm": [row < 12 for row in range(N)]}
    with drafting(path, "figures") as draft:
        Figures.write(draft, pa.table({**columns, **dict(zip(NAMES, values.T, strict=True))}))
        draft.manifest.settings = TryVariant.model_validate(
            {"variant": variant, "seed": seed, "neighbors": 10, **settings}
        ).model_dump(mode="json")
        write_history(draft.path, history or {})
    return path


def test_page_curves_and_figures(tmp_path: Path) -> None:
    trials = [
        tried(tmp_path, FULL, 0, 0.0), tried(tmp_path, FULL, 1, 0.0),
        tried(tmp_path, BEFORE, 0, -0.3, mode="untrained"),
        tried(tmp_path, "k = 5", 0, 0.0, neighbors=5), tried(tmp_path, "k = 20", 0, 0.1, neighbors=20),
        tried(tmp_path, "<one> layer", 0, -0.1, layers=1),
    ]  # fmt: skip
    compare_variants(CompareVariants(permutations=200), figures=trials, report=tmp_path / "report")
    report = Report.read(tmp_path / "report")
    curves = [json.loads(path.read_text()) for path in sorted((report.path / "plots").iterdir())]
    assert [spec["layer"][0]["encoding"]["y"]["title"] for spec in curves] == ["MRR@10", "R@20"]
    assert [row["at"] for row in curves[0]["data"]["values"]] == [5, 10, 20]
    page = report.page.read_text(encoding="utf-8")
    assert "&lt;one&gt; layer" in page and "<one>" not in page and page.count('class="chart"') == 2
    metrics = report.metrics
    assert metrics["changes"]["k = 5"] == {"neighbors": 5} and metrics["changes"][FULL] == {}
    assert metrics["seeds"][FULL] == 2 and metrics["headline_split"] == "test"
    assert metrics["p_holm"]["test"][BEFORE]["RR@10"] < 0.05
    for name, means in metrics["results"]["test"].items():
        assert f"{means['RR@10']:.3f}" in page, name
    rows = report.per_query.to_pylist()
    assert len(rows) == 6 * N and {row["variant"] for row in rows} == set(metrics["results"]["test"])
    assert report.manifest.metrics[f"test/{FULL}/RR@10"] == pytest.approx(metrics["results"]["test"][FULL]["RR@10"])
    assert report.manifest.inputs.keys() == {f"figures.{i}" for i in range(6)}
    for stratum, queries in (("warm", 12), ("cold", 8)):
        of = metrics["strata"][stratum]
        assert of["queries"] == {"test": queries} and of["p_holm"]["test"][BEFORE]["RR@10"] < 0.2
        value = of["results"]["test"]["k = 20"]["RR@10"]
        assert report.manifest.metrics[f"test/k = 20/{stratum}/RR@10"] == value and f"{value:.3f}" in page
        assert f"test: means over {queries} {MEANING[stratum]}" in " ".join(page.split())
    json.dumps(metrics)


def test_figures_on_generated_queries_are_said_to_be(tmp_path: Path) -> None:
    history = {"select_queries": Record(metrics={"written_dev": 0, "written_test": N})}
    trials = [tried(tmp_path, name, 0, gain, history) for name, gain in ((FULL, 0.0), (BEFORE, -0.3))]
    compare_variants(CompareVariants(permutations=200), figures=trials, report=tmp_path / "report")
    report = Report.read(tmp_path / "report")
    page = " ".join(report.page.read_text(encoding="utf-8").split())
    assert f"test, on generated queries: means over {N} labelled queries" in page
    assert "test, on generated queries MRR@10" in report.manifest.metrics["headline"]
    screen = Console(width=100, record=True, file=StringIO())
    screen.print(ablation_tables(report.metrics))
    assert f"test, on generated queries ({N})" in screen.export_text()
