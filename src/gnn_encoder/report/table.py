"""The result table on a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.evaluation.results import in_table, of_split
from gnn_encoder.evaluation.significance import SIGNIFICANT, TESTS
from gnn_encoder.evaluation.strata import MEANING
from gnn_encoder.settings.measures import COLD, WARM

WIDTH = 80
"""Columns of text."""
Row = tuple[str, Mapping[str, str]]
"""A row's label, and its cell for each measure."""


def results_table(metrics: dict[str, Any], more: Mapping[str, Sequence[Row]] | None = None) -> Group:
    """Returns the table systems × measures, with a block per split (number of queries in brackets), from metrics.

    The best value of a column is bold; `*` marks a significant difference from the baseline. The row below a dense
    system is the system's fusion with BM25. Measures that do not fit beside others into 80 columns have a table below.

    Remarks on the data follow, if there are any.

    Args:
        more: title → rows of a further block.
    """
    baseline, test_name = metrics["baseline"], TESTS[metrics["test"]].removesuffix(" test")
    caption = f"* differs from {baseline}: p < {SIGNIFICANT}, {test_name}, Holm-corrected"
    if metrics["fusions"]:
        lexical = next(iter(metrics["fusions"].values()))["lexical"]
        tuned = any(facts.get("tuned_on") for facts in metrics["fusions"].values())
        weight = "weight chosen on dev" if tuned else "weight 0.5"
        caption += f"\n+ {lexical}: weighted sum of the scores above and {lexical}'s; {weight}"
    blocks: dict[str, Sequence[Row]] = {}
    for split, systems in metrics["results"].items():
        title = of_split(metrics, split).replace(split, f"{split} ({metrics['queries'][split]:,})", 1)
        blocks[title] = [
            (label, {measure: _cell(metrics, split, system, measure) for measure in systems[system]})
            for system, label in _rows(metrics, split)
        ]
    for split, systems in metrics.get("traffic", {"results": {}})["results"].items():
        blocks[f"{split}, traffic"] = [
            (label, {measure: f"{value:.3f} " for measure, value in systems[system].items()})
            for system, label in _rows(metrics, split)
        ]
    blocks |= more or {}
    parts = _fitting(metrics["measures"], max(len(label) for rows in blocks.values() for label, _ in rows))
    tables = [figures_table(part, caption if part is parts[-1] else "") for part in parts]
    for table, part in zip(tables, parts, strict=True):
        for title, rows in blocks.items():
            table.add_row(f"[dim]{title}[/dim]")
            for label, cells in rows:
                table.add_row(label, *(cells[measure] for measure in part))
            table.add_section()
    return Group(*tables, *(Text(remark) for remark in metrics.get("remarks", ())))


def _fitting(measures: Sequence[str], label: int) -> list[list[str]]:
    """Returns the measures in parts that fit beside labels of a length; a part has at least one measure."""
    parts: list[list[str]] = []
    room = 0
    for measure in measures:
        width = 1 + max(len(mean_name(measure)), len("0.000*"))
        if not parts or room < width:
            parts.append([])
            room = WIDTH - label
        parts[-1].append(measure)
        room -= width
    return parts


def run_tables(metrics: dict[str, Any]) -> Group:
    """Returns `results_table` and the table of strata of the headline split."""
    split = metrics["headline_split"]
    return Group(
        results_table(metrics), "", strata_table(metrics, split, metrics["baseline"], dict(_rows(metrics, split)))
    )


def strata_table(metrics: dict[str, Any], split: str, baseline: str, systems: Mapping[str, str]) -> Table | str:
    """Returns the first measure of all systems in the warm and in the cold stratum, or a line if one has no query.

    Next to each mean: the share of queries with a worse value than the baseline's.

    Args:
        systems: name → label of a row.
    """
    measure, strata = metrics["measures"][0], metrics["strata"]
    there = {
        name: stratum for name in (WARM, COLD) if split in (stratum := strata.get(name, {"queries": {}}))["queries"]
    }
    if len(there) < 2:
        (name,) = there
        which = "generated " if split in metrics.get("written", ()) else ""
        return f"all {there[name]['queries'][split]:,} {which}{split} queries are {name}: {MEANING[name]}"
    caption = f"worse: share of the queries below {baseline}"
    table = figures_table((), caption)
    table.columns[0].header = f"{mean_name(measure)}, {of_split(metrics, split)}"
    for name, stratum in there.items():
        table.add_column(f"{name} ({stratum['queries'][split]:,})", justify="right", no_wrap=True)
        table.add_column("worse", justify="right", no_wrap=True)
    for system, label in systems.items():
        cells = []
        for stratum in there.values():
            mark = "*" if is_significant(stratum, split, system, measure) else " "
            worse = stratum["worse"][split].get(system, {}).get(measure)
            value = stratum["results"][split][system][measure]
            cells += [f"{value:.3f}{mark}", "" if worse is None else f"{100 * worse:.1f} %"]
        table.add_row(label, *cells)
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
