"""The command that a schedule calls: `retrain`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_encoder.cli.clusters import HOST, ClusterFile, Host, given
from gnn_encoder.cli.options import DEFAULT_ROOT, root_option

if TYPE_CHECKING:
    from gnn_encoder.kubeflow.submission import ClusterTraining
    from gnn_encoder.promotion.retraining import Plan
    from gnn_encoder.runs.pipelines import Training

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable of GitHub's runners: the file whose Markdown a job's page shows."""
NOT_PROMOTED = 3
"""Exit code where the model did not pass the gate, if --fail-on-keep is given."""


def retrain(
    preset: Annotated[str, typer.Option(help="Name of a preset (`gnn-encoder presets`), or your own YAML file.")],
    dataset: Annotated[str | None, typer.Option(help="Path or URI of the data; else the preset's.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="STEP.KEY=VALUE", help="Change a setting; repeatable.")
    ] = None,
    root: Annotated[Path, root_option("Folder of runs, checkpoints and the MLflow store, as of `run`.")] = DEFAULT_ROOT,
    host: Host = "",
    cluster: ClusterFile = None,
    local: Annotated[
        bool, typer.Option("--local", help=f"On this machine, even where --host or ${HOST} names a cluster.")
    ] = False,
    fail_on_keep: Annotated[
        bool,
        typer.Option("--fail-on-keep", help=f"Exit with {NOT_PROMOTED} if the new model does not become champion."),
    ] = False,
) -> None:
    """Train again if data, settings or code changed since the champion or the newest model; promote what is better.

    It runs on this machine, or where --host or its environment variable names a cluster, there.
    """
    from gnn_encoder.kubeflow import submission as cluster_jobs
    from gnn_encoder.kubeflow.package import load_cluster
    from gnn_encoder.promotion import retraining
    from gnn_encoder.promotion.gate import KEEP
    from gnn_encoder.runs import pipelines

    job: Training | ClusterTraining
    if not local and (host or cluster):
        given(host)
        job = cluster_jobs.training(load_cluster(cluster), preset, dataset, overrides or [])
    else:
        job = pipelines.training(preset, dataset, overrides or [], root)
    plan = retraining.plan(job)
    if plan.same:
        _tell(f"{plan.news}\n")
        return
    typer.echo(plan.news)
    facts, links = _run_there(job, plan, host) if isinstance(job, cluster_jobs.ClusterTraining) else _run(job, plan)
    _tell(f"\n{retraining.summary(plan.news, facts, job.models().uri, links)}")
    if fail_on_keep and facts["decision"] == KEEP:
        raise typer.Exit(NOT_PROMOTED)


def _run(job: "Training", plan: "Plan") -> tuple[dict[str, Any], dict[str, object]]:
    """On this machine: the facts of the decision, and where to look."""
    from rich.console import Console

    from gnn_encoder.artifacts.report import Decision, Report
    from gnn_encoder.cli.console import open_console, show_failure
    from gnn_encoder.settings.pipeline import TITLES

    with open_console(TITLES, Console()) as console:
        outcome = job.run(console.show, plan.arguments)
    if outcome.status != "FINISHED":
        show_failure(outcome)
        raise typer.Exit(outcome.exit_code)
    facts = Decision.read(outcome.outputs["decision"]).facts
    return facts, {"report": Report.read(outcome.outputs["report"]).page, "log": outcome.log}


def _run_there(job: "ClusterTraining", plan: "Plan", host: str) -> tuple[dict[str, Any], dict[str, object]]:
    """The same on a cluster."""
    from gnn_encoder.kubeflow.server import Server
    from gnn_encoder.kubeflow.submission import start, wait
    from gnn_encoder.promotion.retraining import registered_facts

    server = Server(host, job.cluster.namespace)
    run_id = start(job, server, plan.arguments)
    if code := wait(server, run_id, job.cluster):
        raise typer.Exit(code)
    return registered_facts(plan, job.models()), {"run": server.page(run_id)}


def _tell(markdown: str) -> None:
    """On the terminal, and on the job's page where there is one."""
    typer.echo(markdown, nl=False)
    if page := os.environ.get(SUMMARY):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(markdown)
