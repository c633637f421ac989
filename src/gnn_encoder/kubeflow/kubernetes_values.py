"""Values of the cluster file in the grammar of Kubernetes, and the base of the file's sections.

Kubernetes checks its rules when it creates a pod. The rules are checked here before the run starts, because no library
does: the Kubernetes client's models (version 30) accept an operator `Foo`, a weight of 101 and a CPU request of `x`;
KFP checks types only.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import BeforeValidator, Field

from gnn_encoder.settings.values import Checked, known_names

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


Quantity = Annotated[str, BeforeValidator(_quantity)]
Text = Annotated[str, BeforeValidator(_text)]
Count = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
Positive = Annotated[Count, Field(ge=1)]
LABEL = "([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]"
LabelKey = Annotated[str, Field(pattern=f"^([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{LABEL}$")]
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
