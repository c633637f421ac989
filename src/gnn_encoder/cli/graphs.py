"""Output of `--dry-run` and `--mermaid`: the graph of a run as a table, or as text that draws it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gnn_encoder.errors import printable

if TYPE_CHECKING:
    from gnn_encoder.engines.preview import Expected
    from gnn_encoder.flow.graph import Graph, Node


def show_graph(graph: "Graph", root: Path, drawn: bool, planned: Mapping[str, float] = {}) -> None:
    """Prints what a run of a graph under a root would do, or the graph `drawn`, which depends on no root.

    `planned`: title of a call → seconds, of the calls that a plan knows.
    """
    if drawn:
        from gnn_encoder.flow.mermaid import mermaid

        typer.echo(mermaid(graph))
        return
    from gnn_encoder.engines.preview import preview

    calls = preview(graph, root, planned)
    show_rows([("step", "state", "time", "reads"), *map(_row, calls)])
    typer.echo(f"\n{_total(calls)}")


def show_rows(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(call: "Expected") -> tuple[str, str, str, str]:
    from gnn_encoder.cli.console import duration

    state, time = ("cached", "") if call.is_cached else ("to run", duration(call.seconds) or "–")
    return printable(call.node.title), state, time, _inputs(call.node)


def _inputs(node: "Node") -> str:
    """Returns the names of a call's inputs; of a list, with the number of its artifacts."""
    return ", ".join(
        f"{name} × {len(artifacts)}" if isinstance(artifacts, tuple) else name
        for name, artifacts in node.inputs.items()
    )


def _total(calls: "Sequence[Expected]") -> str:
    from gnn_encoder.cli.console import duration

    waiting = [call for call in calls if not call.is_cached]
    known = [call.seconds for call in waiting if call.seconds is not None]
    if not waiting:
        return f"{len(calls)} steps, all cached"
    unknown = f"not known for {len(waiting) - len(known)}" if len(known) < len(waiting) else ""
    time = f"about {duration(sum(known))} for {len(known)}" if known else ""
    counts = f"{len(calls)} steps: {len(calls) - len(waiting)} cached, at most {len(waiting)} to run"
    return f"{counts}; time: {', '.join(filter(None, (time, unknown)))}"
