"""Folders with a manifest: written under a temporary name, renamed when complete, checked when read.

`manifest.json` names the schema and its version, every file's size and SHA-256, row counts, the
settings and input digests that made it, and the step's metrics. A killed step leaves no folder
behind that a reader would take for an artifact.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.history import HISTORY
from gnn_encoder.errors import UserError

MANIFEST = "manifest.json"
VERSIONS = {
    "dataset": 1,
    "run": 1,
    "model": 1,
    "vectors": 2,
    "pair_scores": 1,
    "generated_queries": 1,
    "training_set": 1,
    "graph": 2,
    "encoding": 1,
    "bundle": 1,
    "report": 2,
    "evaluation": 1,
    "latency": 1,
    "decision": 2,
    "figures": 1,
}
"""Schema name → the version this code writes and reads."""


@dataclass
class Manifest:
    """What `manifest.json` holds. `digest` is over the files' names, sizes and SHA-256."""

    schema: str
    version: int
    step: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    digest: str = ""


class Draft:
    """An artifact being written: a folder of its own until `finish` gives it its name."""

    def __init__(self, target: Path, schema: str) -> None:
        self.target = target
        self.path = target.with_name(f".{target.name}.partial-{os.getpid()}")
        self.manifest = Manifest(schema, VERSIONS[schema])
        target.parent.mkdir(parents=True, exist_ok=True)
        # Only this target's own leftovers: a killed attempt's folder carries another process id.
        for leftover in target.parent.glob(f".{target.name}.partial-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self.path.mkdir()

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def rows(self, **counts: int) -> None:
        """Record row counts in the manifest."""
        self.manifest.rows.update(counts)

    def finish(self) -> Manifest:
        """Hash the files, write the manifest, and give the folder its final name."""
        for path in sorted(p for p in self.path.rglob("*") if p.is_file() and p != self.path / HISTORY):
            name = path.relative_to(self.path).as_posix()
            self.manifest.files[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        self.manifest.digest = digest_of(self.manifest.files)
        (self.path / MANIFEST).write_text(json.dumps(asdict(self.manifest), indent=1), encoding="utf-8")
        if self.target.exists():
            shutil.rmtree(self.target)
        self.path.rename(self.target)
        return self.manifest

    def discard(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def drafting(target: str | Path, schema: str) -> Iterator[Draft]:
    """A draft that is finished if the block ends well and discarded otherwise."""
    draft = Draft(Path(target), schema)
    try:
        yield draft
        draft.finish()
    except BaseException:
        draft.discard()
        raise


def read_manifest(path: str | Path, schema: str | None = None) -> Manifest:
    """The manifest of an artifact whose files are all there with the sizes it names.

    Raises:
        UserError: not an artifact, another schema or version, a missing or cut file.
    """
    folder = Path(path)
    try:
        manifest = Manifest(**json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{folder} is not a complete artifact: it has no {MANIFEST}; run the step that writes it"
        ) from None
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder / MANIFEST} is corrupt ({error}); delete the folder and run again") from None
    if schema and manifest.schema != schema:
        raise UserError(f"{folder} holds a {manifest.schema!r} artifact where {schema!r} is needed")
    if manifest.version != VERSIONS.get(manifest.schema):
        raise UserError(
            f"{folder} has version {manifest.version} of schema {manifest.schema!r}; this program reads "
            f"version {VERSIONS.get(manifest.schema)}: run the step that writes it again"
        )
    for name, expected in manifest.files.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != expected["bytes"]:
            found = f"{file.stat().st_size} bytes" if file.is_file() else "missing"
            raise UserError(
                f"{file} is corrupt: {found} where {expected['bytes']} bytes belong; delete {folder} and run again"
            )
    return manifest


def verify(path: str | Path) -> Manifest:
    """`read_manifest`, and every file's SHA-256 compared too."""
    folder = Path(path)
    manifest = read_manifest(folder)
    for name, expected in manifest.files.items():
        if sha256(folder / name) != expected["sha256"]:
            raise UserError(
                f"{folder / name} is corrupt: its digest differs from {MANIFEST}; delete {folder} and run again"
            )
    return manifest


@contextmanager
def naming_corrupt(*artifacts: str | Path) -> Iterator[None]:
    """A block that reads artifacts: if it fails and one of them is corrupt, the error names that file.

    A corrupt file has as many errors as it has readers.

    Raises:
        UserError: from `verify`.
    """
    try:
        yield
    except UserError:
        raise
    except Exception:
        for path in artifacts:
            verify(path)
        raise


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(value: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a JSON-like value, independent of the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def folder_digest(path: Path) -> str:
    """Hex SHA-256 over the names and contents of a folder's files, or of one file."""
    if path.is_file():
        return sha256(path)
    files = sorted(p for p in path.rglob("*") if p.is_file())
    return digest_of({p.relative_to(path).as_posix(): sha256(p) for p in files})
