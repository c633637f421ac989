"""What a step's pod is told about its TrainJob, and what KFP and Argo have in every pod of a step."""

import os
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from gnn_encoder.errors import UserError

TRAINER = "GNN_ENCODER_TRAINER"
"""Environment variable of the step's pod: `Requests` in JSON."""
KFP_MOUNTS = ("/gcs", "/minio", "/s3", "/kfp-launcher", "/.local", "/.cache", "/.config")
"""Paths in every step's container where KFP mounts its own volumes."""
RESERVED = ("pipeline/", "pipelines.kubeflow.org/", "workflows.argoproj.io/")
"""Beginnings of the labels and annotations that KFP and Argo set on every pod of a step."""
ISTIO = "sidecar.istio.io/inject"
"""An annotation that KFP sets on every pod of a step; as a label it is free."""


class Requests(BaseModel):
    """The runtime of Kubeflow Trainer that a TrainJob uses, and what each of its pods requests."""

    kind: str
    runtime: str
    resources: dict[str, dict[str, Any]]
    """`limits` and `requests` in Kubernetes' form."""

    @classmethod
    def read(cls) -> Self:
        """Returns the requests in the environment; raises UserError without them."""
        try:
            return cls.model_validate_json(os.environ.get(TRAINER, ""))
        except ValidationError:
            raise UserError(
                f"a training over several nodes needs {TRAINER}, which a package with nodes sets: compile it again, "
                "with trainer in the cluster file"
            ) from None
