"""The commands for labels of a finished run: `labels add | remove | undo | list | suggest`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, Root
from gnn_encoder.errors import UserError, printable

if TYPE_CHECKING:
    from gnn_encoder.labels.adding import Outcome
    from gnn_encoder.labels.requests import Wanted
    from gnn_encoder.labels.suggestions import PassageSuggestion, QuerySuggestion

labels = typer.Typer(
    help="Add labels to a finished run's bundle at once, and see which to add.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

Named = Annotated[
    str,
    typer.Option(
        help="Bundle of a finished run [ROOT/latest/bundle, or ROOT/latest/bundles/gnn_encoder if the run recommends a "
        "plain dual encoder]."
    ),
]
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
    """Add a label: the bundle changes at once, as an update with the label in the data would change it.

    Bundles of the GNN-encoder, query sum, query memory and query clusters take labels. The next update, run or
    retraining of the same data in this root reads the labels, too.
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
    """Take the last `labels add` or `labels remove` back; the bundle is again what it was."""
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


@labels.command()
def suggest(
    bundle: Named = "",
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A log: a query per line, optionally with a tab and a count.")
    ] = None,
    most: Annotated[int, typer.Option("-k", min=1, max=1_000_000, help="Number of suggestions.")] = 20,
    draws: Annotated[int, typer.Option(min=1, max=1000, help="Draws of the training queries for the curve.")] = 3,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the suggestions.")] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write the curve as PNG.")] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Show what labels gain on dev, and which to add next by expected gain: queries of a log, or passages.

    It needs the GNN-encoder's bundle, and takes it by itself whatever the run recommends.

    The curve: dev figures with growing shares of the training queries in the graph, with the stored models.
    """
    from rich.console import Console

    from gnn_encoder.artifacts import Bundle
    from gnn_encoder.artifacts.finished_run import graph_bundle
    from gnn_encoder.labels.curve import DevQueries, extrapolated, label_curve
    from gnn_encoder.labels.nodes import FinishedRun
    from gnn_encoder.labels.suggestions import Suggestions, read_log
    from gnn_encoder.report import label_value

    log, screen = read_log(queries) if queries else None, Console()
    opened = Bundle.read(_bundle(bundle, root))
    added_labels = opened.added.labels if opened.added else []
    if opened.labelled and not bundle and (of_graph := graph_bundle(root / "latest")).exists():
        opened = Bundle.read(of_graph)
    run = FinishedRun.of(opened)
    dev = DevQueries.of(run)
    points = label_curve(run, dev, draws=draws)
    beyond = extrapolated(points)
    screen.print(label_value.curve_table(points, beyond, len(dev.rows)))
    screen.print()
    suggestions = Suggestions(run, dev, added_labels)
    suggested: list[QuerySuggestion] | list[PassageSuggestion]
    if log:
        suggested, value = suggestions.queries(log, most)
        table = label_value.queries_table(suggested, sum(log.values()), value)
    else:
        gain = points[-1].warm_gain
        suggested = suggestions.passages(gain, most)
        table = label_value.passages_table(suggested, gain)
    screen.print(table if suggested else "no label is expected to gain anything: see the gain of warm queries above")
    if csv:
        label_value.write_csv(csv, suggested)
    if json:
        label_value.write_json(json, points, beyond, suggested)
    if plot:
        plot.write_bytes(label_value.labels_plot(points, beyond))


def _bundle(named: str, root: Path) -> Path:
    from gnn_encoder.artifacts import Bundle
    from gnn_encoder.artifacts.finished_run import BUNDLE, labelled_bundle
    from gnn_encoder.promotion.registry import named_bundle

    if named or not (latest := root / "latest").is_dir():
        return named_bundle(named or str(root / "latest" / BUNDLE), root)
    bundle = labelled_bundle(latest)
    if bundle != latest / BUNDLE and (latest / BUNDLE).exists():
        system = Bundle.read(latest / BUNDLE).serving.system
        typer.echo(f"labels of {bundle}, and not of the recommended bundle, which has the system {system}", err=True)
    return bundle


def _wanted(query: str | None, passage: str | None, file: Path | None) -> "list[Wanted]":
    from gnn_encoder.labels.requests import Wanted, read_wanted

    if file and query is None:
        return read_wanted(file)
    if file or query is None or passage is None:
        raise UserError("a label is a query and a passage id: give both, or --file alone")
    return [Wanted(query, passage)]


def _show(change: str, outcome: "Outcome") -> None:
    typer.echo(
        f"{change}; {outcome.effect}, after {outcome.seconds:.2f} s; added labels in force: {len(outcome.labels):,}"
    )
