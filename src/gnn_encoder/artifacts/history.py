"""How an artifact came to be: a record of every step on the way to it, which travels with it.

`history.json` lies beside the manifest and, as that does, outside the digest: two runs that make the same files at
another pace have made the same artifact. A report, or a bundle that was copied away, can tell with it which settings,
data and hours are behind it, although the artifacts of the steps before are not at hand.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import HISTORY, read_manifest, sha256
from gnn_encoder.errors import UserError

Curves = dict[str, list[tuple[int, float]]]
"""Curve → its points: at which step or epoch, and the value."""


@dataclass(frozen=True)
class Record:
    """One step as it went."""

    settings: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    """Input → digest."""
    metrics: dict[str, Any] = field(default_factory=dict)
    code_digest: str = ""
    curves: Curves = field(default_factory=dict)


History = dict[str, Record]
"""Title of a step → its record, in an order in which they can have run. The last one made the artifact."""


def read_history(artifact: Path) -> History:
    """The history of an artifact; empty where no step made it, or where the file was deleted.

    Raises:
        UserError: the file is corrupt.
    """
    file, known = artifact / HISTORY, {field.name for field in fields(Record)}
    if not file.is_file():
        return {}
    try:
        if read_manifest(artifact).history not in ("", sha256(file)):
            raise ValueError("its digest differs from the manifest")
        records = json.loads(file.read_text(encoding="utf-8"))
        return {
            title: Record(**{name: value for name, value in record.items() if name in known})
            for title, record in records.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{file} is corrupt ({error}); delete it: only a report's account of the steps is lost"
        ) from None


def write_history(artifact: Path, history: History) -> None:
    """Into an artifact's folder."""
    records = {title: asdict(record) for title, record in history.items()}
    (artifact / HISTORY).write_text(json.dumps(records, indent=1), encoding="utf-8")


def joined(artifacts: Iterable[Path]) -> History:
    """The histories of several artifacts as one.

    Where a step is in them twice, as `ingest` is after an update, the one that made one of these artifacts counts.
    """
    histories = [read_history(path) for path in artifacts]
    found: History = {}
    for history in histories:
        for title, record in history.items():
            found.setdefault(title, record)
    for history in histories:
        if history:
            title = next(reversed(history))
            found[title] = history[title]
    return found
