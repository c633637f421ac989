"""The commands for registered models: `models list | show | promote | rollback`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, Root
from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.promotion.registry import Registry

models = typer.Typer(
    help="List registered models and choose the champion.", no_args_is_help=True, rich_markup_mode="markdown"
)

Name = Annotated[str, typer.Option("--model-name", help="Name of the registered model (`promote.model_name`).")]
Which = Annotated[str, typer.Argument(metavar="VERSION|ALIAS", help="Number of a version, or champion, or previous.")]


@models.callback()
def _soon(context: typer.Context) -> None:
    from gnn_encoder.tracking.pipeline_run import impatient

    context.with_resource(impatient())


@models.command(name="list")
def list_(root: Root = DEFAULT_ROOT, name: Name = "gnn-encoder") -> None:
    """List all versions, newest first, with aliases and the gate's decisions."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from gnn_encoder.promotion.registry import DECISION, REASON

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for header in ("version", "alias", "registered", "gate", "because"):
        table.add_column(header, no_wrap=header != "because", overflow="fold")
    for version in _registry(root, name).versions():
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(version.created))
        reason = version.tags.get(REASON, "").replace("[", r"\[")
        table.add_row(version.number, " ".join(version.aliases), day, version.tags.get(DECISION, ""), reason)
    if not table.rows:
        raise UserError(f"no version of the model {name!r} is registered: gnn-encoder run registers one")
    Console().print(table)


@models.command()
def show(version: Which, root: Root = DEFAULT_ROOT, name: Name = "gnn-encoder") -> None:
    """Show a version's tags (bundle, digests, measures, decision) and its model card."""
    registered = _registry(root, name).find(version)
    tags = {
        "version": registered.number,
        "alias": " ".join(registered.aliases),
        **dict(sorted(registered.tags.items())),
    }
    for tag, value in tags.items():
        typer.echo(f"{tag:<24} {value}")
    typer.echo(f"\n{registered.card}")


@models.command()
def promote(version: Which, root: Root = DEFAULT_ROOT, name: Name = "gnn-encoder") -> None:
    """Make a version the champion, regardless of the gate's decision. The former champion becomes `previous`."""
    registry = _registry(root, name)
    number = registry.find(version).number
    registry.promote(number)
    typer.echo(f"version {number} of {name} is the champion")


@models.command()
def rollback(root: Root = DEFAULT_ROOT, name: Name = "gnn-encoder") -> None:
    """Exchange `champion` and `previous`."""
    champion, former = _registry(root, name).roll_back()
    typer.echo(f"version {champion} of {name} is the champion again, version {former} is previous")


def _registry(root: Path, name: str) -> "Registry":
    from gnn_encoder.promotion.registry import open_registry
    from gnn_encoder.tracking.pipeline_run import existing_store

    return open_registry(existing_store(root), name)
