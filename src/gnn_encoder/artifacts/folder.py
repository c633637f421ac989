"""Folders with a manifest: written under a temporary name, renamed when complete, checked when read.

`manifest.json` has the schema and its version, the size and SHA-256 of every file, row counts, the settings and input
digests of the step that wrote the folder, and the step's metrics. The folder of a killed step keeps its temporary name,
so a reader never takes it for an artifact.

Reading a manifest checks the SHA-256 of every file, but hashes an unchanged file only once: the hidden file
`.NAME.checked.json` beside the folder NAME records each file's digest and change time for later readers.
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gnn_encoder.errors import Damaged, UserError, printable

MANIFEST, HISTORY, README = "manifest.json", "history.json", "README.md"
APART = (HISTORY, README)
"""Files that explain an artifact. They are not among its files: its digest is the same whenever it was made."""
LARGEST = 2**24
"""Most bytes of a manifest; real manifests have some thousand bytes."""
LEAST_SHARED = 2**12
"""Bytes of the smallest file that is shared with an equal file of an input: a block of most file systems."""
CLOCK_TICK = 20_000_000
"""Nanoseconds. A file that changed less than this ago can change again and keep the same change time, because the
kernel's clock for files ticks every 1 to 10 ms."""
VERSIONS = {
    "dataset": 2,
    "bm25": 1,
    "run": 1,
    "model": 1,
    "vectors": 2,
    "pair_scores": 3,
    "generated_queries": 2,
    "written_queries": 1,
    "training_set": 1,
    "graph": 2,
    "encoding": 1,
    "bundle": 2,
    "report": 2,
    "evaluation": 1,
    "latency": 1,
    "decision": 2,
    "recommendation": 1,
    "parts": 1,
    "graph_choice": 1,
    "figures": 1,
    "tokens": 1,
    "document_graph": 1,
}
"""Schema name → the version that this code writes and reads."""


@dataclass
class FileFacts:
    """A file's size and hex SHA-256."""

    bytes: int
    sha256: str


@dataclass
class Manifest:
    """The content of `manifest.json`.

    `digest` covers the names, sizes and SHA-256 of `files`, which are all but those in `APART`. `history` is the
    SHA-256 of `history.json`; empty without such a file. `seal` covers all other fields of the manifest.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    schema: str
    version: int
    step: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    files: dict[str, FileFacts] = field(default_factory=dict)
    digest: str = ""
    history: str = ""
    seal: str = ""


_MANIFEST = TypeAdapter(Manifest)


class Complete(Protocol):
    """A complete artifact that was read, such as an `Artifact` or a `Dataset`."""

    @property
    def path(self) -> Path:
        """The folder."""

    @property
    def manifest(self) -> Manifest:
        """Its manifest."""


class Draft:
    """An artifact that is being written. The folder has a temporary name until `finish` renames it.

    Args:
        inputs: complete artifacts that it is made from. A file that one of them has, too, takes no space of its own:
            a bundle has the weights of a model, and often its vectors.
    """

    def __init__(self, target: Path, schema: str, inputs: Sequence[Path] = ()) -> None:
        self.target, self._inputs = target, inputs
        self.path = target.with_name(f".{target.name}.partial-{os.getpid()}")
        self.manifest = Manifest(schema, VERSIONS[schema])
        self._linked: dict[str, FileFacts] = {}
        target.parent.mkdir(parents=True, exist_ok=True)
        # Folders of killed attempts at this target; their names have other process ids.
        for leftover in target.parent.glob(f".{target.name}.partial-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        self.path.mkdir()

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def copy(self, artifact: Path) -> None:
        """Copy the files of a complete artifact, without its manifest and history."""
        for name in read_manifest(artifact, self.manifest.schema).files:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(artifact / name, self.path / name)

    def link(self, artifact: Complete, name: str) -> None:
        """Add a file of a complete artifact as a symbolic link. The artifact was checked, so the file is not hashed.

        A hard link would change the time by which `_Checked` knows the file.
        """
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).symlink_to((artifact.path / name).resolve())
        self._linked[name] = artifact.manifest.files[name]

    def share(self, artifact: Complete, name: str, as_name: str = "") -> None:
        """Add a file of a complete artifact as a hard link, or as a copy where the file system has none.

        Unlike `link`, the file is complete for programs that send the folder elsewhere, and stays if the artifact is
        deleted. The artifact was checked, so the file is not hashed now; the artifact's next reader hashes it once.
        `as_name`: another name in the draft.
        """
        new_name = as_name or name
        target = self.path / new_name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to((artifact.path / name).resolve())
        except OSError:
            shutil.copyfile(artifact.path / name, target)
        self._linked[new_name] = artifact.manifest.files[name]

    def link_apart(self, artifact: Complete) -> None:
        """Add the history and the README of a complete artifact, if it has them, as symbolic links."""
        for name in APART:
            if (artifact.path / name).is_file():
                (self.path / name).symlink_to((artifact.path / name).resolve())

    def rows(self, **counts: int) -> None:
        """Record row counts in the manifest."""
        self.manifest.rows.update(counts)

    def take_origin(self, manifest: Manifest) -> None:
        """Record how another artifact was made as the draft's own origin."""
        for part in ("step", "settings", "inputs", "metrics"):
            setattr(self.manifest, part, getattr(manifest, part))

    def _let_read(self, path: Path) -> None:
        """Let everybody read a file who may read the folder, where the file system and the file's owner allow it."""
        wanted = self.path.stat().st_mode & 0o444
        with suppress(OSError):
            if wanted & ~(mode := path.stat().st_mode):
                path.chmod(mode & 0o777 | wanted)

    def finish(self) -> Manifest:
        """Hash the files, write the manifest, and give the folder its final name.

        Who may read the folder may read its files. Those of safetensors are their owner's alone at first.
        """
        history, apart = self.path / HISTORY, [self.path / name for name in APART]
        known = {
            facts.sha256: folder / name
            for folder in self._inputs
            for name, facts in read_manifest(folder).files.items()
            if facts.bytes >= LEAST_SHARED
        }
        for path in sorted(p for p in self.path.rglob("*") if p.is_file() and p not in apart):
            name = path.relative_to(self.path).as_posix()
            if not (facts := self._linked.get(name)):
                facts = FileFacts(path.stat().st_size, sha256(path))
                if facts.sha256 in known:
                    _share(known[facts.sha256], path)
            self._let_read(path)
            self.manifest.files[name] = facts
        if history.is_file():
            self.manifest.history = sha256(history)
        facts = json.loads(json.dumps(asdict(self.manifest)))
        self.manifest.digest = facts["digest"] = digest_of(facts["files"])
        self.manifest.seal = facts["seal"] = _seal(facts)
        (self.path / MANIFEST).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        if self.target.exists():
            shutil.rmtree(self.target)
        self.path.rename(self.target)
        _Checked(self.target, self.manifest.files).record()
        return self.manifest


def _share(file: Path, equal: Path) -> None:
    """Makes `equal` another name of a file with the same content. Without hard links it stays a file of its own."""
    other = equal.with_name(f".{equal.name}.shared")
    with suppress(OSError):
        other.hardlink_to(file.resolve())
        other.replace(equal)
    other.unlink(missing_ok=True)


@contextmanager
def drafting(target: str | Path, schema: str, inputs: Sequence[Path] = ()) -> Iterator[Draft]:
    """A draft that is finished if the block ends without an exception, and deleted otherwise; `inputs`: see `Draft`."""
    draft = Draft(Path(target), schema, inputs)
    try:
        yield draft
        draft.finish()
    except BaseException:
        shutil.rmtree(draft.path, ignore_errors=True)
        raise


@dataclass(frozen=True)
class Artifact:
    """A complete artifact of one schema."""

    path: Path
    manifest: Manifest
    schema: ClassVar[str]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Open an artifact; `read_manifest` says what is refused."""
        return cls(Path(path), read_manifest(path, cls.schema))


def read_manifest(path: str | Path, schema: str | None = None) -> Manifest:
    """Returns the manifest of an artifact after checking that every file is present and has the manifest's digest.

    Raises:
        UserError: not an artifact, another schema or version; `Damaged`: a file is missing, or not as it was.
    """
    folder, file = Path(path), Path(path) / MANIFEST
    if not file.is_file():  # opening a pipe would block
        reason = f"it has no {MANIFEST}" if folder.exists() else "there is no such folder"
        raise UserError(
            f"{folder} is not a complete artifact: {reason}; name a folder of a finished run, as ROOT/latest/bundle or "
            "ROOT/latest/dataset, or run the step that writes it"
        )
    try:
        if file.stat().st_size > LARGEST:
            raise ValueError(f"more than {LARGEST:,} bytes")
        facts = json.loads(file.read_text(encoding="utf-8"))
        manifest = _MANIFEST.validate_python(facts)
    except (ValueError, RecursionError) as error:
        cause = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            cause = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise Damaged(f"{file} is corrupt ({printable(cause)}); delete the folder and run again") from None
    if schema and manifest.schema != schema:
        raise UserError(f"{folder} holds a {manifest.schema!r} artifact where {schema!r} is needed")
    if manifest.version != VERSIONS.get(manifest.schema):
        raise UserError(
            f"{folder} has version {manifest.version} of schema {manifest.schema!r}; this program reads "
            f"version {VERSIONS.get(manifest.schema)}: run the step that writes it again"
        )
    if manifest.seal != _seal(facts):
        raise Damaged(f"{file} is corrupt: its seal is of other contents; delete the folder and run again")
    _Checked(folder, manifest.files).check()
    return manifest


def _seal(facts: dict[str, Any]) -> str:
    """The digest of all facts of a manifest but the seal."""
    return digest_of({name: value for name, value in facts.items() if name != "seal"})


class _Checked:
    """The state of each file of an artifact at the last check of its digest.

    The states are kept in memory and, for other processes, in a file beside the folder. If this file cannot be written
    (such as beside a mounted bundle), each process hashes the artifact once.
    """

    _in_memory: ClassVar[dict[Path, dict[str, list[Any]]]] = {}

    def __init__(self, folder: Path, files: Mapping[str, FileFacts]) -> None:
        self._folder, self._files, resolved = folder, files, folder.resolve()
        self._file = resolved.with_name(f".{resolved.name}.checked.json")

    def check(self) -> None:
        """Check the digest of each file that has changed since the last check."""
        known, began = self._in_memory.get(self._file) or self._read(), time.time_ns()
        entries = {}
        for name, expected in self._files.items():
            file = self._folder / name
            entries[name] = self._entry(name) if file.is_file() else []
            if not file.is_file():
                wrong = "missing"
            elif (size := file.stat().st_size) != expected.bytes:
                wrong = f"{size} bytes where {expected.bytes} bytes belong"
            elif known.get(name) != entries[name] and sha256(file) != expected.sha256:
                wrong = f"its digest differs from {MANIFEST}"
            else:
                continue
            raise Damaged(f"{printable(str(file))} is corrupt: {wrong}; delete {self._folder} and run again")
        if entries != known:
            self._write(entries, began)

    def record(self) -> None:
        """Record the current state of the files; the caller has just hashed them."""
        self._write({name: self._entry(name) for name in self._files}, time.time_ns())

    def _entry(self, name: str) -> list[Any]:
        facts = (self._folder / name).stat()
        return [facts.st_ctime_ns, facts.st_mtime_ns, facts.st_ino, facts.st_size, self._files[name].sha256]

    def _write(self, entries: dict[str, list[Any]], when: int) -> None:
        settled = {name: entry for name, entry in entries.items() if entry[0] < when - CLOCK_TICK}
        if not settled:
            return
        self._in_memory[self._file] = settled
        # If the folder cannot be written or the disk is full, there is no record. The record only saves time.
        with suppress(OSError), tempfile.TemporaryDirectory(prefix=self._file.name, dir=self._file.parent) as folder:
            partial = Path(folder) / self._file.name
            partial.write_text(json.dumps(settled), encoding="utf-8")
            partial.replace(self._file)

    def _read(self) -> dict[str, list[Any]]:
        try:
            record = json.loads(self._file.read_text(encoding="utf-8")) if self._file.is_file() else {}
        except (OSError, ValueError, RecursionError):
            return {}  # without a readable record the files are hashed
        return record if isinstance(record, dict) else {}


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(value: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a JSON-like value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def folder_digest(folder: Path) -> str:
    """Hex SHA-256 over the names and contents of a folder's files."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return digest_of({path.relative_to(folder).as_posix(): sha256(path) for path in files})
