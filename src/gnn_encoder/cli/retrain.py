"""The command `retrain`, for schedules."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, HOST, ClusterFile, Data, Host, Overrides, Preset, Root, checked_host

if TYPE_CHECKING:
    from gnn_encoder.engines.pipelines import Training
    from gnn_encoder.kubeflow.submission import ClusterTraining
    from gnn_encoder.promotion.retraining import Plan

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable on GitHub's runners: the file whose Markdown appears on the job's page."""
NOT_PROMOTED = 3
"""Exit code with --fail-on-keep if the model does not pass the gate."""


def retrain(
    preset: Preset,
    dataset: Data = None,
    overrides: Overrides = None,
    root: Root = DEFAULT_ROOT,
    host: Host = "",
    cluster: ClusterFile = None,
    local: Annotated[bool, typer.Option("--local", help=f"Run on this machine, even if ${HOST} is set.")] = False,
    fail_on_keep: Annotated[
        bool, typer.Option("--fail-on-keep", help=f"Exit with {NOT_PROMOTED} if the new model is not promoted.")
    ] = False,
) -> None:
    """Train again if data, settings or code have changed since the champion or the newest model; promote if better.

    The training runs on the cluster that --host or its environment variable names, otherwise on this machine.
    """
    from gnn_encoder.engines import pipelines
    from gnn_encoder.kubeflow import submission
    from gnn_encoder.kubeflow.package import load_cluster
    from gnn_encoder.promotion import retraining
    from gnn_encoder.promotion.gate import KEEP

    job: Training | ClusterTraining
    if not local and (host or cluster):
        checked_host(host)
        job = submission.training(load_cluster(cluster), preset, dataset, overrides or [])
    else:
        job = pipelines.training(preset, dataset, overrides or [], root)
    plan = retraining.plan(job)
    if plan.same:
        _report(f"{plan.news}\n")
        return
    typer.echo(plan.news)
    if isinstance(job, submission.ClusterTraining):
        facts, links = _run_on_cluster(job, plan, host)
    else:
        facts, links = _run_here(job, plan)
    _report(f"\n{retraining.summary(plan.news, facts, job.models().uri, links)}")
    if fail_on_keep and facts["decision"] == KEEP:
        raise typer.Exit(NOT_PROMOTED)


def _run_here(job: "Training", plan: "Plan") -> tuple[dict[str, Any], dict[str, object]]:
    """Runs the pipeline here; returns the facts of the decision, and links to the run's report and log."""
    from gnn_encoder.artifacts.report import Decision, Report
    from gnn_encoder.cli.console import followed

    outcome = followed(lambda show: job.run(show, plan.arguments))
    facts = Decision.read(outcome.outputs["decision"]).facts
    return facts, {"report": Report.read(outcome.outputs["report"]).page, "log": outcome.log}


def _run_on_cluster(job: "ClusterTraining", plan: "Plan", host: str) -> tuple[dict[str, Any], dict[str, object]]:
    """Runs the pipeline on the cluster; returns the facts of the decision, and a link to the run."""
    from gnn_encoder.kubeflow.server import Server
    from gnn_encoder.kubeflow.submission import wait
    from gnn_encoder.promotion.retraining import registered_facts

    server = Server(host, job.cluster.namespace)
    run_id = job.start(server, plan.arguments)
    if code := wait(server, run_id, job.cluster):
        raise typer.Exit(code)
    return registered_facts(plan, job.models()), {"run": server.page(run_id)}


def _report(markdown: str) -> None:
    """Prints the text, and adds it to the job's page if there is one."""
    typer.echo(markdown, nl=False)
    if page := os.environ.get(SUMMARY):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(markdown)
