"""Value types of settings, and base classes that check the values."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from gnn_encoder.errors import without_password

# Numbers are strict; otherwise `true` would be 1.
Fraction = Annotated[float, Field(ge=0.0, le=1.0, strict=True)]
PositiveInt = Annotated[int, Field(ge=1, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0.0, strict=True)]
AutoYesNo = Annotated[
    Literal["auto", "yes", "no"],
    BeforeValidator(lambda value: ("yes" if value else "no") if isinstance(value, bool) else value),
]
"""`auto`, `yes` or `no`. YAML reads an unquoted yes or no as a boolean."""
SMALLEST, LARGEST = 1e-30, 2**31 - 1
"""Bounds of the absolute value of a number other than 0. Row numbers and FAISS parameters are int32, models fp32."""


_ADDRESS = re.compile("[a-zA-Z][a-zA-Z0-9+.-]*://")


def known_names(unknown: object, known: Iterable[str]) -> str:
    """Returns the end of an error line: the name most similar to the unknown name, then all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(str(unknown), names, n=1)
    return f"{f'did you mean {near[0]!r}? ' if near else ''}known are {', '.join(names)}"


def described(error: ValidationError) -> str:
    """Returns the first error in the values of settings, in one line."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # a rule about several settings; its text names the settings
        return message
    # After step.setting, pydantic's location names a branch of a union.
    key = ".".join(map(str, first["loc"][:2]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{key} = {shown(first['input'])}: {message}{more}"


def shown(value: Any) -> str:
    """Returns a value as JSON, without passwords, cut to 60 characters."""
    try:
        text = without_password(json.dumps(value, default=str))
    except (TypeError, ValueError):  # a key that JSON does not allow; an integer of more than 4,300 digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


class Checked(BaseModel):
    """The base of all settings: unknown keys are errors, and values cannot be changed.

    Every number is 0 or has an absolute value from `SMALLEST` to `LARGEST`. Other numbers would make a step fail hours
    later, and NaN and infinity would reach the step as null, because JSON has no such numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _refuse_unusable(cls, value: Any) -> Any:
        parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
        for part in parts:
            if isinstance(part, int | float) and part and not SMALLEST <= abs(part) <= LARGEST:
                raise ValueError(f"must have an absolute value from {SMALLEST} to {LARGEST:,}, or be 0")
            if isinstance(part, str) and "\0" in part:
                raise ValueError("holds a NUL character, which no name or path may have")
        return value

    def _problems(self) -> Iterator[str]:
        """Yields the problems of the values in combination; the first problem is the text of the error."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_problems(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self


class StepSettings(Checked):
    """The base of the settings of every step.

    No address holds a secret: settings are in MLflow, in reports and in what is submitted to a cluster.
    """

    @field_validator("*")
    @classmethod
    def _refuse_secrets(cls, value: Any) -> Any:
        for part in value if isinstance(value, tuple) else [value]:
            address = part.partition("#")[0] if isinstance(part, str) and _ADDRESS.match(part) else ""
            if not address.startswith("s3://arn:") and without_password(address) != address:
                raise ValueError(
                    "has a user, a password or a key, and settings are stored for others to read: leave it out (a "
                    "service's key is in OPENAI_API_KEY, a store's in the variables of AWS)"
                )
        return value
