"""Code that comes with a model, and that transformers runs only if its digest was named.

The digest is of the folder's Python files; code of other folders is refused. So it stays the same in the folders into
which a trained model is saved, and whoever opens such a folder must name it again.
"""

import os
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import digest_of, sha256

TRUSTED = "GNN_ENCODER_TRUSTED_CODE"
"""Environment variable with the digests of code that may run, also in the steps of a run."""


def code_files(folder: Path) -> list[Path]:
    """Returns the Python files of a model's folder."""
    return sorted(folder.rglob("*.py"))


def trust(digest: str) -> None:
    """Lets the code with a digest run in this process, and in those that it starts."""
    known = os.environ.get(TRUSTED, "").split()
    if digest and digest not in known:
        os.environ[TRUSTED] = " ".join([*known, digest])


def reason_against(folder: Path, auto_map: Any) -> str | None:
    """Returns why the code that a configuration names (`auto_map`) does not run; None: it was named as trusted."""
    classes = [one for named in auto_map.values() for one in (named if isinstance(named, list) else [named]) if one]
    if elsewhere := [one for one in classes if "--" in str(one)]:
        return f"names code of another repository ({elsewhere[0]}), which no digest covers"
    if outside := [one for one in classes if "/" in str(one) or "\\" in str(one)]:
        return f"names code outside its folder ({outside[0]}), which no digest covers"
    files = code_files(folder) if folder.is_dir() else []
    if not files:
        return "names code of its own (auto_map), which is read in a local folder alone"
    if inside := [file for file in files if file.parent != folder]:
        return f"names code of its own (auto_map), and {inside[0].relative_to(folder)} lies in a folder inside"
    digest = digest_of({file.name: sha256(file) for file in files})
    if digest in os.environ.get(TRUSTED, "").split():
        return None
    return (
        f"names code of its own (auto_map); read {', '.join(file.name for file in files)} there, and to run it set "
        f"shared.trusted_code, or {TRUSTED}, to {digest}"
    )
