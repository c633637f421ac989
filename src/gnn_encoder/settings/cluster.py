"""A Kubeflow cluster: where a run's images and artifacts lie there, and what each step asks of its node.

`pipelines/clusters/example.yaml` shows every key. What a step says is laid over `defaults`: mappings key by
key, anything else in its place. Quantities are Kubernetes': `500m`, `4`, `16Gi`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Field

from gnn_encoder.errors import without_password
from gnn_encoder.settings.pipeline import PIPELINES
from gnn_encoder.settings.shared import Checked, Count, PositiveInt, known_names

SECRET_WORDS = frozenset(
    ("APIKEY", "CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE", "PASSWD", "PASSWORD", "PWD", "SECRET", "TOKEN")
)
"""Words that a secret variable's name has one of."""
SECRET_VALUES = re.compile(r"AKIA[0-9A-Z]{16}|-----BEGIN|^(Bearer|Basic) |^gh[pousr]_|^hf_\w{20}|^eyJ\w+\.")
QUANTITY = re.compile(r"\+?(?=\.?[0-9])[0-9]{0,19}(\.[0-9]{0,19})?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?")
"""Kubernetes' grammar. `parse_quantity` takes what Decimal takes, NaN and `1_0` too."""
KFP_MOUNTS = ("/gcs", "/minio", "/s3", "/kfp-launcher", "/.local", "/.cache", "/.config")
"""Where KFP mounts volumes of its own in every step's container."""


def _quantity(value: Any) -> str:
    from kubernetes.utils.quantity import parse_quantity

    if isinstance(value, bool) or not QUANTITY.fullmatch(str(value)) or parse_quantity(str(value)) <= 0:
        raise ValueError("must be a quantity above 0, as 500m, 4 or 16Gi")
    return str(value)


def _text(value: Any) -> Any:
    """YAML's numbers and booleans as the texts that Kubernetes wants."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


Quantity = Annotated[str, BeforeValidator(_quantity)]
Text = Annotated[str, BeforeValidator(_text)]


class Section(Checked):
    """A part of the cluster file: an unknown key is refused with the known ones."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, given: Any) -> Any:
        for name in given if isinstance(given, Mapping) else ():
            if name not in cls.model_fields:
                raise ValueError(f"unknown key {name!r}: {known_names(name, cls.model_fields)}")
        return given


class Amount(Section):
    """What the scheduler sets aside for a step, and what it may not exceed."""

    request: Quantity | None = None
    limit: Quantity | None = None

    @pydantic.model_validator(mode="after")
    def _request_within_limit(self) -> "Amount":
        from kubernetes.utils.quantity import parse_quantity

        if self.request and self.limit and parse_quantity(self.request) > parse_quantity(self.limit):
            raise ValueError(f"request {self.request} is more than limit {self.limit}")
        return self


Requested = Annotated[
    Amount,
    BeforeValidator(lambda given: given if isinstance(given, Mapping | Amount) else {"request": given, "limit": given}),
]
"""One quantity is both."""


class Gpu(Section):
    """GPUs of a step."""

    count: PositiveInt = 1
    type: str = "nvidia.com/gpu"
    """The device plugin's name for them."""


class Toleration(Section):
    """A taint that a step's node may have."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: Text = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """None: every effect."""
    seconds: Count | None = None
    """How long a NoExecute taint is borne. None: for ever."""

    @pydantic.model_validator(mode="after")
    def _as_kubernetes_has_it(self) -> "Toleration":
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists takes no value")
        if not self.key and self.operator != "Exists":
            raise ValueError("without a key the operator must be Exists")
        return self


class Requirement(Section):
    """A condition on a node's label."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    values: tuple[Text, ...] = ()


class Affinity(Section):
    """Nodes that meet all of `match` are preferred by `weight`; without one, nodes must."""

    match: Annotated[tuple[Requirement, ...], Field(min_length=1)]
    weight: Annotated[int, Field(ge=1, le=100, strict=True)] | None = None


class Volume(Section):
    """A volume claim or a config map that exists, or room of the step's own that goes with its pod."""

    mount: Annotated[str, Field(pattern="^/")]
    claim: str = ""
    config_map: str = ""
    """Its keys are files, such as the certificate of a private authority."""
    sub_path: str = ""
    size: Quantity | None = None
    medium: Literal["Memory"] | None = None
    storage_class: str = ""
    """Of a volume made for the pod; without one the room is on the node's disk, or in its memory."""

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> "Volume":
        there = (self.claim, self.config_map)
        if sum(map(bool, (*there, self.size))) != 1:
            raise ValueError("give claim or config_map (which exist) or size (room of the step's own)")
        if (self.sub_path and not self.claim) or sum(map(bool, (*there, self.medium, self.storage_class))) > 1:
            raise ValueError("sub_path goes with claim, and medium or storage_class with size")
        if self.mount in KFP_MOUNTS:
            raise ValueError(f"mount {self.mount} is KFP's own: choose another")
        return self


class Retries(Section):
    """How often a failed step is tried again, and after what pauses."""

    count: Count
    backoff_seconds: Count = 0
    """The first pause."""
    factor: PositiveInt = 2
    """By which each pause is longer than the one before. Argo, which runs the steps, takes whole numbers only."""
    within_seconds: PositiveInt = 7 * 24 * 3600
    """All attempts together. Argo ends a step that is still at it then, and KFP's own hour is less than a training."""


class StepNeeds(Section):
    """What a step asks of the cluster."""

    cpu: Requested | None = None
    memory: Requested | None = None
    ephemeral_storage: Quantity | None = None
    """Room at /tmp on the node's disk. A pod that takes more is evicted. KFP 2.17 cannot ask the scheduler for it."""
    gpu: Gpu | None = None
    node_selector: dict[str, Text] = Field(default={})
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[Affinity, ...] = ()
    timeout_seconds: PositiveInt | None = None
    """Of one attempt, its wait for a node not counted."""
    retries: Retries | None = None
    environment: dict[str, Text] = Field(default={})
    secrets: dict[str, dict[str, str]] = Field(default={})
    """Secret → its key → environment variable."""
    config_maps: dict[str, dict[str, str]] = Field(default={})
    volumes: tuple[Volume, ...] = ()

    @pydantic.field_validator("environment")
    @classmethod
    def _nothing_secret(cls, given: dict[str, str]) -> dict[str, str]:
        for name, value in given.items():
            words = set(name.upper().split("_"))
            named = SECRET_WORDS & words and not {"FILE", "PATH"} & words
            if named or SECRET_VALUES.search(value) or without_password(value) != value:
                raise ValueError(
                    f"{name} looks like a secret, which everybody could read in the run: "
                    "put it into a Kubernetes secret and name that under secrets"
                )
        return given

    @pydantic.model_validator(mode="after")
    def _retries_outlast_an_attempt(self) -> "StepNeeds":
        if self.retries and self.timeout_seconds and self.retries.within_seconds <= self.timeout_seconds:
            raise ValueError(
                f"retries.within_seconds ({self.retries.within_seconds}) holds for all attempts together and must be "
                f"more than timeout_seconds ({self.timeout_seconds}), or the first would be the last"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _one_volume_to_a_mount(self) -> "StepNeeds":
        mounts = [volume.mount for volume in self.volumes] + ["/tmp"] * bool(self.ephemeral_storage)
        for mount in mounts:
            if mounts.count(mount) > 1:
                raise ValueError(f"two volumes at {mount} (ephemeral_storage lies at /tmp)")
        return self


class Images(Section):
    """What the steps run in, each a name with its registry and tag."""

    cpu: str = ""
    """Empty: the name in the compiled pipeline, which no registry has."""
    gpu: str = ""
    """Of the steps that ask for GPUs. Empty: as `cpu`."""


class Cluster(Section):
    """A cluster file."""

    images: Images = Images()
    pipeline_root: Annotated[str, Field(pattern="^$|^(s3|gs|minio)://.")] = ""
    """Where artifacts lie. Empty: the server's own default."""
    namespace: str = ""
    """The user's, where the server has several users."""
    experiment: str = "gnn-encoder"
    service_account: str = ""
    """That the steps run as. Empty: the server's default."""
    caching: bool = True
    """Reuse what steps made in earlier runs."""
    defaults: StepNeeds = StepNeeds()
    steps: dict[str, StepNeeds] = Field(default={})

    @pydantic.model_validator(mode="after")
    def _every_step_is_known_and_whole(self) -> "Cluster":
        for step in self.steps:
            if step not in PIPELINES["train"]:
                raise ValueError(f"unknown step {step!r}: {known_names(step, PIPELINES['train'])}")
            try:
                self.needs(step)
            except pydantic.ValidationError as error:  # what the defaults and the step say together
                told = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"steps.{step} with defaults: {told}") from None
        return self

    def needs(self, step: str) -> StepNeeds:
        """What a step asks for: the defaults, and what the file says of it laid over them."""
        own = self.steps.get(step, StepNeeds())
        whole = _laid_over(self.defaults.model_dump(exclude_unset=True), own.model_dump(exclude_unset=True))
        return StepNeeds.model_validate(whole)

    def image(self, step: str) -> str:
        """A step's image, empty for the compiled pipeline's."""
        return self.images.gpu or self.images.cpu if self.needs(step).gpu else self.images.cpu


def _laid_over(base: Any, over: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    return {**base, **{key: _laid_over(base.get(key), value) for key, value in over.items()}}
