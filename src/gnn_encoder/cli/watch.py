"""The command `watch`: whether the questions of a service call for a retraining."""

import os
from pathlib import Path
from typing import Annotated

import typer

from gnn_encoder.cli.bundles import Named
from gnn_encoder.cli.options import DEFAULT_ROOT, Root

DUE = 3
"""Exit code with --alert if a retraining is due."""


def watch(
    bundle: Named,
    log: Annotated[
        Path, typer.Option(help='Folder of `serve --log`, or JSON lines with "question" or "query", oldest first.')
    ],
    alert: Annotated[bool, typer.Option("--alert", help=f"Exit with {DUE} if a retraining is due.")] = False,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Say in one line whether logged questions still are like the dev queries, or a retraining is due, and why.

    An unchanged log raises a false alarm at most once in 20, however long it grows and however often one looks at it. A
    log that loses its oldest questions begins anew.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from gnn_encoder.serving.questions import logged
    from gnn_encoder.serving.retriever import Retriever
    from gnn_encoder.serving.watching import Watched

    rows = logged(log)
    if not rows:
        typer.echo("no retraining is due: the log has no question")
        return
    watched = Watched(Retriever.load(bundle, root))
    texts = [row["question"] for row in rows]
    known = [row.get("score") if row.get("bundle") == watched.digest else None for row in rows]
    drift = watched.drift(watched.scores(texts, known), watched.vectors(texts) if watched.has_vectors else None)
    of = f"{drift.questions:,} different question{'s' * (drift.questions != 1)}"
    if drift.alarm is None:
        typer.echo(f"no retraining is due: chance explains how the dev queries differ from {of}: {drift}")
        return
    moment, figure = drift.alarm
    typer.echo(
        f"a retraining is due: at question {moment:,} of {of}, chance no longer explained how {figure} differ from the "
        f"dev queries': {drift}"
    )
    if alert:
        raise typer.Exit(DUE)
