"""How a run's end is told on a terminal: its results and where they lie, or what went wrong."""

import shlex
import shutil
import sys
from pathlib import Path

import typer
from rich.console import Console

from gnn_encoder.artifacts import Dataset, Report, read_manifest
from gnn_encoder.report.ablation import ablation_table
from gnn_encoder.report.table import results_table
from gnn_encoder.runs.local_run import Outcome


def show_ablation(screen: Console, outcome: Outcome) -> None:
    """An ablation's table, and where its page lies."""
    report = Report.read(outcome.outputs["report"])
    screen.print()
    screen.print(ablation_table(report.metrics))
    screen.print(f"\nreport     {report.page}", markup=False, highlight=False, soft_wrap=True)


def show_update(screen: Console, outcome: Outcome) -> None:
    """What an update did, and where its bundle lies."""
    bundle = outcome.outputs["bundle"]
    screen.print(f"\n{read_manifest(bundle).metrics['headline']}\nbundle     {bundle}", soft_wrap=True)


def show_results(root: Path, screen: Console, outcome: Outcome) -> None:
    """The table of all systems, the decision, and where to look on."""
    screen.print()
    screen.print(results_table(Report.read(outcome.outputs["report"]).metrics))
    data = Dataset(outcome.outputs["dataset"])
    (question,) = data.query_texts(data.query_rows("test")[:1]) or ["your question"]
    chosen = "" if root == Path("gnn-encoder-runs") else f" --root {shlex.quote(str(root))}"
    program = shlex.quote("gnn-encoder" if shutil.which("gnn-encoder") else sys.argv[0])
    lines = {
        "decision": read_manifest(outcome.outputs["decision"]).metrics.get("headline", ""),
        "report": Report.read(outcome.outputs["report"]).page,
        "bundle": outcome.outputs["bundle"],
        "log": outcome.log,
        "dashboard": f"{program} dashboard{chosen}   (in a clone: make dashboard)",
        "search": f"{program} {shlex.join(['search', question, '--bundle', str(outcome.outputs['bundle'])])}",
    }
    screen.print()
    for name, value in lines.items():
        screen.print(f"{name:<10} {value}", markup=False, highlight=False, soft_wrap=True)


def show_failure(outcome: Outcome) -> None:
    """What failed or was interrupted, on stderr, and how to go on."""
    again = "The same command goes on from here: finished steps are reused, training resumes at its last checkpoint."
    if outcome.status == "KILLED":
        typer.echo(f"\ninterrupted. {again}\nlog: {outcome.log}", err=True)
        return
    where = f"{outcome.failed_step}: " if outcome.failed_step else ""
    typer.echo(f"\nerror: {where}{outcome.message}\nlog: {outcome.log}\n{again}", err=True)
