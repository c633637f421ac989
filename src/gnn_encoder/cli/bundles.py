"""The commands that use a trained bundle: `search`, `copy`, `explain`, `evaluate`."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, root_option
from gnn_encoder.errors import UserError, printable

if TYPE_CHECKING:
    from gnn_encoder.artifacts import Dataset
    from gnn_encoder.evaluation.compare import Comparison
    from gnn_encoder.explanation.search import ExplainedHit

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
        hits, weights = fused_search(opened, question, k, weight)
        screen.print(f"{weights}\n", style="dim")
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

    screen, folder = Console(), _named(bundle, root)
    hits = explain_search(folder, question, k, neighbors)
    for hit in hits:
        show_hit(screen, hit)
    screen.print(LEGEND, style="dim")
    if html:
        html.write_text(explanation_page(question, bundle, hits), encoding="utf-8")
        screen.print(f"page       {html}", markup=False, highlight=False, soft_wrap=True)


def evaluate(
    runs: Annotated[
        list[Path] | None, typer.Option("--run", help="A system's ranking, a TREC run file; repeatable.")
    ] = None,
    qrels: Annotated[Path | None, typer.Option(help="Relevance labels of the runs, a TREC qrels file.")] = None,
    bundles: Annotated[
        list[str] | None, typer.Option("--bundle", help="Or bundles, as `search` takes them; repeatable.")
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="A run's dataset, whose queries bundles are asked [ROOT/latest/dataset].")
    ] = None,
    split: Annotated[str, typer.Option(help="Of the dataset.")] = "test",
    measures: Annotated[
        str, typer.Option(help="In ir_measures' names, with spaces between.")
    ] = "RR@10 nDCG@10 AP R@100 Judged@10",
    root: Annotated[Path, root_option("As of `run`; its store knows models:/.")] = DEFAULT_ROOT,
) -> None:
    """Measure any system's TREC runs (plain or .gz) against qrels, or bundles; others are compared with the first."""
    from rich.console import Console

    from gnn_encoder.evaluation.compare import compare, comparison_table, notes
    from gnn_encoder.settings.measures import checked_list, split_names

    try:
        names = checked_list(split_names(measures))
    except ValueError as error:
        raise UserError(f"--measures {measures!r}: {error}") from None
    if runs and qrels and not bundles:
        found = compare(runs, qrels, names)
    elif bundles and not runs and not qrels:
        from gnn_encoder.artifacts import Dataset

        data = Dataset(dataset or root / "latest" / "dataset")
        found = _compared({name: _named(name, root) for name in bundles}, data, split, names)
    else:
        raise UserError("evaluate measures --run with --qrels, or --bundle: give one of the two")
    screen = Console()
    screen.print(comparison_table(found))
    screen.print("\n".join(notes(found)), markup=False, highlight=False)


def explanation_page(question: str, bundle: str, hits: "list[ExplainedHit]") -> str:
    """Explained hits as one HTML page that needs no network and no other file: the report's, with another body."""
    from gnn_encoder.explanation.passages import LEGEND
    from gnn_encoder.report.page import page_environment

    page = page_environment().get_template("explanation.html.j2")
    return page.render(question=question, bundle=bundle, hits=hits, legend=LEGEND)


def _compared(bundles: Mapping[str, Path], data: "Dataset", split: str, measures: Sequence[str]) -> "Comparison":
    """Bundles asked the labelled queries of a split, one bundle in memory at a time."""
    from gnn_encoder.artifacts import Bundle
    from gnn_encoder.evaluation.compare import comparison_of
    from gnn_encoder.evaluation.measures import labelled_queries
    from gnn_encoder.promotion.champion import bundle_figures
    from gnn_encoder.retrieval.search import Searcher
    from gnn_encoder.settings.outcome import Evaluate

    labelled = labelled_queries(data.split_qrels(split))
    if not len(labelled):
        raise UserError(f"{data.path} has no {split} query with a positive label: there is nothing to find")
    values = {}
    for name, folder in bundles.items():
        values[name] = bundle_figures(Searcher(Bundle.read(folder)), data, split, measures, Evaluate())
    return comparison_of(values, measures, len(data.query_rows(split)) - len(labelled), {})


def _named(bundle: str, root: Path) -> Path:
    from gnn_encoder.promotion.registry import named_bundle

    return named_bundle(bundle, root)
