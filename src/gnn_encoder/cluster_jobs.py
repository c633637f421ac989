"""What `gnn-encoder submit` asks of a cluster: settings checked for what its pods can reach, a package, arguments."""

from collections.abc import Iterable
from pathlib import Path

from gnn_encoder.data import FOLDERS, open_source
from gnn_encoder.errors import UserError
from gnn_encoder.jobs import check_heads, dataset_override
from gnn_encoder.presets import load_settings
from gnn_encoder.provenance import BACKBONES, step_arguments
from gnn_encoder.settings import STEPS, Settings
from gnn_encoder.settings.cluster import Cluster
from gnn_encoder.storage import is_remote


def settings_for(cluster: Cluster, preset: str, dataset: str | None, overrides: Iterable[str]) -> Settings:
    """A preset's settings, as `jobs.run` takes them, for a run on a cluster. No store and no hub is asked.

    Raises:
        UserError: they are wrong, or name something that lies on this machine alone, or want more
            processes for a training than it gets GPUs.
    """
    settings = load_settings(preset, [*overrides, *dataset_override(dataset)])
    if not is_remote(settings.ingest.dataset) and open_source(settings.ingest).format in FOLDERS:
        _refuse_local(settings.ingest.dataset)
    for step in STEPS:
        values = getattr(settings, step)
        for name in BACKBONES:
            if (model := getattr(values, name, "")) and Path(model).is_dir():
                _refuse_local(model)
        processes, gpu = getattr(values, "processes", 1), cluster.needs(step).gpu
        if gpu and processes > gpu.count:
            raise UserError(f"{step}.processes = {processes}: the cluster file gives the step {gpu.count} GPU(s)")
    return settings


def _refuse_local(path: str) -> None:
    raise UserError(
        f"{path} lies on this machine, where no pod can read it: "
        f"send it with gnn-encoder copy {path} s3://BUCKET/FOLDER and name that"
    )


def pipeline_arguments(settings: Settings, cluster: Cluster) -> dict[str, str]:
    """The pipeline's parameters.

    Raises:
        UserError: the data source or a backbone is not there, or no backbone for what is asked of it.
    """
    check_heads(settings)
    registry = cluster.needs("promote").environment.get("MLFLOW_TRACKING_URI", "")
    return step_arguments(settings, STEPS, registry=registry)
