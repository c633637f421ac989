"""The command `forget`: takes texts, and what was made from them, out of a root and its exports."""

from pathlib import Path
from typing import Annotated

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, Root, Verbose
from gnn_encoder.errors import UserError


def forget(
    queries: Annotated[Path | None, typer.Option(metavar="FILE", help="Queries: an id or a whole text a line.")] = None,
    passages: Annotated[Path | None, typer.Option(metavar="FILE", help="Passages, likewise.")] = None,
    exports: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            help="Folder of `export`, copy of a bundle, or folder of `judge`, also at s3://; file of lines (labels, "
            "questions); postgresql://…#TABLE. Repeatable.",
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="The data, if they have moved since the run.")] = None,
    signed: Annotated[str, typer.Option("--signed", metavar="NAME", help="Who signs the record [USER@MACHINE].")] = "",
    root: Root = DEFAULT_ROOT,
    verbose: Verbose = False,
) -> None:
    """Take texts, their labels and everything made from them out of a root and of exports, and write a record.

    The bundles are updated, so the data must be there; of these, each later run in the root leaves the texts out.
    Weights that were trained with the texts stay, and are listed with the command that trains without them.
    """
    from gnn_encoder.cli.console import followed
    from gnn_encoder.engines import forgetting

    files = {"queries": queries, "passages": passages}
    wanted = {kind: forgetting.read_wanted(file) for kind, file in files.items() if file}
    if not wanted:
        raise UserError("name what to forget: --queries FILE, --passages FILE, or both")
    path, record = forgetting.forget(root, wanted, exports or [], signed, lambda job: followed(job, verbose), dataset)
    typer.echo(f"forgotten  {', '.join(f'{len(record[kind]):,} {kind}' for kind in wanted)}, with all earlier ones")
    typer.echo(f"files      {len(record['rewritten']):,} made anew or rewritten, {len(record['deleted']):,} deleted")
    if trained := record["trained"]:
        steps = dict.fromkeys(step for weights in trained for step in weights["steps"])
        typer.echo(
            f"trained    with them: {len(trained):,} models and bundles, which the record lists ({', '.join(steps)})"
        )
    if record["training"]:
        typer.echo(f"train anew {record['training']}")
    for left in record["left"]:
        typer.echo(f"look at    {left}")
    typer.echo(f"record     {path}")
