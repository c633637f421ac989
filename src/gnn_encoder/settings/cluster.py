"""The cluster file: where a run's images and artifacts are, and what each step requests from its node.

`pipelines/clusters/example.yaml` shows every key. A step's section overrides `defaults`: mappings are merged key by
key, any other value replaces the default. Quantities have Kubernetes' form: `500m`, `4`, `16Gi`. Kubernetes checks its
rules when it creates a pod. This module checks the rules before the run starts, because no library does: the Kubernetes
client's models (version 30) accept an operator `Foo`, a weight of 101 and a CPU request of `x`; KFP checks types only.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field

from gnn_encoder.errors import without_password
from gnn_encoder.settings.pipeline import CLUSTER_STEPS
from gnn_encoder.settings.values import Checked, known_names

SECRET_NAME = re.compile(r"(^|_)(APIKEY|CREDENTIALS?|KEY|PASSPHRASE|PASSWD|PASSWORD|PWD|SECRET|TOKEN)(_|$)", re.I)
PATH_NAME = re.compile("(^|_)(FILE|PATH)(_|$)", re.I)
SECRET_VALUES = re.compile(r"AKIA[0-9A-Z]{16}|-----BEGIN|^(Bearer|Basic) |^gh[pousr]_|^hf_\w{20}|^eyJ\w+\.")
KFP_MOUNTS = ("/gcs", "/minio", "/s3", "/kfp-launcher", "/.local", "/.cache", "/.config")
"""Paths in every step's container where KFP mounts its own volumes."""
QUANTITY = re.compile(r"(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,2}|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)
"""Kubernetes' grammar. `parse_quantity` also accepts what Decimal accepts, such as NaN, infinity and `1_0`."""


def _quantity(value: Any) -> str:
    from kubernetes.utils.quantity import parse_quantity

    if isinstance(value, bool) or not QUANTITY.fullmatch(str(value)) or parse_quantity(str(value)) <= 0:
        raise ValueError("must be a quantity above 0, such as 500m, 4 or 16Gi")
    return str(value)


def _text(value: Any) -> Any:
    """Converts numbers and booleans of YAML to text, which Kubernetes requires; returns other values unchanged."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if isinstance(value, int | float) else value


def _plain_path(path: str) -> str:
    """Returns the path without `//`, `..` and a final slash, so that equal mounts compare equal."""
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
"""Name of a Kubernetes object."""
VolumeName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""Name of a mounted claim or config map, without dots, because KFP uses the name for the pod's volume, too."""
Key = Annotated[str, Field(pattern=r"^[-._A-Za-z0-9]{1,253}$")]
Variable = Annotated[str, Field(pattern=r"^[-._A-Za-z][-._A-Za-z0-9]*$")]


class Section(Checked):
    """A part of the cluster file; the error of an unknown key names the known ones."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, section: Any) -> Any:
        for name in section if isinstance(section, Mapping) else ():
            if name not in cls.model_fields:
                raise ValueError(f"unknown key {name!r}: {known_names(name, cls.model_fields)}")
        return section


class Amount(Section):
    """The amount that the scheduler reserves for a step (request), and the amount that the step may use (limit)."""

    request: Quantity | None = None
    limit: Quantity | None = None

    def _problems(self) -> Iterator[str]:
        from kubernetes.utils.quantity import parse_quantity

        if self.request and self.limit and parse_quantity(self.request) > parse_quantity(self.limit):
            yield f"request {self.request} is more than limit {self.limit}"


Requested = Annotated[
    Amount,
    BeforeValidator(lambda value: value if isinstance(value, Mapping | Amount) else {"request": value, "limit": value}),
]
"""An amount; a single quantity is both request and limit."""


class Gpu(Section):
    """GPUs of a step."""

    count: Positive = 1
    type: LabelKey = "nvidia.com/gpu"
    """The resource name that the device plugin gives the GPUs in Kubernetes."""


class Toleration(Section):
    """A taint that is allowed on the step's node."""

    key: LabelKey | Literal[""] = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: LabelValue = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """None: all effects."""
    seconds: Count | None = None
    """How long the step stays on a node with a NoExecute taint. None: without limit."""

    def _problems(self) -> Iterator[str]:
        if self.operator == "Exists" and self.value:
            yield "operator Exists takes no value"
        if not self.key and self.operator != "Exists":
            yield "without a key the operator must be Exists"
        if self.seconds is not None and self.effect != "NoExecute":
            yield "seconds goes with effect NoExecute alone"


class Requirement(Section):
    """A condition on a label of a node."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    values: tuple[LabelValue, ...] = ()

    def _problems(self) -> Iterator[str]:
        values, fits = "no values", not self.values
        if self.operator in ("In", "NotIn"):
            values, fits = "values", bool(self.values)
        elif self.operator in ("Gt", "Lt"):
            values, fits = "one whole number as values", len(self.values) == 1 and self.values[0].isdecimal()
        if not fits:
            yield f"operator {self.operator} takes {values}"


class Affinity(Section):
    """Nodes that meet all of `match` are preferred by `weight`. Without weights a node must meet one of the entries."""

    match: Annotated[tuple[Requirement, ...], Field(min_length=1)]
    weight: Annotated[int, Field(ge=1, le=100, strict=True)] | None = None


class Volume(Section):
    """An existing volume claim or config map, or an empty volume of one pod, deleted with the pod."""

    mount: Annotated[str, Field(pattern="^/[^:]*$"), AfterValidator(_plain_path)]
    claim: VolumeName = ""
    config_map: VolumeName = ""
    """Each key of the config map is a file, such as the certificate of a private authority."""
    sub_path: Annotated[str, Field(pattern="^([^/]|$)")] = ""
    size: Quantity | None = None
    medium: Literal["Memory"] | None = None
    storage_class: Name = ""
    """Storage class of a new volume. Without a class, the volume is on the node's disk or in memory, and every user may
    write to it. A new volume of a class belongs to root, often only root may write, and KFP cannot set fsGroup."""

    def _problems(self) -> Iterator[str]:
        existing = (self.claim, self.config_map)
        if sum(map(bool, (*existing, self.size))) != 1:
            yield "give claim or config_map (which exist) or size (a volume of the step's own)"
        if (self.sub_path and not self.claim) or sum(map(bool, (*existing, self.medium, self.storage_class))) > 1:
            yield "sub_path goes with claim, and medium or storage_class with size"
        if ".." in self.sub_path.split("/"):
            yield "sub_path must stay inside the claim"
        if self.mount in ("/", *KFP_MOUNTS):
            owner = "the image" if self.mount == "/" else "KFP"
            yield f"mount {self.mount} is {owner}'s own: choose another"


class Retries(Section):
    """How often a failed step is tried again, and the pauses between the attempts."""

    count: Count
    backoff_seconds: Count = 0
    """Length of the first pause."""
    factor: Positive = 2
    """Each pause is this many times the previous pause. Argo, which runs the steps, accepts whole numbers only."""
    within_seconds: Positive = 7 * 24 * 3600
    """Time limit of all attempts together; Argo ends a step that runs longer. A training takes longer than KFP's
    default, one hour."""


class StepNeeds(Section):
    """What a step requests from the cluster."""

    cpu: Requested | None = None
    memory: Requested | None = None
    ephemeral_storage: Quantity | None = None
    """Space at /tmp on the node's disk. A pod that uses more is evicted. KFP 2.17 cannot request this space."""
    gpu: Gpu | None = None
    node_selector: dict[LabelKey, LabelValue] = Field(default={})
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[Affinity, ...] = ()
    timeout_seconds: Positive | None = None
    """Time limit of one attempt, without the wait for a node."""
    retries: Retries | None = None
    environment: dict[Variable, Text] = Field(default={})
    secrets: dict[Name, dict[Key, Variable]] = Field(default={})
    """Secret → its key → environment variable."""
    config_maps: dict[Name, dict[Key, Variable]] = Field(default={})
    volumes: tuple[Volume, ...] = ()

    @property
    def variables(self) -> list[str]:
        """Names of the step's environment variables."""
        mapped = (*self.secrets.values(), *self.config_maps.values())
        return [*self.environment, *(name for names in mapped for name in names.values())]

    @pydantic.field_validator("environment")
    @classmethod
    def _nothing_secret(cls, environment: dict[str, str]) -> dict[str, str]:
        for name, value in environment.items():
            secret_name = SECRET_NAME.search(name) and not PATH_NAME.search(name)
            if secret_name or SECRET_VALUES.search(value) or without_password(value) != value:
                raise ValueError(
                    f"{name} looks like a secret, and every user could read it in the run: "
                    "put it into a Kubernetes secret and name the secret under secrets"
                )
        return environment

    def _problems(self) -> Iterator[str]:
        if self.retries and self.timeout_seconds and self.retries.within_seconds <= self.timeout_seconds:
            yield (
                f"retries.within_seconds ({self.retries.within_seconds}) holds for all attempts together and must be "
                f"more than timeout_seconds ({self.timeout_seconds}), or the first would be the last"
            )
        mounts = [volume.mount for volume in self.volumes] + ["/tmp"] * bool(self.ephemeral_storage)
        if mount := _repeated(mounts):
            yield f"two volumes at {mount} (ephemeral_storage is mounted at /tmp)"
        if name := _repeated(self.variables):
            yield f"{name} is set twice: give it in environment or once in secrets or config_maps"
        if both := {volume.claim for volume in self.volumes} & {volume.config_map for volume in self.volumes} - {""}:
            yield f"a claim and a config map are named {min(both)}: KFP names both volumes after them"


class Images(Section):
    """Images of the steps, each with registry and tag."""

    cpu: str = ""
    gpu: str = ""
    """Image of the steps that request GPUs. Empty: the same as `cpu`."""
    pull_secrets: tuple[Name, ...] = ()
    """Names of Kubernetes secrets with the credentials of a registry."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """None: Kubernetes' default, which is `Always` for the tag `latest` and `IfNotPresent` for other tags."""


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
    defaults: StepNeeds = StepNeeds()
    steps: dict[str, StepNeeds] = Field(default={})

    def _problems(self) -> Iterator[str]:
        for step in self.steps:
            if step not in CLUSTER_STEPS:
                yield f"unknown step {step!r}: {known_names(step, CLUSTER_STEPS)}"
            try:
                self.needs(step)
            except pydantic.ValidationError as error:
                problem = error.errors()[0]["msg"].removeprefix("Value error, ")
                yield f"steps.{step} with defaults: {problem}"

    def needs(self, step: str) -> StepNeeds:
        """Returns the defaults, overridden by the step's own section."""
        sections = (self.defaults, self.steps.get(step, StepNeeds()))
        return StepNeeds.model_validate(_laid_over(*(each.model_dump(exclude_unset=True) for each in sections)))

    def image(self, step: str) -> str:
        """Returns the image of a step, or an empty text if the file names none."""
        return self.images.gpu or self.images.cpu if self.needs(step).gpu else self.images.cpu


def _laid_over(base: Any, over: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    return {**base, **{key: _laid_over(base.get(key), value) for key, value in over.items()}}
