"""A Kubeflow cluster: where a run's images and artifacts lie there, and what each step asks of its node.

`pipelines/clusters/example.yaml` shows every key. A step's section is laid over `defaults`: mappings key by key,
anything else replaces the default. Quantities are Kubernetes': `500m`, `4`, `16Gi`. Kubernetes checks its rules when
it creates a pod; they are checked here, before the run starts. No library does it: the Kubernetes client's models
(version 30) take an operator `Foo`, a weight of 101 and a CPU request of `x`, and KFP's messages check types alone.
"""

import posixpath
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field

from gnn_encoder.errors import without_password
from gnn_encoder.settings.pipeline import TRAINING
from gnn_encoder.settings.values import Checked, known_names

SECRET_WORDS = frozenset(
    ("APIKEY", "CREDENTIAL", "CREDENTIALS", "KEY", "PASSPHRASE", "PASSWD", "PASSWORD", "PWD", "SECRET", "TOKEN")
)
"""The name of a secret variable has one of these words."""
SECRET_VALUES = re.compile(r"AKIA[0-9A-Z]{16}|-----BEGIN|^(Bearer|Basic) |^gh[pousr]_|^hf_\w{20}|^eyJ\w+\.")
QUANTITY = re.compile(r"\+?(?=\.?[0-9])[0-9]{0,19}(\.[0-9]{0,19})?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?")
"""Kubernetes' grammar. `parse_quantity` takes what Decimal takes, NaN and `1_0` too."""
KFP_MOUNTS = ("/gcs", "/minio", "/s3", "/kfp-launcher", "/.local", "/.cache", "/.config")
"""Where KFP mounts volumes of its own in every step's container."""
QUANTITY = re.compile(r"(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,2}|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)


def _quantity(value: Any) -> str:
    from kubernetes.utils.quantity import parse_quantity

    # The client's parser takes NaN and infinity.
    if isinstance(value, bool) or not QUANTITY.fullmatch(str(value)) or parse_quantity(str(value)) <= 0:
        raise ValueError("must be a quantity above 0, as 500m, 4 or 16Gi")
    return str(value)


def _text(value: Any) -> Any:
    """YAML's numbers and booleans as the texts that Kubernetes wants."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _plain_path(path: str) -> str:
    """The path without `//`, `..` and a slash at its end, which would hide that two mounts are one."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _repeated(names: list[str]) -> str:
    return next((name for name in names if names.count(name) > 1), "")


Quantity = Annotated[str, BeforeValidator(_quantity)]
Text = Annotated[str, BeforeValidator(_text)]
Count = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
Positive = Annotated[Count, Field(ge=1)]
LABEL = "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
LabelKey = Annotated[str, Field(pattern=f"^([a-z0-9][-a-z0-9.]*/)?{LABEL}$")]
LabelValue = Annotated[Text, Field(pattern=f"^({LABEL})?$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
"""Of an object in Kubernetes."""
VolumeName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""Of a claim or a config map that is mounted: KFP names the pod's volume after it, and a volume's name has no dots."""
Key = Annotated[str, Field(pattern=r"^[-._A-Za-z0-9]{1,253}$")]
Variable = Annotated[str, Field(pattern=r"^[-._A-Za-z][-._A-Za-z0-9]*$")]


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

    count: Positive = 1
    type: LabelKey = "nvidia.com/gpu"
    """The device plugin's name for them."""


class Toleration(Section):
    """A taint that a step's node may have."""

    key: LabelKey | Literal[""] = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelValue = ""
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
        if self.seconds is not None and self.effect != "NoExecute":
            raise ValueError("seconds goes with effect NoExecute alone")
        return self


class Requirement(Section):
    """A condition on a node's label."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    values: tuple[LabelValue, ...] = ()

    @pydantic.model_validator(mode="after")
    def _values_fit_the_operator(self) -> "Requirement":
        if self.operator in ("In", "NotIn"):
            wanted, right = "values", bool(self.values)
        elif self.operator in ("Gt", "Lt"):
            wanted, right = "one whole number as values", len(self.values) == 1 and self.values[0].isdecimal()
        else:
            wanted, right = "no values", not self.values
        if not right:
            raise ValueError(f"operator {self.operator} takes {wanted}")
        return self


class Affinity(Section):
    """Nodes that meet all of `match` are preferred by `weight`. Without a weight a node must meet one such entry."""

    match: Annotated[tuple[Requirement, ...], Field(min_length=1)]
    weight: Annotated[int, Field(ge=1, le=100, strict=True)] | None = None


class Volume(Section):
    """A volume claim or a config map that exists, or room of the step's own that goes with its pod."""

    mount: Annotated[str, Field(pattern="^/[^:]*$"), AfterValidator(_plain_path)]
    claim: VolumeName = ""
    config_map: VolumeName = ""
    """Its keys are files, such as the certificate of a private authority."""
    sub_path: Annotated[str, Field(pattern="^([^/]|$)")] = ""
    size: Quantity | None = None
    medium: Literal["Memory"] | None = None
    storage_class: Name = ""
    """Of a volume made for the pod. Without one the room is on the node's disk, or in its memory, where every user may
    write. A fresh volume of a class belongs to root, often to root alone, and KFP cannot set the pod's fsGroup."""

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> "Volume":
        there = (self.claim, self.config_map)
        if sum(map(bool, (*there, self.size))) != 1:
            raise ValueError("give claim or config_map (which exist) or size (room of the step's own)")
        if (self.sub_path and not self.claim) or sum(map(bool, (*there, self.medium, self.storage_class))) > 1:
            raise ValueError("sub_path goes with claim, and medium or storage_class with size")
        if ".." in self.sub_path.split("/"):
            raise ValueError("sub_path must stay inside the claim")
        if self.mount in ("/", *KFP_MOUNTS):
            raise ValueError(
                f"mount {self.mount} is {'the image' if self.mount == '/' else 'KFP'}'s own: choose another"
            )
        return self


class Retries(Section):
    """How often a failed step is tried again, and after what pauses."""

    count: Count
    backoff_seconds: Count = 0
    """The first pause."""
    factor: Positive = 2
    """By which each pause is longer than the one before. Argo, which runs the steps, takes whole numbers only."""
    within_seconds: Positive = 7 * 24 * 3600
    """All attempts together. Argo ends a step that is still at it then, and KFP's own hour is less than a training."""


class StepNeeds(Section):
    """What a step asks of the cluster."""

    cpu: Requested | None = None
    memory: Requested | None = None
    ephemeral_storage: Quantity | None = None
    """Room at /tmp on the node's disk. A pod that takes more is evicted. KFP 2.17 cannot ask the scheduler for it."""
    gpu: Gpu | None = None
    node_selector: dict[LabelKey, LabelValue] = Field(default={})
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[Affinity, ...] = ()
    timeout_seconds: Positive | None = None
    """Of one attempt, its wait for a node not counted."""
    retries: Retries | None = None
    environment: dict[Variable, Text] = Field(default={})
    secrets: dict[Name, dict[Key, Variable]] = Field(default={})
    """Secret → its key → environment variable."""
    config_maps: dict[Name, dict[Key, Variable]] = Field(default={})
    volumes: tuple[Volume, ...] = ()

    @property
    def variables(self) -> list[str]:
        """Names of the environment variables that the step gets."""
        kept = (*self.secrets.values(), *self.config_maps.values())
        return [*self.environment, *(name for names in kept for name in names.values())]

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
    def _as_a_pod_takes_it(self) -> "StepNeeds":
        if self.retries and self.timeout_seconds and self.retries.within_seconds <= self.timeout_seconds:
            raise ValueError(
                f"retries.within_seconds ({self.retries.within_seconds}) holds for all attempts together and must be "
                f"more than timeout_seconds ({self.timeout_seconds}), or the first would be the last"
            )
        mounts = [volume.mount for volume in self.volumes] + ["/tmp"] * bool(self.ephemeral_storage)
        if mount := _repeated(mounts):
            raise ValueError(f"two volumes at {mount} (ephemeral_storage lies at /tmp)")
        if name := _repeated(self.variables):
            raise ValueError(f"{name} is set twice: give it in environment or once in secrets or config_maps")
        if both := {volume.claim for volume in self.volumes} & {volume.config_map for volume in self.volumes} - {""}:
            raise ValueError(f"a claim and a config map are named {min(both)}: KFP names both volumes after them")
        return self


class Images(Section):
    """What the steps run in, each a name with its registry and tag."""

    cpu: str = ""
    gpu: str = ""
    """Of the steps that ask for GPUs. Empty: as `cpu`."""
    pull_secrets: tuple[Name, ...] = ()
    """Kubernetes secrets with a registry's credentials."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """None: Kubernetes' own, `Always` for the tag `latest`, else `IfNotPresent`."""


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
            if step not in TRAINING:
                raise ValueError(f"unknown step {step!r}: {known_names(step, TRAINING)}")
            try:
                self.needs(step)
            except pydantic.ValidationError as error:  # what the defaults and the step say together
                told = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"steps.{step} with defaults: {told}") from None
        return self

    def needs(self, step: str) -> StepNeeds:
        """What a step asks for: the defaults, with its own section laid over them."""
        own = self.steps.get(step, StepNeeds())
        whole = _laid_over(self.defaults.model_dump(exclude_unset=True), own.model_dump(exclude_unset=True))
        return StepNeeds.model_validate(whole)

    def image(self, step: str) -> str:
        """A step's image, empty where the file names none."""
        return self.images.gpu or self.images.cpu if self.needs(step).gpu else self.images.cpu


def _laid_over(base: Any, over: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    return {**base, **{key: _laid_over(base.get(key), value) for key, value in over.items()}}
