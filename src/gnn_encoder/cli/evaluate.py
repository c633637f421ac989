"""The command that measures what others made: `evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from gnn_encoder.cli.root import DEFAULT_ROOT, root_option
from gnn_encoder.errors import UserError


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
        from gnn_encoder.promotion.compare_bundles import compare_bundles
        from gnn_encoder.promotion.named_bundle import named_bundle

        data = Dataset(dataset or root / "latest" / "dataset")
        found = compare_bundles({name: named_bundle(name, root) for name in bundles}, data, split, names)
    else:
        raise UserError("evaluate measures --run with --qrels, or --bundle: give one of the two")
    screen = Console()
    screen.print(comparison_table(found))
    screen.print("\n".join(notes(found)), markup=False, highlight=False)
