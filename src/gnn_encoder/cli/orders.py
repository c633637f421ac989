"""The command `orders`: whether two sets of queries, such as generated and people's, order the systems alike."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    import numpy as np

SPLITS = ("dev", "test")


def orders(
    first: Annotated[
        str, typer.Argument(metavar="FOLDER[:SPLIT]", help="Root or report of a run; its dev or test queries [test].")
    ],
    second: Annotated[
        str, typer.Argument(metavar="FOLDER[:SPLIT]", help="The same; the order to believe, of people's queries.")
    ],
    measure: Annotated[str, typer.Option(help="A measure of both reports; by default the second's first.")] = "",
) -> None:
    """Compare the orders of systems by two reports, or by two splits of one: Kendall's τ of the systems in both."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from gnn_encoder.evaluation import orders as comparison
    from gnn_encoder.evaluation.measures import mean_name

    title, believed, measure = _figures(second, measure)
    other, values, _ = _figures(first, measure)
    result = comparison.orders(values, believed)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for header in (mean_name(measure), other, title):
        table.add_column(header, justify="left" if header == mean_name(measure) else "right")
    for name, means in result.systems.items():
        table.add_row(escape(name), *(f"{mean:.3f}" for mean in means))
    lines = [f"as {name} on every query: {', '.join(others)}" for name, others in result.alike.items()]
    lines += [
        f"Kendall's τ of {len(result.systems)} systems: {_shown(result.tau)}",
        f"{result.distinct} pairs of systems differ on {title} (p < 0.05, Holm-corrected): {result.same} have the same "
        f"order on {other}, {result.reversed} the reverse (τ {_shown(result.tau_distinct)})",
        f"of {result.proved} pairs that differ on both, {result.proved_same} have the same order",
        f"the system that is best on {other} is {result.lost:.3f} below the best on {title}",
    ]
    screen = Console()
    screen.print(table)
    screen.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _shown(tau: float | None) -> str:
    return "none" if tau is None else f"{tau:.2f}"


def _figures(where: str, measure: str) -> tuple[str, "dict[str, np.ndarray]", str]:
    """Returns the title of a report's split, {system: values of a measure}, and the measure; "": the first."""
    from gnn_encoder.artifacts import Report
    from gnn_encoder.evaluation.results import of_split

    folder, colon, split = where.rpartition(":")
    if not colon or split not in SPLITS:
        folder, split = where, "test"
    path = Path(folder)
    report = Report.read(latest if (latest := path / "latest" / "report").exists() else path)
    metrics = report.metrics
    if split not in metrics["results"]:
        raise UserError(f"{folder} has no figures of {split} queries: write FOLDER:dev or FOLDER:test")
    systems, measures = list(metrics["results"][split]), metrics["measures"]
    measure = measure or measures[0]
    if measure not in measures:
        raise UserError(f"{folder} has no {measure}: choose one of {', '.join(measures)}")
    values = {system: report.figures(split, system, measure) for system in systems}
    counted = f"{metrics['queries'][split]:,} queries"
    return f"{of_split(metrics, split)} ({counted})", values, measure
