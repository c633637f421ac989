"""A run on a cluster as its user sees it: started, followed, and at its end explained."""

from collections.abc import Iterator, Mapping

import typer

from gnn_encoder.errors import UserError
from gnn_encoder.kubeflow.server import DRIVER, Run, Server, follow
from gnn_encoder.kubeflow.submission import ClusterTraining
from gnn_encoder.settings.cluster import Cluster


def start(job: ClusterTraining, server: Server, arguments: Mapping[str, str]) -> str:
    """Submit a training, print where it is, and return the run's id.

    Raises:
        UserError: settings do not fit the backbone, or the server refuses.
    """
    name, run_id = job.submit(server, arguments)
    typer.echo(f"submitted  {name}\nrun        {server.page(run_id)}")
    return run_id


def wait(server: Server, run_id: str, cluster: Cluster) -> int:
    """Follow a run and print how it ended: exit code 0 if it succeeded, 130 if Ctrl-C ended the waiting alone, else 1.

    Raises:
        UserError: the server has not answered for minutes, or no longer lets us in. The run goes on.
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
    if run.state == "SUCCEEDED":
        return 0
    for line in _reasons(run, cluster.namespace or "kubeflow"):
        typer.echo(f"error: {line}", err=True)
    return 1


def _reasons(run: Run, namespace: str) -> Iterator[str]:
    """Why a run failed, a line each, as far as KFP tells: it names what failed, and the pod's log says why."""
    if run.error:
        yield run.error
    if run.terminated:
        yield "somebody terminated the run"
        return
    for task, pod in run.failed.items():
        step = task.removesuffix(DRIVER).replace("-", "_")
        what = step
        if task.endswith(DRIVER):
            what = f"KFP's driver of {'the run' if step == 'root' else f'{step}, which prepares its pod,'}"
        where = f"kubectl logs -n {namespace} {pod} -c main"
        if not pod:
            where = f"kubectl get pods -n {namespace} -l pipeline/runid={run.run_id}, then kubectl logs"
        yield f"{what} failed; why is in its log: {where}"
    if not (run.error or run.failed):
        yield f"no step failed; see kubectl describe workflows -n {namespace} -l pipeline/runid={run.run_id}"
