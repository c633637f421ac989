"""The JSON argument of a call: its settings, and digests of everything else that decides its result."""

import re
from typing import Any

from pydantic import BaseModel

CODE = "run.code"
ORIGIN = ("run.data", "run.settings", CODE)
"""Names of the digests of a whole run, in `promote`'s source digests and in the tags of a registered version."""
PLAN = "run.plan"
"""Name of the digest of a plan's settings, if the settings of `ORIGIN` are those that the plan was made for: two plans
for the same options may have other encoders or lengths."""


class StepArguments(BaseModel):
    """The JSON argument of a step; the artifacts are its other arguments.

    The result of a step does not depend on the digests. Caches compare arguments and artifacts, so the digests make a
    step run again when its code, its data source or its backbone has changed. `promote` also tags the registered
    version with the digests of the whole run (`ORIGIN`), so that a retraining knows whether anything has changed.
    """

    settings: dict[str, Any] = {}
    code_digest: str = ""
    source_digests: dict[str, str] = {}
    label: str = ""
    """Distinguishes the calls of one step."""
    dataset: str = ""
    """Of `promote` in a KFP package: the data set that its digests hold for. A run's parameter may name another."""


def title_of(step: str, label: str) -> str:
    """Returns the name of a call in the console, in MLflow and in histories; `label` tells calls of a step apart."""
    return f"{step}: {label}" if label else step


def task_name(title: str) -> str:
    """Returns the name of a call's task, and of the folder of its outputs, which may have a number behind it.

    `rank: Dual encoder` is `rank-dual-encoder`.
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
