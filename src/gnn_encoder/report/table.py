"""The result table on a terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.markup import escape
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
MOST = 12
"""Most systems in the table of a run."""
MOST_MEASURES = 4
"""Most measures in the table of a run's description."""
FEWEST = 50
"""Fewest warm and cold queries whose figures the table of a run shows."""


def results_table(metrics: dict[str, Any], further: Mapping[str, Sequence[Row]] | None = None) -> Group:
    """Returns the table systems × measures, with a block per split (number of queries in brackets), from metrics.

    The best value of a column is bold; `*` marks a significant difference from the baseline. The row below a dense
    system is the system's fusion with BM25. Measures that do not fit beside others into 80 columns have a table below.

    Remarks on the data follow, if there are any.

    Args:
        further: title → rows of a further block.
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
    blocks |= further or {}
    parts = _fitting(metrics["measures"], max(len(label) for rows in blocks.values() for label, _ in rows))
    tables = [figures_table(part, caption if part is parts[-1] else "") for part in parts]
    for table, part in zip(tables, parts, strict=True):
        for title, rows in blocks.items():
            table.add_row(f"[dim]{title}[/dim]")
            for label, cells in rows:
                table.add_row(escape(label), *(cells[measure] for measure in part))
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


def distinct(metrics: Mapping[str, Any], among: Iterable[str] | None = None) -> dict[str, list[str]]:
    """Returns the systems of the headline split, each with the others that have the same figures in every split.

    Of equal systems the recommended one (without any, the candidate), the baseline or the first stands for all.

    Args:
        among: systems; None: those of the table.
    """
    first = {metrics["baseline"]: 1, recommended(metrics) or metrics["candidate"]: 0}
    groups: dict[str, list[str]] = {}
    for system in in_table(dict(metrics), metrics["headline_split"]) if among is None else among:
        figures = [systems.get(system) for systems in metrics["results"].values()]
        groups.setdefault(str(figures), []).append(system)
    ordered = (sorted(group, key=lambda system: first.get(system, 2)) for group in groups.values())
    return {system: equal for system, *equal in ordered}


def named_figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns {`MRR@10 on test: BM25`: value} of `columns`."""
    systems, *measures = columns(metrics).items()
    return {
        f"{name} on {metrics['headline_split']}: {system}": mean
        for name, means in measures
        for system, mean in zip(systems[1], means, strict=True)
    }


def columns(metrics: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns the systems with different figures, the best on the headline split first, and their means there."""
    means, first = metrics["results"][metrics["headline_split"]], metrics["measures"][0]
    systems = sorted(distinct(metrics, means), key=lambda system: -means[system][first])
    return {"system": systems} | {
        mean_name(measure): [means[system][measure] for system in systems] for measure in metrics["measures"]
    }


def markdown(metrics: Mapping[str, Any]) -> str:
    """Returns the first rows and measures of `columns` as a table in Markdown.

    MLflow's page draws no space between columns, so the cells of measures begin with one.
    """
    systems, *measures = [*columns(metrics).items()][: 1 + MOST_MEASURES]
    shown = [[f"&emsp;{name}", *(f"&emsp;{mean:.3f}" for mean in means[:MOST])] for name, means in measures]
    names = ["system", *(name.replace("|", "\\|") for name in systems[1][:MOST])]
    head, *rows = zip(names, *shown, strict=True)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *rows))


def run_table(metrics: dict[str, Any]) -> Group:
    """Returns the table of a run: the best systems on the headline split, `MOST` at most, equal ones in one row.

    Its columns: the first measure there, on dev, and on warm and cold queries if both are enough; then the other
    measures that fit. Remarks on the data follow. The report has all systems, splits and measures.
    """
    split, results, baseline = metrics["headline_split"], metrics["results"], metrics["baseline"]
    (first, *others), chosen, equal = metrics["measures"], recommended(metrics), distinct(metrics)
    best = sorted(equal, key=lambda system: (system not in (chosen, baseline), -results[split][system][first]))[:MOST]
    shown = [system for system in equal if system in best]
    count = {system: f" +{len(same)}" for system, same in equal.items() if same}
    labels = [f"{'▸' if system == chosen else ' '} {system}{count.get(system, '')}" for system in shown]

    def column(part: dict[str, Any], of: str, measure: str) -> list[str]:
        return [_cell(part, of, system, measure) for system in shown]

    name = mean_name(first)
    columns = {f"{name}\n{split} {metrics['queries'][split]:,}": column(metrics, split, first)}
    if split != "dev" and {*shown} <= results.get("dev", {}).keys():
        columns[f"{name}\ndev {metrics['queries']['dev']:,}"] = column(metrics, "dev", first)
    strata = {stratum: metrics["strata"].get(stratum, {"queries": {}}) for stratum in (WARM, COLD)}
    counts = {stratum: part["queries"].get(split, 0) for stratum, part in strata.items()}
    if min(counts.values()) >= FEWEST:
        columns |= {f"{s}\n{counts[s]:,}": column({**metrics, **part}, split, first) for s, part in strata.items()}
    columns |= {mean_name(measure): column(metrics, split, measure) for measure in others}
    notes = _notes(metrics, len(equal) - len(shown), chosen, {system: equal[system] for system in shown})
    table = figures_table((), "\n".join(notes))
    table.padding = 0
    table.columns[0].no_wrap, room = True, WIDTH - max(map(len, labels)) - 1
    taken: list[list[str]] = []
    for header, cells in columns.items():
        room -= 1 + max(len("0.000*"), *map(len, header.split("\n")))
        if room >= 0 or not taken:
            table.add_column(header, justify="right", no_wrap=True)
            taken.append(cells)
    for label, *cells in zip(labels, *taken, strict=True):
        table.add_row(escape(label), *cells, style="bold" if label.startswith("▸") else "")
    remarks = [*metrics.get("remarks", ())]
    if split in metrics.get("written", ()):
        remarks.append(f"the {split} queries are generated")
    present = [stratum for stratum, queries in counts.items() if queries]
    if len(present) == 1:
        remarks.append(f"all {counts[present[0]]:,} {split} queries are {present[0]}: {MEANING[present[0]]}")
    return Group(table, *map(Text, remarks))


def _notes(metrics: Mapping[str, Any], left_out: int, chosen: str, equal: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yields the lines below the table of a run; `equal`: system of a row → others with its figures."""
    test_name = TESTS[metrics["test"]].removesuffix(" test")
    if chosen:
        yield "▸ recommended"
    if len(metrics["results"][metrics["headline_split"]]) > 1:
        yield f"* differs from {metrics['baseline']}: p < {SIGNIFICANT}, {test_name}, Holm-corrected"
    yield from (
        f"{system} +{len(same)}: the same figures as {'; '.join(same)}" for system, same in equal.items() if same
    )
    if left_out:
        yield f"{left_out} worse systems are in the report"


def recommended(metrics: Mapping[str, Any]) -> str:
    """Returns the recommended system; empty if nothing recommends."""
    return str((metrics.get("recommendation") or {}).get("system", ""))


def strata_table(metrics: dict[str, Any]) -> Table | str:
    """Returns the first measure of all systems on warm and on cold queries of the headline split.

    Next to each mean: the share of queries with a worse value than the baseline's. A line if one has no query.
    """
    split, measure, strata = metrics["headline_split"], metrics["measures"][0], metrics["strata"]
    present = {
        name: stratum for name in (WARM, COLD) if split in (stratum := strata.get(name, {"queries": {}}))["queries"]
    }
    if len(present) < 2:
        (name,) = present
        kind = "generated " if split in metrics.get("written", ()) else ""
        return f"all {present[name]['queries'][split]:,} {kind}{split} queries are {name}: {MEANING[name]}"
    caption, names = f"worse: share of the queries below {metrics['baseline']}", of_split(metrics, split)
    table = figures_table((), caption, f"{mean_name(measure)}, {names}")
    for name, stratum in present.items():
        table.add_column(f"{name} ({stratum['queries'][split]:,})", justify="right", no_wrap=True)
        table.add_column("worse", justify="right", no_wrap=True)
    for system in metrics["results"][split]:
        cells = []
        for stratum in present.values():
            mark = "*" if is_significant(stratum, split, system, measure) else " "
            worse = stratum["worse"][split].get(system, {}).get(measure)
            value = stratum["results"][split][system][measure]
            cells += [f"{value:.3f}{mark}", "" if worse is None else f"{100 * worse:.1f} %"]
        table.add_row(escape(system), *cells)
    return table


def figures_table(measures: Iterable[str], caption: str = "", names: str = "") -> Table:
    """Returns an empty table with a column for names, under the header `names`, and a column per measure."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.caption, table.caption_justify = escape(caption), "left"
    table.add_column(names)
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
