"""The cluster file: where a run's images and artifacts are, and what each step requests from its node.

`pipelines/clusters/example.yaml` shows every key. A step's section overrides `defaults`: mappings are merged key by
key, any other value replaces the default. Quantities have Kubernetes' form: `500m`, `4`, `16Gi`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Field

from gnn_encoder.flow.declared import declared, step_names
from gnn_encoder.kubeflow.kubernetes_values import Count, Name, Positive, Section
from gnn_encoder.kubeflow.step_needs import StepNeeds
from gnn_encoder.settings.shared import OnNodes
from gnn_encoder.settings.values import known_names


def trainings() -> tuple[str, ...]:
    """Returns the steps whose training several nodes can share (`OnNodes`)."""
    return tuple(step for step in step_names() if issubclass(declared(step).settings, OnNodes))


POD_GROUP = "kueue.x-k8s.io/pod-group-name"
"""Label of pods that Kueue admits together."""


class Images(Section):
    """Images of the steps, each with registry and tag."""

    cpu: str = ""
    gpu: str = ""
    """Image of the steps that request GPUs. Empty: the same as `cpu`."""
    pull_secrets: tuple[Name, ...] = ()
    """Names of Kubernetes secrets with the credentials of a registry."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """None: Kubernetes' default, which is `Always` for the tag `latest` and `IfNotPresent` for other tags."""


Life = Annotated[Count, Field(ge=60)]
"""At least a minute: if Argo deletes the workflow before KFP has read how it ended, KFP shows the run as running."""


class TimeToLive(Section):
    """Seconds until Argo deletes an ended run's workflow and pods, with the pods' logs. KFP keeps the run's record.

    KFP deletes them a day after the end in any case, so a longer time has no effect, unless KFP's administrator sets
    another time (`TTL_SECONDS_AFTER_WORKFLOW_FINISH` of its persistence agent).
    """

    ended: Life | None = None
    """For every end that has no number of its own."""
    succeeded: Life | None = None
    failed: Life | None = None


class Trainer(Section):
    """Kubeflow Trainer, whose TrainJob has the pods of a training with several nodes."""

    runtime: Name = "torch-distributed"
    """Name of a runtime for torch."""
    kind: Literal["ClusterTrainingRuntime", "TrainingRuntime"] = "ClusterTrainingRuntime"


class Cluster(Section):
    """A cluster file."""

    images: Images = Images()
    pipeline_root: Annotated[str, Field(pattern="^$|^(s3|gs|minio)://.")] = ""
    """Where artifacts are written. Empty: the server's default."""
    namespace: str = ""
    """The user's namespace, on a server with several users."""
    experiment: str = "gnn-encoder"
    service_account: str = ""
    """Service account of the steps. Empty: the server's default."""
    caching: bool = True
    """Reuse the outputs of steps of earlier runs."""
    deadline_seconds: Positive | None = None
    """Time limit of a run, with waits for nodes and queues; then Argo stops the run, which has failed."""
    ttl_seconds: Annotated[
        TimeToLive,
        BeforeValidator(lambda value: value if isinstance(value, Mapping | TimeToLive) else {"ended": value}),
    ] = TimeToLive()
    trainer: Trainer | None = None
    """None: every training has one pod."""
    defaults: StepNeeds = StepNeeds()
    steps: dict[str, StepNeeds] = Field(default={})

    def _problems(self) -> Iterator[str]:
        if self.trainer and self.pipeline_root.startswith("gs://"):
            yield "trainer: the pods of a TrainJob read s3:// and minio:// addresses, not a pipeline_root at gs://"
        for step in trainings() if self.trainer else ():
            if POD_GROUP in {*self.defaults.labels, *self.steps.get(step, StepNeeds()).labels}:
                yield f"trainer: {step} has the label {POD_GROUP}, but its pod is the only one: delete the label"
        for step in self.steps:
            if step not in step_names():
                yield f"unknown step {step!r}: {known_names(step, step_names())}"
            try:
                self.needs(step)
            except pydantic.ValidationError as error:
                problem = error.errors()[0]["msg"].removeprefix("Value error, ")
                yield f"steps.{step} with defaults: {problem}"

    def needs(self, step: str) -> StepNeeds:
        """Returns the defaults, overridden by the step's own section."""
        sections = (self.defaults, self.steps.get(step, StepNeeds()))
        return StepNeeds.model_validate(_laid_over(*(section.model_dump(exclude_unset=True) for section in sections)))

    def image(self, step: str) -> str:
        """Returns the image of a step, or an empty text if the file names none."""
        return self.images.gpu or self.images.cpu if self.needs(step).gpu else self.images.cpu


def _laid_over(base: Any, over: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    return {**base, **{key: _laid_over(base.get(key), value) for key, value in over.items()}}
