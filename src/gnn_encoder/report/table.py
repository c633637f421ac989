"""The result table on a terminal."""

from collections.abc import Iterable, Iterator
from typing import Any

from rich import box
from rich.table import Table

from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.results import in_table
from gnn_encoder.evaluation.significance import SIGNIFICANT, TESTS


def results_table(metrics: dict[str, Any]) -> Table:
    """Returns the table systems × measures, with a block per split (number of queries in brackets), from metrics.

    The best value of a column is bold; `*` marks a significant difference from the baseline. The row below a dense
    system is the system's fusion with BM25. The table fits into 80 columns.
    """
    baseline, test_name = metrics["baseline"], TESTS[metrics["test"]].removesuffix(" test")
    caption = f"* differs from {baseline}: p < {SIGNIFICANT}, {test_name}, Holm-corrected"
    if metrics["fusions"]:
        lexical = next(iter(metrics["fusions"].values()))["lexical"]
        tuned = any(facts.get("tuned_on") for facts in metrics["fusions"].values())
        weight = "weight chosen on dev" if tuned else "weight 0.5"
        caption += f"\n+ {lexical}: weighted sum of the scores above and {lexical}'s; {weight}"
    table = figures_table(metrics["measures"], caption)
    for split, systems in metrics["results"].items():
        table.add_row(f"[dim]{split} ({metrics['queries'][split]:,})[/dim]")
        for system, label in _rows(metrics, split):
            table.add_row(label, *(_cell(metrics, split, system, measure) for measure in systems[system]))
        table.add_section()
    return table


def figures_table(measures: Iterable[str], caption: str) -> Table:
    """Returns an empty table with a column for names and a column per measure, for 80 columns of text."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.caption, table.caption_justify = caption, "left"
    table.add_column("")
    for measure in measures:
        table.add_column(mean_name(measure), justify="right", no_wrap=True)
    return table


def _rows(metrics: dict[str, Any], split: str) -> Iterator[tuple[str, str]]:
    """Yields systems and their labels; a fusion follows its dense system."""
    shown, fusions = in_table(metrics, split), metrics["fusions"]
    for system in shown:
        if system not in fusions:
            yield system, system
            for other in shown:
                if other in fusions and fusions[other]["dense"] == system:
                    yield other, f"  + {fusions[other]['lexical']}"


def _cell(metrics: dict[str, Any], split: str, system: str, measure: str) -> str:
    """Returns one value in rich markup, marked if it is the best or significantly different."""
    shown = in_table(metrics, split)
    value = f"{metrics['results'][split][system][measure]:.3f}"
    text = f"[bold]{value}[/bold]" if is_best(metrics, split, system, measure, shown) else value
    return text + ("*" if is_significant(metrics, split, system, measure) else " ")


def is_best(metrics: dict[str, Any], split: str, system: str, measure: str, among: Iterable[str] | None = None) -> bool:
    """Returns whether no system (of `among`) has a higher value."""
    systems = metrics["results"][split]
    return bool(systems[system][measure] >= max(systems[other][measure] for other in among or systems))


def is_significant(metrics: dict[str, Any], split: str, system: str, measure: str) -> bool:
    """Returns whether the system differs significantly from the baseline, corrected for the number of systems."""
    p_value = metrics["p_holm"][split].get(system, {}).get(measure)
    return p_value is not None and p_value < SIGNIFICANT
