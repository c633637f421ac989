"""Manifests that say something else than the step that wrote them, with a seal that fits."""

import json
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import MANIFEST, digest_of


def write_manifest(artifact: Path, facts: dict[str, Any]) -> None:
    """Replace an artifact's manifest."""
    unsealed = {name: value for name, value in facts.items() if name != "seal"}
    (artifact / MANIFEST).write_text(json.dumps({**unsealed, "seal": digest_of(unsealed)}), encoding="utf-8")
