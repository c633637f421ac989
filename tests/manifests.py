"""A small artifact, and manifests that say something else than the step that wrote them, with a seal that fits."""

import json
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import MANIFEST, digest_of, drafting


def write_manifest(artifact: Path, facts: dict[str, Any]) -> None:
    """Replace an artifact's manifest."""
    unsealed = {name: value for name, value in facts.items() if name != "seal"}
    (artifact / MANIFEST).write_text(json.dumps({**unsealed, "seal": digest_of(unsealed)}), encoding="utf-8")


def write_artifact(path: Path, content: str = "content", schema: str = "run") -> Path:
    """An artifact of two files, one of them in a folder."""
    with drafting(path, schema) as draft:
        (draft / "sub").mkdir()
        (draft / "sub" / "a.txt").write_text(content)
        (draft / "b.bin").write_bytes(b"\0" * 100)
        draft.rows(lines=3)
    return path
