"""The commands that use a Kubeflow cluster: `submit`, `runs`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gnn_encoder.cli.options import (
    ClusterFile,
    Data,
    FirstStage,
    Host,
    Overrides,
    Preset,
    Systems,
    given,
    named_systems,
)
from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.settings.cluster import Cluster


def submit(
    preset: Preset,
    host: Host = "",
    cluster: ClusterFile = None,
    dataset: Data = None,
    overrides: Overrides = None,
    pipeline: Annotated[
        Literal["train", "rerank"], typer.Option(help="The pipeline of `run`, or of `rerank`.")
    ] = "train",
    systems: Annotated[str | None, Systems] = None,
    first_stage: FirstStage = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow the run to its end; exit code 0 if it succeeds.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only write the package and show the needs of the steps.")
    ] = False,
    package: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the package of a dry run [gnn-encoder-PIPELINE.yaml]."),
    ] = None,
) -> None:
    """Run a pipeline on a Kubeflow cluster: the same as `run`, or as `rerank`, with settings of the cluster.

    --systems and --first-stage belong to --pipeline rerank. On a cluster, a first stage is bm25, pool or s3://…
    """
    from gnn_encoder.kubeflow import submission
    from gnn_encoder.kubeflow.package import load_cluster, write_package
    from gnn_encoder.kubeflow.server import Server

    needs = load_cluster(cluster)
    job: submission.ClusterTraining | submission.ClusterReranking
    if pipeline == "rerank":
        names = named_systems(systems, preset, overrides or [])
        job = submission.reranking(needs, preset, dataset, overrides or [], names, first_stage)
    elif first_stage is not None or systems is not None:
        raise UserError("--systems and --first-stage belong to the re-ranking pipeline: add --pipeline rerank")
    else:
        job = submission.training(needs, preset, dataset, overrides or [])
    if dry_run:
        package = package or Path(f"gnn-encoder-{pipeline}.yaml")
        if package.suffix not in (".yaml", ".yml"):
            raise UserError(f"--package {package}: the name of a package ends with .yaml")
        write_package(pipeline, needs, package)
        _show(_table_of(pipeline, needs))
        typer.echo(f"\nwrote {package}")
        return
    server = Server(given(host), needs.namespace)
    run_id = job.start(server, job.arguments())
    if wait:
        raise typer.Exit(submission.wait(server, run_id, needs))


def runs(
    host: Host = "",
    cluster: ClusterFile = None,
    limit: Annotated[int, typer.Option("-n", min=1, max=200, help="Number of runs.")] = 20,
) -> None:
    """List the newest runs on a Kubeflow cluster, with their states."""
    from gnn_encoder.kubeflow.package import load_cluster
    from gnn_encoder.kubeflow.server import Server

    needs = load_cluster(cluster)
    server = Server(given(host), needs.namespace)
    rows: list[Sequence[str]] = []
    for run in server.runs(needs.experiment, limit):
        created = run.created.astimezone().strftime("%Y-%m-%d %H:%M") if run.created else ""
        took = str(run.finished - run.created).partition(".")[0] if run.finished and run.created else ""
        rows.append((created, run.state.lower(), took, run.name, server.page(run.run_id)))
    if rows:
        _show([("created", "state", "took", "name", "run"), *rows])
    else:
        typer.echo(f"no runs under {needs.experiment} yet: start one with gnn-encoder submit")


def _table_of(pipeline: str, cluster: "Cluster") -> list[Sequence[str]]:
    """Returns the needs of each step of a pipeline, one row each, below a header."""
    from gnn_encoder.settings.pipeline import ON_CLUSTERS

    rows: list[Sequence[str]] = [("step", "cpu", "memory", "gpu", "timeout", "retries", "image")]
    for step in ON_CLUSTERS[pipeline]:
        needs = cluster.needs(step)
        cpu, memory = (
            "-".join(dict.fromkeys(filter(None, (amount.request, amount.limit)))) if amount else ""
            for amount in (needs.cpu, needs.memory)
        )
        gpu = f"{needs.gpu.count} {needs.gpu.type}" if needs.gpu else ""
        timeout = f"{needs.timeout_seconds} s" if needs.timeout_seconds else ""
        retries = str(needs.retries.count) if needs.retries else ""
        rows.append((step, cpu, memory, gpu, timeout, retries, cluster.image(step)))
    return rows


def _show(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
