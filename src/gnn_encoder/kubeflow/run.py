"""A run on a cluster before the eyes of whoever starts it: sent, told of, followed to its end."""

from collections.abc import Mapping

import typer

from gnn_encoder.errors import UserError
from gnn_encoder.kubeflow.server import Server, follow
from gnn_encoder.kubeflow.submission import ClusterTraining
from gnn_encoder.settings.cluster import Cluster


def start(job: ClusterTraining, server: Server, arguments: Mapping[str, str]) -> str:
    """Submit a training and tell where it is; the run's id.

    Raises:
        UserError: settings do not fit the backbone, or the server refuses.
    """
    name, run_id = job.submit(server, arguments)
    typer.echo(f"submitted  {name}\nrun        {server.page(run_id)}")
    return run_id


def wait(server: Server, run_id: str, cluster: Cluster) -> int:
    """Follow a run and tell how it ended: exit code 0 if it succeeded, 130 if Ctrl-C ended the waiting alone, else 1.

    Raises:
        UserError: the server has not answered for minutes, or lets us in no more. The run goes on.
    """
    try:
        run = follow(server, run_id, typer.echo)
    except KeyboardInterrupt:
        typer.echo(f"\nnobody waits any longer; the run goes on: {server.page(run_id)}", err=True)
        return 130
    except UserError as error:
        raise UserError(f"{error}; the run goes on: {server.page(run_id)}") from None
    lines = {"status": run.state.lower(), "run": server.page(run_id), "artifacts": cluster.pipeline_root}
    lines["mlflow"] = cluster.needs("evaluate").environment.get("MLFLOW_TRACKING_URI", "")
    for name, value in lines.items():
        if value:
            typer.echo(f"{name:<10} {value}")
    for line in run.errors:
        typer.echo(f"error: {line}", err=True)
    return 0 if run.state == "SUCCEEDED" else 1
