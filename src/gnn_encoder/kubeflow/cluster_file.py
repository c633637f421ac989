"""Reading a cluster file. Whatever is wrong is one line that names the key, and never the value: it may be a secret."""

from pathlib import Path

import pydantic

from gnn_encoder.errors import UserError
from gnn_encoder.settings.cluster import Cluster
from gnn_encoder.settings.presets import read_yaml_file


def load_cluster(path: Path | None) -> Cluster:
    """What a cluster file says; without one, the server's and Kubernetes' own defaults.

    Raises:
        UserError: there is no such file, or a key, type or value in it is wrong.
    """
    if path is None:
        return Cluster()
    if not path.is_file():
        raise UserError(f"no cluster file {path}: copy pipelines/clusters/example.yaml and change it")
    try:
        return Cluster.model_validate(read_yaml_file(path))
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        told = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{path}: {f'{key}: ' if key else ''}{told}{more}") from None
