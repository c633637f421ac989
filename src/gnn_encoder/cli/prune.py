"""The command that frees disk space: `prune`."""

import shlex
from typing import Annotated

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, Root

KEEP = 3
"""Newest runs whose outputs are kept by default, so that an interrupted run of other settings can continue."""


def prune(
    root: Root = DEFAULT_ROOT,
    keep: Annotated[int, typer.Option(min=0, help="Newest runs whose outputs are kept, finished or not.")] = KEEP,
    delete: Annotated[bool, typer.Option("--delete", help="Delete what the table shows.")] = False,
) -> None:
    """Show what no kept run needs, and how much disk it takes; with --delete, delete it.

    Kept are the newest runs, what links such as latest/ lead to, and the bundles of all registered versions. The next
    run makes again what it misses.
    """
    from rich.console import Console

    from gnn_encoder.engines import lifeline
    from gnn_encoder.engines.prune import KINDS, check_root, remove, unneeded
    from gnn_encoder.machine.disk import freed
    from gnn_encoder.report.table import figures_table

    check_root(root)
    with lifeline.take(root):
        removable = unneeded(root, keep)
        sizes = freed([item.path for item in removable])
        table = figures_table(("number", "GB"), names="not needed")
        for kind in KINDS:
            if sizes_of_kind := [size for item, size in zip(removable, sizes, strict=True) if item.kind == kind]:
                table.add_row(kind, f"{len(sizes_of_kind):,}", f"{sum(sizes_of_kind) / 1e9:,.3f}")
        if not removable:
            typer.echo("nothing to delete: everything is needed")
            return
        table.add_section()
        table.add_row("in all", f"{len(removable):,}", f"{sum(sizes) / 1e9:,.3f}")
        Console().print(table)
        if delete:
            remove(removable)
            typer.echo("deleted")
            return
    chosen = "" if root == DEFAULT_ROOT else f" --root {shlex.quote(str(root))}"
    typer.echo(f"Nothing is deleted yet: gnn-encoder prune{chosen} --keep {keep} --delete")
