"""Artifacts in parts: several tasks made the rows, and the merged artifact refers to their files.

The file `parts.json` lists the folders of the parts, in the order of the rows. They are folders of the artifact with
hard links to the parts' files, so that nothing is copied. Only `part_folders` reads this list.

The parts of a single file, such as a search index, lie beside each other; `in_parts` names them.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from gnn_encoder.artifacts.folder import Artifact, Draft

PARTS = "parts.json"


def part_folders(path: str | Path) -> list[Path]:
    """The folders with the files of an artifact's parts, in order; of an artifact in one piece, its own folder."""
    file = Path(path) / PARTS
    if not file.is_file():
        return [Path(path)]
    return [Path(path) / folder for folder in json.loads(file.read_text("utf-8"))]


def in_parts(path: Path, count: int) -> list[Path]:
    """The paths of a file's parts, in order: `index-00001-of-00002.faiss` and so on; of one part, `path` itself.

    The count in each name shows which parts are missing.
    """
    if count == 1:
        return [path]
    return [path.with_name(f"{path.stem}-{number:05}-of-{count:05}{path.suffix}") for number in range(1, count + 1)]


def stored_parts(path: Path) -> list[Path]:
    """The paths of `in_parts` for the count that was written; some may be missing. Empty if nothing was written."""
    if path.is_file():
        return [path]
    digits = "[0-9]" * 5
    files = sorted(path.parent.glob(f"{path.stem}-{digits}-of-{digits}{path.suffix}"))
    return in_parts(path, int(files[0].stem[-5:])) if files else []


def share_parts(draft: Draft, parts: Sequence[Artifact]) -> None:
    """Fill a draft with the files of complete parts, in order. With one part, the draft has its files."""
    prefixes = [""] if len(parts) == 1 else [f"parts/{number}/" for number in range(len(parts))]
    for part, prefix in zip(parts, prefixes, strict=True):
        for name in part.manifest.files:
            draft.share(part, name, prefix + name)
        draft.rows(**{kind: draft.manifest.rows.get(kind, 0) + count for kind, count in part.manifest.rows.items()})
    if len(parts) > 1:
        (draft / PARTS).write_text(json.dumps([prefix.rstrip("/") for prefix in prefixes]), encoding="utf-8")
