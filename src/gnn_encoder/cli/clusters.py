"""The commands that use a Kubeflow cluster: `submit`, `runs`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnn_encoder.errors import UserError

if TYPE_CHECKING:
    from gnn_encoder.kubeflow.server import ClusterRun, Server
    from gnn_encoder.settings.cluster import Cluster

HOST = "KF_PIPELINES_ENDPOINT"
Host = Annotated[str, typer.Option(envvar=HOST, show_envvar=False, help=f"Address of Kubeflow Pipelines [${HOST}].")]
ClusterFile = Annotated[
    Path | None,
    typer.Option(
        "--cluster", metavar="FILE", help="Where artifacts lie and what each step needs; else the server's defaults."
    ),
]


def submit(
    preset: Annotated[str, typer.Option(help="Name of a preset (`gnn-encoder presets`), or your own YAML file.")],
    host: Host = "",
    cluster: ClusterFile = None,
    dataset: Annotated[str | None, typer.Option(help="URI of the data; else the preset's.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="STEP.KEY=VALUE", help="Change a setting; repeatable.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow the run to its end; exit code 0 if it succeeds.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the package, show what each step asks for, ask nobody.")
    ] = False,
    package: Annotated[Path, typer.Option(metavar="FILE", help="Where a dry run writes the package.")] = Path(
        "gnn-encoder-train.yaml"
    ),
) -> None:
    """Run the training pipeline on a Kubeflow cluster: the pipeline that `run` runs, with the cluster's settings."""
    from gnn_encoder.kubeflow import submission
    from gnn_encoder.kubeflow.package import load_cluster, write_package
    from gnn_encoder.kubeflow.server import Server

    asked = load_cluster(cluster)
    job = submission.training(asked, preset, dataset, overrides or [])
    if dry_run:
        if package.suffix not in (".yaml", ".yml"):
            raise UserError(f"--package {package}: a package's name ends with .yaml")
        write_package(asked, package)
        _show(_needs(asked))
        typer.echo(f"\nwrote {package}")
        return
    server = Server(given(host), asked.namespace)
    run_id = submission.start(job, server, job.arguments())
    if wait:
        raise typer.Exit(submission.wait(server, run_id, asked))


def runs(
    host: Host = "",
    cluster: ClusterFile = None,
    limit: Annotated[int, typer.Option("-n", min=1, max=200, help="How many, the newest first.")] = 20,
) -> None:
    """List the runs on a Kubeflow cluster, with their states."""
    from gnn_encoder.kubeflow.package import load_cluster
    from gnn_encoder.kubeflow.server import Server

    asked = load_cluster(cluster)
    server = Server(given(host), asked.namespace)
    found = server.runs(asked.experiment, limit)
    if not found:
        typer.echo(f"no runs under {asked.experiment} yet: start one with gnn-encoder submit")
        return
    _show([("created", "state", "took", "name", "run"), *(_row(server, run) for run in found)])


def given(host: str) -> str:
    """The address.

    Raises:
        UserError: none is given.
    """
    if not host:
        raise UserError(f"no server: give --host, or set {HOST}")
    return host


def _needs(cluster: "Cluster") -> list[Sequence[str]]:
    from gnn_encoder.settings.pipeline import TRAINING

    rows: list[Sequence[str]] = [("step", "cpu", "memory", "gpu", "timeout", "retries", "image")]
    for step in TRAINING:
        needs = cluster.needs(step)
        amounts = [
            "-".join(dict.fromkeys(filter(None, (a.request, a.limit)))) if a else "" for a in (needs.cpu, needs.memory)
        ]
        gpu = f"{needs.gpu.count} {needs.gpu.type}" if needs.gpu else ""
        timeout = f"{needs.timeout_seconds} s" if needs.timeout_seconds else ""
        retries = str(needs.retries.count) if needs.retries else ""
        rows.append((step, *amounts, gpu, timeout, retries, cluster.image(step)))
    return rows


def _row(server: "Server", run: "ClusterRun") -> Sequence[str]:
    created = run.created.astimezone().strftime("%Y-%m-%d %H:%M") if run.created else ""
    took = str(run.finished - run.created).partition(".")[0] if run.finished and run.created else ""
    return created, run.state.lower(), took, run.name, server.page(run.run_id)


def _show(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
