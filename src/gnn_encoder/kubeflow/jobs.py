"""What `gnn-encoder submit` and `retrain` ask of a cluster: settings checked for what its pods can reach, arguments, a
package that is sent.
"""

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gnn_encoder.data import FOLDERS, open_source
from gnn_encoder.errors import UserError
from gnn_encoder.jobs import check_heads, dataset_override, dated
from gnn_encoder.kubeflow.package import write_package
from gnn_encoder.presets import load_settings
from gnn_encoder.provenance import BACKBONES, step_arguments
from gnn_encoder.registry import Registry, open_registry
from gnn_encoder.settings import PIPELINES, Settings
from gnn_encoder.settings.cluster import Cluster
from gnn_encoder.storage import is_remote

if TYPE_CHECKING:
    from gnn_encoder.kubeflow.server import Server

STORE = "MLFLOW_TRACKING_URI"


@dataclass(frozen=True)
class ClusterTraining:
    """A training pipeline that may run on a cluster: settings checked."""

    preset: str
    settings: Settings
    cluster: Cluster

    def models(self) -> Registry:
        """Where its versions are registered: in the MLflow that `promote` uses there, else in this environment's.

        Raises:
            UserError: neither is named, or it cannot be used.
        """
        uri = self._store or os.environ.get(STORE)
        if not uri:
            raise UserError(
                f"no MLflow whose champion could be compared: name {STORE} in the cluster file, under "
                "defaults.environment, or set it here"
            )
        return open_registry(uri, self.settings.promote.model_name)

    def arguments(self, registry: str = "") -> dict[str, str]:
        """What its steps are called with; for `registry` see `jobs.Training`.

        Raises:
            UserError: the data source or a backbone is not there.
        """
        return step_arguments(self.settings, PIPELINES["train"], registry=f"{self._store} {registry}".strip())

    def submit(self, server: "Server", arguments: Mapping[str, str]) -> tuple[str, str]:
        """Start a run; its name and its id.

        Raises:
            UserError: settings do not fit the backbone, or the server refuses.
        """
        check_heads(self.settings)
        name = dated(Path(self.preset).stem)
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "pipeline.yaml"
            write_package(self.cluster, package)
            return name, server.submit(package, arguments, self.cluster, name)

    @property
    def _store(self) -> str:
        return self.cluster.needs("promote").environment.get(STORE, "")


def training(cluster: Cluster, preset: str, dataset: str | None, overrides: Iterable[str]) -> ClusterTraining:
    """The training pipeline of a preset, as `jobs.training` takes it, on a cluster. No store and no hub is asked.

    Raises:
        UserError: settings are wrong, or name something that lies on this machine alone, or want more
            processes for a training than it gets GPUs.
    """
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
    return ClusterTraining(preset, settings, cluster)


def _refuse_local(path: str) -> None:
    raise UserError(
        f"{path} lies on this machine, where no pod can read it: "
        f"send it with gnn-encoder copy {path} s3://BUCKET/FOLDER and name that"
    )
