"""What a step requests from the cluster: a section of the cluster file."""

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field

from gnn_encoder.engines.trainer_requests import ISTIO, KFP_MOUNTS, RESERVED
from gnn_encoder.errors import without_password
from gnn_encoder.kubeflow.kubernetes_values import (
    Count,
    Key,
    LabelKey,
    LabelValue,
    Name,
    Positive,
    Quantity,
    Section,
    Text,
    Variable,
    VolumeName,
)

SECRET_NAME = re.compile(
    r"(^|_)(APIKEY|CREDENTIALS?|KEY|PASS|PASSPHRASE|PWD|SECRETS?|TOKEN)(_|$)|PASSW(OR)?DS?(_|$)", re.I
)
PATH_NAME = re.compile("(^|_)(FILE|PATH)(_|$)", re.I)
SECRET_VALUES = re.compile(
    r"AKIA[0-9A-Z]{16}|-----BEGIN|^(Bearer|Basic) |^gh[pousr]_|^hf_\w{20}|^eyJ\w+\.|^sk-|^xox[a-z]-|[?&]sig="
)
EXISTING = ("claim", "config_map", "secret")
"""Kinds of volumes that exist before the run."""
ANNOTATIONS_BYTES = 256 * 1024
"""Kubernetes' limit for all annotations of a pod together, keys and values."""


def _plain_path(path: str) -> str:
    """Returns the path without `//`, `..` and a final slash, so that equal mounts compare equal."""
    return "/" + posixpath.normpath(path).lstrip("/")


def _repeated(names: list[str]) -> str:
    return next((name for name in names if names.count(name) > 1), "")


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
    """An existing volume claim, config map or secret, or an empty volume of one pod, deleted with the pod."""

    mount: Annotated[str, Field(pattern="^/[^:]*$"), AfterValidator(_plain_path)]
    claim: VolumeName = ""
    config_map: VolumeName = ""
    """Each key of the config map is a file, such as the certificate of a private authority."""
    secret: VolumeName = ""
    """Each key of the secret is a file, such as the one that `AWS_SHARED_CREDENTIALS_FILE` names."""
    sub_path: Annotated[str, Field(pattern="^([^/]|$)")] = ""
    size: Quantity | None = None
    medium: Literal["Memory"] | None = None
    storage_class: Name = ""
    """Storage class of a new volume. Without a class, the volume is on the node's disk or in memory, and every user may
    write to it. A new volume of a class belongs to root, often only root may write, and KFP cannot set fsGroup."""

    def _problems(self) -> Iterator[str]:
        existing = [getattr(self, kind) for kind in EXISTING]
        if sum(map(bool, (*existing, self.size))) != 1:
            yield "give claim, config_map or secret (which exist) or size (a volume of the step's own)"
        if (self.sub_path and not self.claim) or sum(map(bool, (*existing, self.medium, self.storage_class))) > 1:
            yield "sub_path goes with claim, and medium or storage_class with size"
        if ".." in self.sub_path.split("/"):
            yield "sub_path must stay inside the claim"
        if self.mount in ("/", *KFP_MOUNTS):
            owner = "the image" if self.mount == "/" else "KFP"
            yield f"mount {self.mount} is {owner}'s own: choose another"


class SecurityContext(Section):
    """Whose rights the step's process has. None: the image's user, and root is allowed.

    The administrator of the server can set all three; then KFP ignores the values of the file. KFP takes all
    capabilities from every step.
    """

    run_as_user: Count | None = None
    run_as_group: Count | None = None
    run_as_non_root: bool | None = None
    """Kubernetes does not start a container as root. It can tell if the image's user is a number, as 1000 is."""

    def _problems(self) -> Iterator[str]:
        if self.run_as_non_root and self.run_as_user == 0:
            yield "run_as_non_root forbids run_as_user 0, which is root"


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
    labels: dict[LabelKey, LabelValue] = Field(default={})
    """Labels of the step's pods, such as the name of a queue. The pods of KFP's drivers have no such labels."""
    annotations: dict[LabelKey, Text] = Field(default={})
    security: SecurityContext = SecurityContext()

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

    @pydantic.field_validator("labels", "annotations")
    @classmethod
    def _free_and_small(cls, metadata: dict[str, str], info: pydantic.ValidationInfo) -> dict[str, str]:
        for key, value in metadata.items():
            if key.startswith(RESERVED) or (info.field_name == "annotations" and key == ISTIO):
                raise ValueError(f"{key} belongs to KFP and Argo: choose another key")
            if "{{" in value:
                raise ValueError(f"{key} has a value with {{{{, which Argo would replace")
        if (size := sum(len(text.encode()) for item in metadata.items() for text in item)) > ANNOTATIONS_BYTES:
            raise ValueError(f"{size:,} bytes are more than a pod may have ({ANNOTATIONS_BYTES:,})")
        return metadata

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
        named = {(kind, name) for volume in self.volumes for kind in EXISTING if (name := getattr(volume, kind))}
        if name := _repeated([name for _, name in named]):
            yield f"two kinds of volumes are named {name}: KFP names a volume after its claim, config map or secret"
