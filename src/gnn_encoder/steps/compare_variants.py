"""Compares all variants of an ablation in one table, with plots like the paper's (Table 3, Fig. 3 and 4)."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from gnn_encoder.artifacts import Draft, Figures, Report
from gnn_encoder.artifacts.history import Record
from gnn_encoder.engines.step import Metrics, step
from gnn_encoder.evaluation.measures import NAMES, mean_name
from gnn_encoder.evaluation.results import of_split
from gnn_encoder.report.ablation import LEAST, SWEEPS, Variant, compared, compared_strata, gathered, sweep
from gnn_encoder.report.charts import sweep_chart
from gnn_encoder.report.page import Chart, render_ablation
from gnn_encoder.settings.graph import CompareVariants
from gnn_encoder.settings.studies import BEFORE, FULL
from gnn_encoder.tracking.context import Context


@step(report="report")
def compare_variants(context: Context, settings: CompareVariants, figures: list[Path], report: Draft) -> Metrics:
    """Collects the measures, tests the differences, and writes table, plots and page."""
    read = [Figures.read(path) for path in figures]
    variants = gathered(read)
    statistics = compared(variants, settings)
    results = statistics["results"]
    shown = "test" if "test" in results else "dev"
    selected = context.history.get("select_queries", Record()).metrics
    metrics: dict[str, Any] = {
        "baseline": FULL,
        "headline_split": shown,
        "written": [split for split in results if selected.get(f"written_{split}")],
        "seeds": {name: len(variant.values[shown]) for name, variant in variants.items()},
        "changes": {name: changes(variants[FULL], variant) for name, variant in variants.items()},
        **statistics,
        "strata": compared_strata(variants, settings),
        **settings.model_dump(),
    }
    drawn = [
        Chart(
            sweep_chart(results[shown], statistics["deviations"][shown], points, axis, measure, BEFORE),
            f"{mean_name(measure)} on {shown} along {axis}; bars are standard deviations over seeds; dashed: {BEFORE}",
        )
        for setting, (axis, _) in SWEEPS.items()
        if len(points := sweep(variants, setting)) >= LEAST
        for measure in ("RR@10", "R@20")
    ]
    full, before = (results[shown][name][NAMES[0]] for name in (FULL, BEFORE))
    headline = f"{len(variants)} variants: {of_split(metrics, shown)} {mean_name(NAMES[0])} {full:.3f} in full, "
    headline += f"{before:.3f} of the dual encoder"
    page = render_ablation(metrics, headline=headline, drawn=drawn, settings=variants[FULL].settings)
    tables = [
        trial.per_query.append_column("variant", pa.array([trial.manifest.settings["variant"]] * len(trial.per_query)))
        .append_column("seed", pa.array([trial.manifest.settings["seed"]] * len(trial.per_query)))
        for trial in read
    ]  # fmt: skip
    Report.write(
        report,
        metrics=metrics,
        per_query=pa.concat_tables(tables),
        plots={chart.caption.partition(";")[0]: chart.spec for chart in drawn},
        page=page,
    )
    context.log.artifact(report.path, "report")
    figures_of_all = {
        f"{split}/{name}/{kind}{measure}": figure
        for kind, of in {"": metrics, **{f"{name}/": of for name, of in metrics["strata"].items()}}.items()
        for split, of_variants in of["results"].items()
        for name, figures_of in of_variants.items()
        for measure, figure in figures_of.items()
    }
    return {"variants": len(variants), **figures_of_all, "headline": headline}


def changes(full: Variant, variant: Variant) -> dict[str, Any]:
    """Returns the settings in which a variant differs from the full model."""
    settings, other = variant.settings.model_dump(), full.settings.model_dump()
    known = ("variant", "seed", "labels")
    return {name: value for name, value in settings.items() if value != other[name] and name not in known}
