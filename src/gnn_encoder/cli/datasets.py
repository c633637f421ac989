"""The command for data before training: `data check`."""

import json
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_encoder.cli.options import Log
from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.data.validation import DataReport
    from gnn_encoder.settings.foundation import Ingest

data = typer.Typer(help="Check data before training on it.", no_args_is_help=True, rich_markup_mode="markdown")
MOST = 10_000
"""Passages that a forecast encodes unless told otherwise: 1 to 3 minutes of MiniLM on two cores."""


@data.callback()
def _only() -> None:
    """Makes `check` a command of its own: typer would make a single command the group itself."""


@data.command()
def check(
    dataset: Annotated[str, typer.Argument(help="Path or URI of the data, or python-docs.")],
    format: Annotated[
        str, typer.Option(help="auto, beir, msmarco, dpr, markup, documents, ir_datasets or python-docs.")
    ] = "auto",
    document_depth: Annotated[int, typer.Option(help="Cut documents at this depth, as ingest.document_depth.")] = 0,
    similarity: Annotated[
        float, typer.Option(help="Similarity of recurring queries, as ingest.recurrence_similarity.")
    ] = 0.8,
    log: Log = None,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Estimate what labelled queries gain, with an untrained encoder.")
    ] = False,
    sample: Annotated[int, typer.Option(help="Most passages that --forecast encodes; 0: all.", min=0)] = MOST,
    backbone: Annotated[str, typer.Option(help="Untrained encoder of --forecast.")] = "minilm",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Validate a dataset: show counts, and each kind of problem with file and line; forecast what it can show."""
    from gnn_encoder.evaluation.power import ASSUMED, detectable
    from gnn_encoder.forecast.text import check_lines
    from gnn_encoder.settings.presets import parse_settings

    values = {"dataset": dataset, "format": format, "document_depth": document_depth}
    values |= {"recurrence_similarity": similarity, "on_bad_rows": "drop", "log": str(log or "")}
    needs = "labels" if forecast else "climb"
    settings = parse_settings({"ingest": values}, source="data check").ingest.model_copy(update={"needs": needs})
    report, gains = _checked(settings, backbone if forecast else None, sample)
    spread = gains["deviation"] if gains else ASSUMED
    power = {split: detectable(spread, count) for split, count in report.labelled.items() if split != "train"}
    if as_json:
        facts = {**asdict(report), "labelled": report.labelled, "power": {**power, "deviation": spread}}
        typer.echo(json.dumps({**facts, "forecast": gains}, ensure_ascii=False))
    else:
        for name, value in check_lines(report, settings, gains, power).items():
            typer.echo(f"{name:<10} {value}")
        for line in (*report.problems, *report.remarks):
            typer.echo(f"- {line}")
    if report.problems:
        mend = "fix it" if report.fatal else "fix it, or --set ingest.on_bad_rows=drop"
        kinds = f"{len(report.problems)} kind{'s' * (len(report.problems) > 1)} of problem"
        raise UserError(f"{dataset} has {kinds}, listed above: {mend}")


def _checked(settings: "Ingest", backbone: str | None, most: int) -> "tuple[DataReport, dict[str, Any] | None]":
    """Returns the report, and the facts of a forecast with a backbone; without one, nothing is written."""
    from gnn_encoder.data import canonicalize, open_source, temporary_dataset

    if backbone is None:
        return canonicalize(open_source(settings), settings), None
    from gnn_encoder.forecast.gains import forecast
    from gnn_encoder.tracking.progress import Progress

    with temporary_dataset(settings) as (data, report):
        return report, forecast(data, backbone, most, settings.seed, partial(Progress, "forecast"))
