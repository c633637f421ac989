"""The file of a climb's plan: a preset with the lines about it as comments."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.replacing import replace_content
from gnn_encoder.errors import UserError
from gnn_encoder.settings.presets import yaml_of
from gnn_encoder.settings.rungs import RUNGS


@dataclass(frozen=True)
class PlannedClimb:
    """The settings file of a climb, its last rung, and the seconds of the calls that are known, by title."""

    file: Path
    until: str
    seconds: dict[str, float]
    missing: str
    """The reachable rungs that do not fit, with the budget that each needs."""


def write_plan(
    path: Path, budget: float, tree: dict[str, Any], until: str, lines: dict[str, str], calls: dict[str, float]
) -> None:
    """Writes the settings `tree` with the rung `until`, lines for people by name, and seconds of calls by title."""
    comments = [f"# gnn-encoder run --budget {budget / 60:.0f}m" if budget < math.inf else "# gnn-encoder run"]
    comments += [f"# {name}: {line}" for name, line in lines.items()]
    comments += [f"# {title} takes about {seconds:.0f} s" for title, seconds in calls.items()]
    text = "\n".join([*comments, f"# until: {until}", yaml_of(tree)])
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_content(path, text.encode())


def read_plan(path: Path) -> PlannedClimb:
    """Returns the plan in a file that an earlier start wrote; a UserError if it lacks its comments."""
    text = path.read_text("utf-8")
    until = re.search(r"^# until: (.+)$", text, flags=re.MULTILINE)
    if not until or until[1] not in RUNGS:
        raise UserError(f"{path}: no line '# until: RUNG' with one of {', '.join(RUNGS)}: mend or delete the file")
    seconds = re.findall(r"^# (.+) takes about (\d+) s$", text, flags=re.MULTILINE)
    missing = re.search(r"^# more time: (.+)$", text, flags=re.MULTILINE)
    return PlannedClimb(
        path, until[1], {title: float(spent) for title, spent in seconds}, missing[1] if missing else ""
    )
