"""The commands that use a Kubeflow cluster: `submit`, `runs`, `schedule add | list | remove`."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gnn_encoder.cli.graphs import show_rows
from gnn_encoder.cli.options import (
    PRESET,
    ClusterFile,
    Data,
    FirstStage,
    Host,
    Overrides,
    Preset,
    Systems,
    checked_host,
    named_systems,
)
from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.flow.graph import Graph
    from gnn_encoder.kubeflow.cluster import Cluster
    from gnn_encoder.kubeflow.server import Server
    from gnn_encoder.kubeflow.submission import ClusterJob

schedule = typer.Typer(
    help="Run a pipeline on a Kubeflow cluster again and again.", no_args_is_help=True, rich_markup_mode="markdown"
)

Pipeline = Annotated[
    Literal["train", "ladder", "rerank"],
    typer.Option(help="train: as `run --preset`; ladder: with all rungs up to --until; rerank: as `rerank`."),
]
Until = Annotated[str | None, typer.Option(help="The last rung of a ladder, as of `run` [training].")]
PACKAGE = "gnn-encoder-{}.yaml"


def submit(
    preset: Preset,
    host: Host = "",
    cluster: ClusterFile = None,
    dataset: Data = None,
    overrides: Overrides = None,
    pipeline: Pipeline = "train",
    until: Until = None,
    systems: Systems = None,
    first_stage: FirstStage = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow the run to its end; exit code 0 if it succeeds.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only write the package and show the needs of the steps.")
    ] = False,
) -> None:
    """Run a pipeline on a Kubeflow cluster: the same as `run`, or as `rerank`, with settings of the cluster.

    --systems and --first-stage belong to --pipeline rerank. On a cluster, a first stage is bm25, pool or s3://…
    """
    from gnn_encoder.kubeflow import submission
    from gnn_encoder.kubeflow.package import write_package

    job = _job(cluster, preset, dataset, overrides, pipeline, until, systems, first_stage)
    if dry_run:
        package = Path(PACKAGE.format(pipeline))
        write_package(job.graph, job.arguments(), job.cluster, package)
        show_rows(_table_of(job.graph, job.cluster))
        typer.echo(f"\nwrote {package}")
        return
    server = _server(host, job.cluster)
    run_id = job.start(server, job.arguments())
    if wait:
        raise typer.Exit(submission.wait(server, run_id, job.cluster))


def compile_(
    preset: Annotated[str | None, PRESET] = None,
    dataset: Data = None,
    overrides: Overrides = None,
    pipeline: Pipeline = "train",
    until: Until = None,
    systems: Systems = None,
    first_stage: FirstStage = None,
    cluster: ClusterFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="FILE", help="File for the package [gnn-encoder-PIPELINE.yaml].")
    ] = None,
    components: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each step as a KFP component file, and no package.")
    ] = None,
) -> None:
    """Write the KFP package of a run, which `submit` and `schedule` send; or all steps as component files."""
    from gnn_encoder.kubeflow.components import write_components
    from gnn_encoder.kubeflow.package import load_cluster, write_package

    if components:
        for path in write_components(components, load_cluster(cluster)):
            typer.echo(f"wrote {path}")
        return
    if preset is None:
        raise UserError("give --preset for the package of a run, or --components DIR for all steps")
    output = output or Path(PACKAGE.format(pipeline))
    if output.suffix not in (".yaml", ".yml"):  # KFP's pages take no other names
        raise UserError(f"-o {output}: the name of a package ends with .yaml")
    job = _job(cluster, preset, dataset, overrides, pipeline, until, systems, first_stage)
    write_package(job.graph, job.arguments(), job.cluster, output)
    typer.echo(f"wrote {output}")


def runs(
    host: Host = "",
    cluster: ClusterFile = None,
    limit: Annotated[int, typer.Option("-n", min=1, max=200, help="Number of runs.")] = 20,
) -> None:
    """List the newest runs on a Kubeflow cluster, with their states."""
    from gnn_encoder.kubeflow.package import load_cluster

    needs = load_cluster(cluster)
    server, rows = _server(host, needs), list[Sequence[str]]()
    for run in server.runs(needs.experiment, limit):
        lasted = str(run.finished - run.created).partition(".")[0] if run.finished and run.created else ""
        rows.append((_minute(run.created), run.state.lower(), lasted, run.name, server.page(run.run_id)))
    if rows:
        show_rows([("created", "state", "took", "name", "run"), *rows])
    else:
        typer.echo(f"no runs under {needs.experiment} yet: start one with gnn-encoder submit")


@schedule.command()
def add(
    preset: Preset,
    cron: Annotated[
        str | None,
        typer.Option(
            metavar="'MINUTE HOUR DAY MONTH WEEKDAY'",
            help="When runs start, as '0 3 * * *' for 3:00, in the server's time zone.",
        ),
    ] = None,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time between two starts, as 24h; the first is after this time.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the recurring run, by default the preset's.")] = None,
    at_once: Annotated[int, typer.Option(min=1, max=10, help="Number of its runs that may run at the same time.")] = 1,
    catch_up: Annotated[bool, typer.Option("--catch-up", help="Make up all missed starts, not one.")] = False,
    host: Host = "",
    cluster: ClusterFile = None,
    dataset: Data = None,
    overrides: Overrides = None,
    pipeline: Pipeline = "train",
    until: Until = None,
    systems: Systems = None,
    first_stage: FirstStage = None,
) -> None:
    """Create a recurring run: what `submit` starts once with these options, KFP starts again and again.

    Each run reads the data anew and takes nothing from KFP's cache. Settings, image and needs are those of today.
    """
    from gnn_encoder.kubeflow.schedule import new_schedule

    stem = Path(preset).stem if pipeline == "train" else f"{pipeline}-{Path(preset).stem}"
    wanted = new_schedule(stem if name is None else name, cron, every, at_once, catch_up)
    job = _job(cluster, preset, dataset, overrides, pipeline, until, systems, first_stage)
    job.schedule(_server(host, job.cluster), wanted)


@schedule.command(name="list")
def list_(host: Host = "", cluster: ClusterFile = None) -> None:
    """List the recurring runs of the cluster file's experiment, newest first."""
    from gnn_encoder.kubeflow.package import load_cluster

    needs = load_cluster(cluster)
    server, rows = _server(host, needs), list[Sequence[str]]()
    for recurring in server.schedules(needs.experiment):
        page = server.page(recurring.schedule_id, "recurringrun")
        rows.append(
            (recurring.name, recurring.when, recurring.at_once, recurring.state, _minute(recurring.created), page)
        )
    if rows:
        show_rows([("name", "when", "at once", "state", "created", "page"), *rows])
    else:
        typer.echo(f"no recurring runs under {needs.experiment} yet: create one with gnn-encoder schedule add")


@schedule.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of the recurring run.")],
    host: Host = "",
    cluster: ClusterFile = None,
) -> None:
    """Remove a recurring run. Its runs stay; one that is running goes on."""
    from gnn_encoder.kubeflow.package import load_cluster

    needs = load_cluster(cluster)
    server = _server(host, needs)
    if not (recurring_runs := server.schedules(needs.experiment, name)):
        raise UserError(f"no recurring run {name!r} under {needs.experiment}: see gnn-encoder schedule list")
    if len(recurring_runs) > 1:
        raise UserError(f"{needs.experiment} has {len(recurring_runs)} recurring runs {name!r}: delete one on its page")
    server.unschedule(recurring_runs[0].schedule_id)
    typer.echo(f"removed {name}")


def _server(host: str, cluster: "Cluster") -> "Server":
    from gnn_encoder.kubeflow.server import Server

    return Server(checked_host(host), cluster.namespace)


def _job(
    cluster: Path | None, preset: str, dataset: str | None, overrides: list[str] | None, pipeline: str,
    until: str | None, systems: str | None, first_stage: str | None,
) -> "ClusterJob":  # fmt: skip
    """Returns the pipeline that the options of `submit` describe."""
    from gnn_encoder.kubeflow import submission
    from gnn_encoder.kubeflow.package import load_cluster
    from gnn_encoder.settings.rungs import TRAINING, rung_named

    needs, overrides = load_cluster(cluster), overrides or []

    if until is not None and pipeline != "ladder":
        raise UserError("--until belongs to the ladder: add --pipeline ladder")
    if pipeline == "rerank":
        names = named_systems(systems, preset, overrides)
        return submission.reranking(needs, preset, dataset, overrides, names, first_stage)
    if first_stage is not None or systems is not None:
        raise UserError("--systems and --first-stage belong to the re-ranking pipeline: add --pipeline rerank")
    last = TRAINING if until is None else rung_named(until)
    return submission.training(needs, preset, dataset, overrides, last if pipeline == "ladder" else "")


def _minute(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M") if moment else ""


def _table_of(graph: "Graph", cluster: "Cluster") -> list[Sequence[str]]:
    """Returns the needs of each step of a graph, one row each, below a header."""
    rows: list[Sequence[str]] = [("step", "cpu", "memory", "gpu", "node", "timeout", "retries", "image")]
    for step in dict.fromkeys(node.step for node in graph.nodes):
        needs = cluster.needs(step)
        cpu, memory = (
            "-".join(dict.fromkeys(filter(None, (amount.request, amount.limit)))) if amount else ""
            for amount in (needs.cpu, needs.memory)
        )
        gpu = f"{needs.gpu.count} {needs.gpu.type}" if needs.gpu else ""
        node = ", ".join(needs.node_selector.values())
        timeout = f"{needs.timeout_seconds} s" if needs.timeout_seconds else ""
        retries = str(needs.retries.count) if needs.retries else ""
        rows.append((step, cpu, memory, gpu, node, timeout, retries, cluster.image(step)))
    return rows
