"""Trainings as TrainJobs of a cluster whose pods are local processes (`kubernetes_api`)."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from kubernetes_api import STEP_POD, KubernetesApi, steps_pod
from safetensors.torch import load_file

from gnn_encoder.engines import elastic, trainer
from gnn_encoder.engines.trainer_requests import TRAINER, Requests
from gnn_encoder.flow.declared import declared
from gnn_encoder.settings.values import StepSettings
from gnn_encoder.storage.transfer import put_files
from gnn_encoder.tracking.context import CHECKPOINTS, TOKENS

REQUESTS = Requests(
    kind="ClusterTrainingRuntime",
    runtime="torch-distributed",
    resources={"limits": {"cpu": "8", "nvidia.com/gpu": "4"}, "requests": {"cpu": "4", "nvidia.com/gpu": "4"}},
)
STORE = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION", "GNN_ENCODER_S3_ADDRESSING")
EPSILON = 1e-4
"""AdamW's ε. Some gradients are zero but for rounding, and a small ε would make whole steps of them."""
LARGER_EPSILON = (
    f"from functools import partial\nimport torch\ntorch.optim.AdamW = partial(torch.optim.AdamW, eps={EPSILON})\n"
)


@contextmanager
def cluster(
    monkeypatch: pytest.MonkeyPatch, folder: Path, root: str, starts: bool = True, **environment: str
) -> Iterator[KubernetesApi]:
    """A cluster of which this process is a step's pod; the pods of a TrainJob have files in `folder` alone."""
    pods = folder / "pods"
    pods.mkdir(parents=True)
    variables = {name: os.environ.get(name, "") for name in STORE}
    variables |= {CHECKPOINTS: root, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{pods}{os.pathsep}{source()}"}
    variables |= {TRAINER: REQUESTS.model_dump_json(), **environment}
    (pods / "sitecustomize.py").write_text(LARGER_EPSILON, "utf-8")
    secret = os.environ.get("AWS_SECRET_ACCESS_KEY", "secret")
    pod = steps_pod(variables, {"AWS_SECRET_ACCESS_KEY": "secret-key"}, pods / "termination-log")
    with KubernetesApi(pod, {"secret-key": secret}, folder, starts, per_pod=(TOKENS, "TMPDIR")) as api:
        monkeypatch.setenv("KUBECONFIG", str(api.config))
        monkeypatch.setenv("KFP_POD_NAME", STEP_POD)
        monkeypatch.setenv(CHECKPOINTS, root)
        monkeypatch.setenv(TRAINER, REQUESTS.model_dump_json())
        monkeypatch.setattr(trainer, "POLL_SECONDS", 0.2)
        yield api


def source() -> Path:
    """The folder that has the package."""
    return Path(elastic.__file__).parents[2]


def stored(inputs: Mapping[str, Path], uri: str) -> dict[str, str]:
    """Puts inputs into a store as KFP's launcher does, without an index; returns their addresses as KFP writes them."""
    for name, path in inputs.items():
        files = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
        put_files(files, f"{uri}/{name}")
    return {name: f"{uri}/{name}".replace("s3://", "minio://") for name in inputs}


def trained(
    step: Any, settings: StepSettings, inputs: Mapping[str, Path], out: Path, addresses: Mapping[str, str] = {}
) -> dict[str, torch.Tensor]:
    """The weights that a step trains in this process or where its settings say."""
    (output,) = declared(step.__name__).outputs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "AdamW", _adam_w)
        step(settings, addresses=addresses, **inputs, **{output: out})
    return weights_of(out)


_ADAM_W = torch.optim.AdamW


def _adam_w(*arguments: Any, **more: Any) -> torch.optim.Optimizer:
    return _ADAM_W(*arguments, **{**more, "eps": EPSILON})


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of an artifact."""
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{file.relative_to(folder)}.{name}": w for file in files for name, w in load_file(file).items()}


def assert_close(several: dict[str, torch.Tensor], alone: dict[str, torch.Tensor]) -> None:
    """The weights of two trainings are equal to 1e-5."""
    assert several.keys() == alone.keys()
    for name, weight in alone.items():
        assert (several[name] - weight).abs().max() < 1e-5, name


ROOT = "s3://bucket/checkpoints"
