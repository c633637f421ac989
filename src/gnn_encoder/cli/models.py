"""The commands on registered models: `models list | show | promote | rollback`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, root_option
from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.promotion.registry import Registry

models = typer.Typer(help="Registered models: look at them, choose the champion.", no_args_is_help=True)

Root = Annotated[Path, root_option("Root whose store is asked, unless $MLFLOW_TRACKING_URI names one.")]
Name = Annotated[str, typer.Option("--model-name", help="Of the registered model (`promote.model_name`).")]
Which = Annotated[str, typer.Argument(metavar="VERSION|ALIAS", help="A version's number, champion or previous.")]


@models.callback()
def _soon(context: typer.Context) -> None:
    from gnn_encoder.tracking.pipeline_run import impatient

    context.with_resource(impatient())


@models.command(name="list")
def list_(root: Root = DEFAULT_ROOT, name: Name = "gnn-encoder") -> None:
    """All versions, the newest first: which serves, and what the gate said of each."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from gnn_encoder.promotion.registry import DECISION, REASON

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for header in ("version", "alias", "registered", "gate", "because"):
        table.add_column(header, no_wrap=header != "because", overflow="fold")
    for version in _registry(root, name).versions():
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(version.created))
        told = (version.tags.get(DECISION, ""), version.tags.get(REASON, "").replace("[", r"\["))
        table.add_row(version.number, " ".join(version.aliases), day, *told)
    if not table.rows:
        raise UserError(f"no version of the model {name!r} is registered: gnn-encoder run registers one")
    Console().print(table)


@models.command()
def show(version: Which, root: Root = DEFAULT_ROOT, name: Name = "gnn-encoder") -> None:
    """A version's tags (bundle, digests, figures, decision) and its card."""
    found = _registry(root, name).find(version)
    typer.echo(f"{'version':<24} {found.number}")
    typer.echo(f"{'alias':<24} {' '.join(found.aliases)}")
    for tag, value in sorted(found.tags.items()):
        typer.echo(f"{tag:<24} {value}")
    typer.echo(f"\n{found.card}")


@models.command()
def promote(version: Which, root: Root = DEFAULT_ROOT, name: Name = "gnn-encoder") -> None:
    """Make a version the champion, whatever the gate said; the former one is `previous` then."""
    registry = _registry(root, name)
    number = registry.find(version).number
    registry.promote(number)
    typer.echo(f"version {number} of {name} is the champion")


@models.command()
def rollback(root: Root = DEFAULT_ROOT, name: Name = "gnn-encoder") -> None:
    """Let `champion` and `previous` change places."""
    champion, former = _registry(root, name).roll_back()
    typer.echo(f"version {champion} of {name} is the champion again, version {former} is previous")


def _registry(root: Path, name: str) -> "Registry":
    from gnn_encoder.promotion.registry import open_registry
    from gnn_encoder.tracking.pipeline_run import existing_store

    return open_registry(existing_store(root), name)
