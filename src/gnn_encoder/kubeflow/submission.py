"""What `gnn-encoder submit` and `retrain` ask of a cluster: settings that its pods can use, arguments, a package."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from gnn_encoder.data import FOLDERS, open_source
from gnn_encoder.errors import UserError
from gnn_encoder.kubeflow.package import package
from gnn_encoder.kubeflow.server import DRIVER, ClusterRun, Server, follow
from gnn_encoder.promotion.registry import Registry, open_registry
from gnn_encoder.runs.pipelines import check_heads, dataset_override, dated
from gnn_encoder.runs.provenance import BACKBONES, step_arguments
from gnn_encoder.settings.cluster import Cluster
from gnn_encoder.settings.pipeline import PIPELINES, TRAINING, Settings
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.storage import is_remote

STORE = "MLFLOW_TRACKING_URI"


@dataclass(frozen=True)
class ClusterTraining:
    """A training pipeline that may run on a cluster: settings checked."""

    preset: str
    settings: Settings
    cluster: Cluster

    def models(self) -> Registry:
        """Where its versions are registered: in the MLflow that `promote` uses there.

        Raises:
            UserError: the cluster file names none for it, or it cannot be used.
        """
        # From a secret or a config map only the pod knows it. Then this environment has to name the same.
        uri = self._store or os.environ.get(STORE)
        if not uri or STORE not in self.cluster.needs("promote").variables:
            raise UserError(
                f"no MLflow that the run's steps and this command share: name {STORE} in the cluster file under "
                "defaults.environment; where the steps get it from a secret or a config map, set it here too"
            )
        return open_registry(uri, self.settings.promote.model_name)

    def arguments(self, registry: str = "") -> dict[str, str]:
        """What its steps are called with; for `registry` see `runs.pipelines.Training`.

        Raises:
            UserError: the data source or a backbone is not there.
        """
        return step_arguments(self.settings, PIPELINES["train"], registry=f"{self._store} {registry}".strip())

    def submit(self, server: Server, arguments: Mapping[str, str]) -> tuple[str, str]:
        """Start a run; its name and its id.

        Raises:
            UserError: settings do not fit the backbone, or the server refuses.
        """
        check_heads(self.settings)
        name = dated(Path(self.preset).stem)
        return name, server.submit(package(self.cluster), arguments, self.cluster, name)

    @property
    def _store(self) -> str:
        return self.cluster.needs("promote").environment.get(STORE, "")


def training(cluster: Cluster, preset: str, dataset: str | None, overrides: Iterable[str]) -> ClusterTraining:
    """The training pipeline of a preset for a cluster, as `runs.pipelines.training` is for this machine.

    No store and no hub is asked.

    Raises:
        UserError: a step has no image, or settings are wrong, or name something that lies on this machine alone, or
            want more processes for a training than it gets GPUs, or registered bundles would be out of later runs'
            reach.
    """
    if unnamed := next((step for step in TRAINING if not cluster.image(step)), ""):
        raise UserError(
            f"no image for {unnamed}: name one that the cluster can pull in the cluster file under images.cpu, as "
            "registry.example.com/gnn-encoder-python:0.1.0"
        )
    settings = load_settings(preset, [*overrides, *dataset_override(dataset)])
    if not is_remote(settings.ingest.dataset) and open_source(settings.ingest).format in FOLDERS:
        _refuse_local(settings.ingest.dataset)
    for step in PIPELINES["train"]:
        values = getattr(settings, step)
        for name in BACKBONES:
            if (model := getattr(values, name, "")) and Path(model).is_dir():
                _refuse_local(model)
        processes, gpu = getattr(values, "processes", 1), cluster.needs(step).gpu
        if gpu and processes > gpu.count:
            raise UserError(f"{step}.processes = {processes}: the cluster file gives the step {gpu.count} GPU(s)")
    if not (settings.promote.bundle_store or is_remote(cluster.pipeline_root)) and _registers(cluster):
        raise UserError(
            "promote would register a bundle that no later run can read, so that no model could be compared with it: "
            "add --set promote.bundle_store=s3://BUCKET/FOLDER, or name an s3:// pipeline_root in the cluster file"
        )
    return ClusterTraining(preset, settings, cluster)


def _registers(cluster: Cluster) -> bool:
    """Whether `promote` has a registry there: its address may also be in a secret or a config map."""
    needs = cluster.needs("promote")
    objects = (*needs.secrets.values(), *needs.config_maps.values())
    return STORE in {*needs.environment, *(variable for keys in objects for variable in keys.values())}


def _refuse_local(path: str) -> None:
    raise UserError(
        f"{path} lies on this machine, where no pod can read it: "
        f"send it with gnn-encoder copy {path} s3://BUCKET/FOLDER and name that"
    )


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


def _reasons(run: ClusterRun, namespace: str) -> Iterator[str]:
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
