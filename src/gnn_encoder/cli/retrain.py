"""The command `retrain`, for schedules."""

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnn_encoder.cli.options import (
    DEFAULT_ROOT,
    HOST,
    Budget,
    ClusterFile,
    Data,
    Encoders,
    Host,
    Overrides,
    Root,
    Until,
    Vectors,
    checked_host,
)
from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.engines.climbing import Climb
    from gnn_encoder.engines.local_run import Outcome
    from gnn_encoder.engines.pipelines import Training
    from gnn_encoder.kubeflow.submission import ClusterJob
    from gnn_encoder.promotion.retraining import Plan

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Environment variable on GitHub's runners: the file whose Markdown appears on the job's page."""
NOT_PROMOTED = 3
"""Exit code with --fail-on-keep if the model does not pass the gate."""


def retrain(
    preset: Annotated[
        str, typer.Option(help="Preset, YAML file such as that of a plan, or auto, as of `run`.")
    ] = "auto",
    dataset: Data = None,
    encoder: Encoders = None,
    vectors: Vectors = None,
    budget: Budget = None,
    until: Until = None,
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

    Without a preset, or with --until, it climbs again, as `run` with the same options. The training runs on the cluster
    that --host or its environment variable names, otherwise on this machine.
    """
    from rich.console import Console

    from gnn_encoder.cli.console import Lines
    from gnn_encoder.engines import climbing, pipelines
    from gnn_encoder.kubeflow import submission
    from gnn_encoder.kubeflow.package import load_cluster
    from gnn_encoder.planning.budget import climb_seconds
    from gnn_encoder.promotion import retraining
    from gnn_encoder.promotion.gate import KEEP
    from gnn_encoder.settings.rungs import rung_named

    began, changes = time.time(), [*(overrides or []), *pipelines.encoder_overrides(encoder or (), vectors)]
    climbs = climbing.climbs(preset, until, budget=budget, encoder=encoder, vectors=vectors)
    seconds = climb_seconds(budget, until)
    job: Training | Climb | ClusterJob
    if not local and (host or cluster):
        checked_host(host)
        if climbs and (preset == "auto" or budget):
            raise UserError(
                "a climb's plan measures this machine: for a cluster name --preset and --until, or add --local"
            )
        last = rung_named(until) if until else ""
        job = submission.training(load_cluster(cluster), preset, dataset, changes, last)
    elif climbs:
        job = climbing.climbing(preset, dataset, changes, root, until, seconds, Lines(Console()).plan)
    else:
        job = pipelines.training(preset, dataset, overrides or [], root)
    plan = retraining.plan(job)
    if plan.same:
        _report(f"{plan.news}\n")
        return
    typer.echo(plan.news)
    if isinstance(job, submission.ClusterJob):
        facts, links = _run_on_cluster(job, plan, host)
    else:
        facts, links = _run_here(job, plan, began + seconds)
    _report(f"\n{retraining.summary(plan.news, facts, job.models().uri, links)}")
    if fail_on_keep and facts["decision"] == KEEP:
        raise typer.Exit(NOT_PROMOTED)


def _run_here(job: "Training | Climb", plan: "Plan", deadline: float) -> tuple[dict[str, Any], dict[str, object]]:
    """Runs the pipeline here; returns the facts of the decision, and links to the run's report and log.

    Of a climb it is the decision on the last rung that was promoted, otherwise on the last one, and the links begin
    with the decision on each.
    """
    from gnn_encoder.artifacts.report import Decision, Report
    from gnn_encoder.cli.console import followed
    from gnn_encoder.engines.climbing import Climb
    from gnn_encoder.promotion.gate import KEEP

    decided: dict[str, dict[str, Any]] = {}

    def reached(outcome: "Outcome") -> None:
        decided[outcome.rung] = Decision.read(outcome.outputs["decision"]).facts

    run = partial(job.run, arguments=plan.arguments)
    if isinstance(job, Climb):
        run = partial(job.run, shown=reached, deadline=deadline, arguments=plan.arguments)
    outcome = followed(run)
    facts = Decision.read(outcome.outputs["decision"]).facts
    promoted = [one for one in decided.values() if one["decision"] != KEEP]
    links: dict[str, object] = {rung: f"{one['decision']}: {one['reason']}" for rung, one in decided.items()}
    links |= {"report": Report.read(outcome.outputs["report"]).page, "log": outcome.log}
    if outcome.is_late:
        links["time"] = f"up during {outcome.failed_step or 'the next step'}; the same command goes on from there"
    return (promoted or [facts])[-1], links


def _run_on_cluster(job: "ClusterJob", plan: "Plan", host: str) -> tuple[dict[str, Any], dict[str, object]]:
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
