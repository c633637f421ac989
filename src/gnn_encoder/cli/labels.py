"""The commands for labels of a finished run: `labels add | remove | undo | list | suggest`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, Root
from gnn_encoder.errors import UserError, printable

if TYPE_CHECKING:
    from gnn_encoder.labels.adding import Outcome
    from gnn_encoder.labels.requests import Wanted

labels = typer.Typer(help="Add labels to a finished run's bundle at once, and see which to add.", no_args_is_help=True)

Named = Annotated[str, typer.Option(help="Bundle of a finished run, such as ROOT/latest/bundle [ROOT/latest/bundle].")]
Query = Annotated[str | None, typer.Argument(help="The query's text.")]
Passage = Annotated[str | None, typer.Argument(help="Id of a passage that is relevant to the query.")]
File = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Several labels: a line is a query, a tab and a passage id, or a JSON object."),
]


@labels.command()
def add(
    query: Query = None, passage: Passage = None, bundle: Named = "", file: File = None, root: Root = DEFAULT_ROOT
) -> None:
    """Add a label: the passage's vector changes at once, as an update with the label in the data would change it.

    The next update, run or retraining of the same data in this root reads the labels, too.
    """
    from gnn_encoder.labels.adding import add_labels

    wanted = _wanted(query, passage, file)
    _show(f"{len(wanted):,} added", add_labels(_bundle(bundle, root), wanted))


@labels.command()
def remove(
    query: Query = None, passage: Passage = None, bundle: Named = "", file: File = None, root: Root = DEFAULT_ROOT
) -> None:
    """Remove labels that `labels add` added."""
    from gnn_encoder.labels.adding import remove_labels

    wanted = _wanted(query, passage, file)
    _show(f"{len(wanted):,} removed", remove_labels(_bundle(bundle, root), wanted))


@labels.command()
def undo(bundle: Named = "", root: Root = DEFAULT_ROOT) -> None:
    """Take the last `labels add` or `labels remove` back; every vector is again what it was."""
    from gnn_encoder.labels.versions import Versions

    path = _bundle(bundle, root)
    with Versions.of(path) as versions:
        versions.undo()
    typer.echo(f"the last change is taken back; {path} is the bundle before it")


@labels.command(name="list")
def list_(bundle: Named = "", root: Root = DEFAULT_ROOT) -> None:
    """List the added labels in force, oldest first: time, query and passage id, with tabs between them."""
    from gnn_encoder.artifacts import Bundle

    added = Bundle.read(_bundle(bundle, root)).added
    for label in added.labels if added else []:
        typer.echo(f"{label.added}\t{printable(label.query)}\t{printable(label.passage_id)}")


def _bundle(named: str, root: Path) -> Path:
    from gnn_encoder.promotion.registry import named_bundle

    return named_bundle(named or str(root / "latest" / "bundle"), root)


def _wanted(query: str | None, passage: str | None, file: Path | None) -> "list[Wanted]":
    from gnn_encoder.labels.requests import Wanted, read_wanted

    if file and query is None:
        return read_wanted(file)
    if file or query is None or passage is None:
        raise UserError("a label is a query and a passage id: give both, or --file alone")
    return [Wanted(query, passage)]


def _show(what: str, outcome: "Outcome") -> None:
    typer.echo(
        f"{what}; {len(outcome.changed):,} passages have a new vector, after {outcome.seconds:.2f} s; "
        f"{len(outcome.labels):,} added labels in force"
    )
