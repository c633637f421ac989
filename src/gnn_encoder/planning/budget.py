"""The time that a run may take."""

import math
import re

from gnn_encoder.errors import UserError

DEFAULT = "30m"
"""The budget of a run without a preset."""


def budget_seconds(text: str) -> float:
    """Returns the seconds of a budget such as `30m`, `2h` or `1h30m`; raises UserError for another text."""
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?", text.strip())
    seconds = 3600 * float(match[1] or 0) + 60 * float(match[2] or 0) if match else 0.0
    if not 60 <= seconds <= 30 * 24 * 3600:
        raise UserError(f"--budget {text}: write it as 30m, 2h or 1h30m, from one minute to 30 days")
    return seconds


def climb_seconds(budget: str | None, until: str | None) -> float:
    """Returns the seconds of a run without a preset: of its budget, 30 minutes, or up to a rung without a limit."""
    return budget_seconds(budget or DEFAULT) if budget or until is None else math.inf
