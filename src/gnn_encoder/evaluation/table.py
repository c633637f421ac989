"""The result table on a terminal."""

from typing import Any

from rich import box
from rich.table import Table

from gnn_encoder.evaluation.measures import MEAN_NAMES
from gnn_encoder.evaluation.significance import SIGNIFICANT


def results_table(metrics: dict[str, Any]) -> Table:
    """Systems × measures, a block for each split (its queries in brackets), from a report's metrics.

    The best figure of a column is bold; `*` marks a difference from the baseline that is
    significant. 80 columns suffice.
    """
    baseline = metrics["baseline"]
    caption = f"* differs from {baseline}: p < {SIGNIFICANT}, paired randomization test, uncorrected"
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption=caption,
        caption_justify="left",
    )
    table.add_column("", no_wrap=True)
    for measure in metrics["measures"]:
        table.add_column(MEAN_NAMES.get(measure, measure), justify="right", no_wrap=True)
    for split, systems in metrics["results"].items():
        table.add_row(f"[dim]{split} ({metrics['queries'][split]:,})[/dim]")
        for system, values in systems.items():
            cells = [cell(metrics, split, system, measure) for measure in values]
            table.add_row(system, *cells)
        table.add_section()
    return table


def cell(metrics: dict[str, Any], split: str, system: str, measure: str) -> str:
    """One figure, in rich markup, marked if it is the best or significantly different."""
    value = f"{metrics['results'][split][system][measure]:.3f}"
    text = f"[bold]{value}[/bold]" if is_best(metrics, split, system, measure) else value
    return text + ("*" if is_significant(metrics, split, system, measure) else " ")


def is_best(metrics: dict[str, Any], split: str, system: str, measure: str) -> bool:
    """Whether no system has a higher figure."""
    systems = metrics["results"][split]
    return bool(systems[system][measure] >= max(values[measure] for values in systems.values()))


def is_significant(metrics: dict[str, Any], split: str, system: str, measure: str) -> bool:
    """Whether the system differs significantly from the baseline."""
    p_value = metrics["p_values"][split].get(system, {}).get(measure)
    return p_value is not None and p_value < SIGNIFICANT
