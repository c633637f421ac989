"""The history of an artifact: a record of every step that led to the artifact. The history is copied with the artifact.

`history.json` is stored beside the manifest. The artifact's digest covers neither, so two runs that write the same
files in different times make the same artifact. The history shows the settings, data and hours behind a report or a
copied bundle when the artifacts of the earlier steps are not available.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import HISTORY, read_manifest, sha256
from gnn_encoder.errors import UserError, printable

Curves = dict[str, list[tuple[int, float]]]
"""Name of a curve → points (step or epoch, value)."""


@dataclass(frozen=True)
class Record:
    """One executed step."""

    settings: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    """Input → digest."""
    metrics: dict[str, Any] = field(default_factory=dict)
    code_digest: str = ""
    curves: Curves = field(default_factory=dict)


History = dict[str, Record]
"""Title of a step → its record, each step after the steps that it depends on. The last step made the artifact."""


def read_history(artifact: Path) -> History:
    """The history of an artifact; empty if no step made it or the file was deleted."""
    file = artifact / HISTORY
    if not file.is_file():
        return {}
    try:
        if read_manifest(artifact).history != sha256(file):
            raise ValueError("its digest differs from the manifest")
        return {title: Record(**record) for title, record in json.loads(file.read_text(encoding="utf-8")).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        cause = printable(str(error))
        raise UserError(f"{file} is corrupt ({cause}); delete it and run the step that wrote it again") from None


def write_history(artifact: Path, history: History) -> None:
    """Write `history.json` into an artifact's folder."""
    records = {title: asdict(record) for title, record in history.items()}
    (artifact / HISTORY).write_text(json.dumps(records, indent=1), encoding="utf-8")


def joined(artifacts: Iterable[Path]) -> History:
    """Joins the histories of several artifacts.

    Two histories can have different records of one step (such as `ingest` after an update). Then the record of the
    step that made one of these artifacts wins.
    """
    histories = [read_history(path) for path in artifacts]
    records: History = {}
    for history in histories:
        for title, record in history.items():
            records.setdefault(title, record)
    for history in histories:
        records.update(list(history.items())[-1:])
    return records


def of_encoding(history: History) -> Record:
    """The record of `encode`; of several encoders, that of the chosen one; empty if no published one was used."""
    choice = history.get("choose_encoder")
    return history.get(f"encode: {choice.metrics['chosen']}" if choice else "encode", Record())
