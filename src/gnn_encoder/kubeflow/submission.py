"""Runs a pipeline on a cluster, once or repeatedly: checks settings, starts a run, waits for it, explains failures."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from gnn_encoder.data import FOLDERS, open_source
from gnn_encoder.data.document_folder import DocumentFolder
from gnn_encoder.engines.pipelines import check_heads, dataset_override, dated
from gnn_encoder.engines.provenance import BACKBONES, graph_arguments
from gnn_encoder.engines.reranking import reranking_settings
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import ORIGIN, StepArguments
from gnn_encoder.flow.graph import Given, Graph
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.cluster_run import DRIVER, ClusterRun
from gnn_encoder.kubeflow.components import step_of_task
from gnn_encoder.kubeflow.package import package
from gnn_encoder.kubeflow.schedule import Schedule
from gnn_encoder.kubeflow.server import Server, follow
from gnn_encoder.models.check import check_models
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.pipelines.rerank import rerank
from gnn_encoder.pipelines.train import train
from gnn_encoder.promotion.registry import Registry, open_registry
from gnn_encoder.settings.first_stage import BM25, POOL
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.reranking import MADE_WORD_VECTORS
from gnn_encoder.settings.written import NO_FOLDERS
from gnn_encoder.storage.s3 import SCHEME, is_remote
from gnn_encoder.tracking.context import CHECKPOINTS

STORE = "MLFLOW_TRACKING_URI"


@dataclass(frozen=True)
class ClusterJob:
    """A pipeline for a cluster, with checked settings."""

    title: str
    """In the names of its runs."""
    settings: Settings
    graph: Graph
    cluster: Cluster

    def models(self) -> Registry:
        """Returns the model's registry, in the MLflow that `promote` uses on the cluster."""
        # Only the pod knows an address in a secret or a config map, so this environment must name the same address.
        uri = _store(self.cluster) or os.environ.get(STORE)
        if not uri or STORE not in self.cluster.needs("promote").variables:
            raise UserError(
                f"no MLflow that the run's steps and this command share: name {STORE} in the cluster file under "
                "defaults.environment; if the steps get it from a secret or a config map, set it here too"
            )
        return open_registry(uri, self.settings.promote.model_name)

    def arguments(self, registry: str = "") -> dict[str, StepArguments]:
        """Returns the arguments of the calls; for `registry` see `engines.pipelines.LocalJob`."""
        return graph_arguments(self.graph, registry=f"{_store(self.cluster)} {registry}".strip())

    def start(self, server: Server, arguments: Mapping[str, StepArguments]) -> str:
        """Submits the pipeline and prints the run's page; returns the run's id."""
        self._check_models()
        name = dated(self.title)
        run_id = server.submit(package(self.graph, arguments, self.cluster), self.cluster, name)
        typer.echo(f"submitted  {name}\nrun        {server.page(run_id)}")
        return run_id

    def schedule(self, server: Server, schedule: Schedule) -> None:
        """Creates a recurring run and prints its page. KFP's cache is off in its runs, whatever the cluster file says.

        All its runs have the arguments of today. The cache compares arguments, not data, so it would take every step
        from the first run, although the data may have changed. And `promote` would tag each version with today's digest
        of the data, so this digest is left out; then `retrain` cannot know what the version was trained on, and trains.
        """
        self._check_models()
        arguments = self.arguments()
        for node in self.graph.of("promote"):
            arguments[node.title].source_digests.pop(ORIGIN[0])
        uncached = self.cluster.model_copy(update={"caching": False})
        number = server.schedule(package(self.graph, arguments, uncached), uncached, schedule)
        typer.echo(f"scheduled  {schedule.name}\npage       {server.page(number, 'recurringrun')}")

    def _check_models(self) -> None:
        check_models(self.graph.nodes)
        if self.graph.of("train_gnn"):
            check_heads(self.settings)


def training(
    cluster: Cluster, preset: str, dataset: str | None, overrides: Iterable[str], until: str = ""
) -> ClusterJob:
    """Returns the training pipeline of a preset for a cluster; for this machine see `engines.pipelines.training`.

    until: the highest rung, if the run has the rungs below it, each with a result of its own.

    Raises UserError for a step without an image, a setting that names a folder of this machine, a training with more
    processes than GPUs, and a bundle that later runs cannot read. No request is sent to a store or a hub.
    """
    settings = load_settings(preset, [*overrides, *dataset_override(dataset)])
    graph = ladder(settings, until) if until else train(settings)
    _check(settings, graph, cluster)
    return ClusterJob(Path(preset).stem, settings, graph, cluster)


def reranking(
    cluster: Cluster,
    preset: str,
    dataset: str | None,
    overrides: Iterable[str],
    systems: Sequence[str],
    first_stage: str | None,
) -> ClusterJob:
    """Returns the re-ranking pipeline of a preset and some systems for a cluster; the last one is the headline's.

    Raises UserError as `training`, and for a first stage or word vectors on this machine.
    """
    settings = reranking_settings(preset, dataset, overrides, first_stage)
    bundle = settings.first_stage.bundle
    graph = rerank(settings, systems, bundle=Given(bundle) if bundle else None)
    _check(settings, graph, cluster)
    return ClusterJob(f"rerank-{Path(preset).stem}", settings, graph, cluster)


def _store(cluster: Cluster) -> str:
    """Returns the address of the MLflow of `promote`; empty if the cluster file does not say it."""
    return cluster.needs("promote").environment.get(STORE, "")


def _check(settings: Settings, graph: Graph, cluster: Cluster) -> None:
    """Raises UserError for a step without an image, what no pod can read, too many processes for the GPUs, nodes
    without Kubeflow Trainer or a common store, and a bundle that no later run can read."""
    if unnamed := next((node.step for node in graph.nodes if not cluster.image(node.step)), ""):
        raise UserError(
            f"no image for {unnamed}: name one that the cluster can pull in the cluster file under images.cpu, as "
            "registry.example.com/gnn-encoder-python:0.1.0"
        )
    local = []
    in_folders = (*FOLDERS, DocumentFolder.format)
    if not is_remote(settings.ingest.dataset) and open_source(settings.ingest).format in in_folders:
        local.append(settings.ingest.dataset)
    files = {"ingest": ("labels", "log", "forgotten"), "encode": ("vectors",), "write_queries": ("prompts", "examples")}
    for step, name in ((step, name) for step, names in files.items() for name in names):
        if file := getattr(getattr(settings, step), name):
            how = f"leave {step}.{name} out, or run here"
            raise UserError(f"{file} lies on this machine, where no pod can read it: {how}")
    for step, values in ((node.step, node.settings) for node in graph.nodes):
        models = [model for name in BACKBONES if (model := getattr(values, name, "")) not in ("", *NO_FOLDERS)]
        local += [model for model in models if Path(model).is_dir()]
        named = (
            getattr(values, "bundle", "") or getattr(values, "source", ""),
            getattr(values, "word_vectors", ""),
            getattr(values, "previous", ""),
        )
        local += [name for name in named if not is_remote(name) and name not in ("", BM25, POOL, *MADE_WORD_VECTORS)]
        processes, gpu = getattr(values, "processes", 1), cluster.needs(step).gpu
        if gpu and processes != "auto" and processes > gpu.count:
            raise UserError(f"{step}.processes = {processes}: the cluster file gives the step {gpu.count} GPU(s)")
        nodes = getattr(values, "nodes", 1)
        if nodes > 1 and not cluster.trainer:
            raise UserError(
                f"{step}.nodes = {nodes}: Kubeflow Trainer starts the nodes: set trainer in the cluster file, or "
                f"{step}.processes instead"
            )
        needs = cluster.needs(step)
        where = needs.environment.get(CHECKPOINTS, "" if CHECKPOINTS not in needs.variables else SCHEME)
        if nodes > 1 and not is_remote(where):
            raise UserError(
                f"{step}.nodes = {nodes}: the pods of a TrainJob read and write beside the checkpoints: name an "
                f"s3:// address in the cluster file under defaults.environment.{CHECKPOINTS}"
            )
    if local:
        how = "put it into an object store and name its s3:// address"
        if Path(local[0]).is_dir():
            how = f"send it with gnn-encoder copy {local[0]} s3://BUCKET/FOLDER and name that"
        raise UserError(f"{local[0]} lies on this machine, where no pod can read it: {how}")
    readable_later = settings.promote.bundle_store or is_remote(cluster.pipeline_root)
    if graph.of("promote") and STORE in cluster.needs("promote").variables and not readable_later:
        raise UserError(
            "promote would register a bundle that no later run can read for comparison: "
            "add --set promote.bundle_store=s3://BUCKET/FOLDER, or name an s3:// pipeline_root in the cluster file"
        )


def wait(server: Server, run_id: str, cluster: Cluster) -> int:
    """Follows a run and prints its end; returns 0 for success, 130 after Ctrl-C (the run continues), else 1."""
    try:
        run = follow(server, run_id, typer.echo)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped waiting; the run goes on: {server.page(run_id)}", err=True)
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
    """Yields a line per failure in a run. KFP does not send the cause, so a line names the pod's log."""
    if run.error:
        yield run.error
    if run.terminated:
        yield "somebody terminated the run"
        return
    for task, pod in run.failed.items():
        step = task.removesuffix(DRIVER)
        what = step
        if task.endswith(DRIVER):
            of = f"{step}, which prepares its pod," if step_of_task(step) else "an importer"
            what = f"KFP's driver of {'the run' if step == 'root' else of}"
        where = f"kubectl logs -n {namespace} {pod} -c main"
        if not pod:
            where = f"kubectl get pods -n {namespace} -l pipeline/runid={run.run_id}, then kubectl logs"
        yield f"{what} failed; why is in its log: {where}"
    if not (run.error or run.failed):
        yield f"no step failed; see kubectl describe workflows -n {namespace} -l pipeline/runid={run.run_id}"
