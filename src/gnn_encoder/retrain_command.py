"""The command that a schedule calls: `retrain`."""

import os
from pathlib import Path
from typing import Annotated

import typer

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable of GitHub's runners: the file whose Markdown a job's page shows."""
KEPT = 3
"""Exit code of a model that did not pass the gate, where that was asked for."""


def retrain(
    preset: Annotated[str, typer.Option(help="Name of a preset (`gnn-encoder presets`), or your own YAML file.")],
    dataset: Annotated[str | None, typer.Option(help="Path or URI of the data; else the preset's.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="STEP.KEY=VALUE", help="Change a setting; repeatable.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of runs, checkpoints and the MLflow store, as of `run`.")
    ] = None,
    fail_on_keep: Annotated[
        bool, typer.Option("--fail-on-keep", help=f"Exit with {KEPT} if the new model does not become champion.")
    ] = False,
) -> None:
    """Train again if data, settings or code changed since the champion or the newest model; promote what is better."""
    from rich.console import Console

    from gnn_encoder import jobs, retraining
    from gnn_encoder.artifacts.report import Decision
    from gnn_encoder.console import open_console
    from gnn_encoder.endings import show_failure
    from gnn_encoder.evaluation.gate import KEEP
    from gnn_encoder.settings import STEPS

    job = jobs.training(preset, dataset, overrides or [], root or jobs.default_root())
    plan = retraining.plan(job)
    if plan.same:
        _tell(f"{plan.news}\n")
        return
    typer.echo(plan.news)
    with open_console(STEPS, Console()) as audience:
        outcome = job.run(plan.arguments, audience)
    if outcome.status != "FINISHED":
        show_failure(outcome)
        raise typer.Exit(outcome.exit_code)
    facts = Decision.read(outcome.outputs["decision"]).facts
    _tell(f"\n{retraining.summary(plan.news, facts, outcome)}")
    if fail_on_keep and facts["decision"] == KEEP:
        raise typer.Exit(KEPT)


def _tell(markdown: str) -> None:
    """On the terminal, and on the job's page where there is one."""
    typer.echo(markdown, nl=False)
    if page := os.environ.get(SUMMARY):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(markdown)
