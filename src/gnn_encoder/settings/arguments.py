"""What a component is called with besides its artifacts."""

from typing import Any

from pydantic import BaseModel

ORIGIN = ("run.data", "run.settings", "run.code")
"""Names, among `promote`'s source digests and a registered version's tags, of what the whole run was made of."""


class StepArguments(BaseModel):
    """What a component is called with besides artifacts, as JSON.

    The digests change nothing in a step's result: they are there because KFP's cache sees arguments alone, and
    a step must run again when its code, its data source or its backbone has changed. `promote` also writes the
    whole run's (`ORIGIN`) to what it registers, so that a retraining knows whether there is anything new.
    """

    settings: dict[str, Any] = {}
    code_digest: str = ""
    source_digests: dict[str, str] = {}
    label: str = ""
    """Which call this is, where a pipeline calls the step more than once."""

    def title(self, step: str) -> str:
        """What the call is shown as."""
        return f"{step}: {self.label}" if self.label else step
