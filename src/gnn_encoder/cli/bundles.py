"""The commands that use a trained bundle: `search`, `copy`, `explain`."""

import math
import os
from pathlib import Path
from typing import Annotated

import typer

from gnn_encoder.cli.root import DEFAULT_ROOT, root_option
from gnn_encoder.errors import UserError, printable

Root = Annotated[Path, root_option("Whose store knows models:/, unless $MLFLOW_TRACKING_URI names one.")]
Hits = Annotated[int, typer.Option("-k", min=1, max=1_000_000, help="How many passages.")]


def _finite(value: float | None) -> float | None:
    """Refuse NaN, which lies outside of no range."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is no number")
    return value


def search(
    question: Annotated[str, typer.Argument(help="What to look for.")],
    bundle: Annotated[
        str, typer.Option(help="Folder (of a run, ROOT/latest/bundle), s3:// address, or models:/gnn-encoder@champion.")
    ],
    k: Hits = 5,
    fuse: Annotated[bool, typer.Option("--fuse", help="Add BM25's scores to the vectors'.")] = False,
    weight: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            callback=_finite,
            help="Of the vectors when fused; else as its evaluation tuned it, or 0.5.",
        ),
    ] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Search a trained bundle: ranked passages with their scores."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from rich.console import Console

    from gnn_encoder.artifacts import Bundle
    from gnn_encoder.retrieval.search import fused_search, search_bundle

    screen, folder = Console(), _named(bundle, root)
    opened = Bundle.read(folder)
    if fuse or weight is not None:
        hits, told = fused_search(opened, question, k, weight)
        screen.print(f"{told}\n", style="dim")
    else:
        hits = search_bundle(opened, question, k)
    for hit in hits:
        screen.print(hit.heading(), markup=False, style="bold")
        screen.print(f"     {printable(hit.text)}\n", markup=False, highlight=False)


def copy(
    source: Annotated[str, typer.Argument(help="A folder, or the s3:// address of one.")],
    target: Annotated[str, typer.Argument(help="Where to: the same.")],
) -> None:
    """Copy a folder, such as a bundle, to or from an object store; a reader there never sees half of it."""
    from gnn_encoder.storage import Transfer, get_folder, is_remote, put_folder

    if is_remote(target) and not is_remote(source):
        if not Path(source).is_dir():
            raise UserError(f"{source} is no folder: name one")
        put_folder(Path(source), target, Transfer(f"sending {source}"))
    elif is_remote(source) and not is_remote(target):
        get_folder(source, Path(target), Transfer(f"fetching {source}"), indexed=False)
    else:
        raise UserError("copy from a folder to an s3:// address, or from one to a folder")
    typer.echo(f"{source} is at {target}")


def explain(
    question: Annotated[str, typer.Argument(help="What to look for.")],
    bundle: Annotated[
        str,
        typer.Option(
            help="ROOT/latest/bundle, or models:/ of the same: what it was made from is looked for beside it."
        ),
    ],
    k: Hits = 5,
    neighbors: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="How many training queries of each passage.")
    ] = 5,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as a page, too.")] = None,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Search, and say what the graph did: the training queries in each passage's vector, and what it scores without."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from rich.console import Console

    from gnn_encoder.explanation.passages import LEGEND
    from gnn_encoder.explanation.search import explain_search, show_hit
    from gnn_encoder.report.explanation_page import render_explanation

    screen, folder = Console(), _named(bundle, root)
    hits = explain_search(folder, question, k, neighbors)
    for hit in hits:
        show_hit(screen, hit)
    screen.print(LEGEND, style="dim")
    if html:
        html.write_text(render_explanation(question, bundle, hits), encoding="utf-8")
        screen.print(f"page       {html}", markup=False, highlight=False, soft_wrap=True)


def _named(bundle: str, root: Path) -> Path:
    from gnn_encoder.promotion.named_bundle import named_bundle

    return named_bundle(bundle, root)
