"""Finds and removes what no kept run of a root needs: `gnn-encoder prune`.

Kept are the artifacts that a link under the root leads to (`latest/` has most), the bundles of registered versions, the
outputs of the newest runs, reused ones included, and every artifact that a kept one links to by a symbolic link. A file
with several hard links stays under its other names, so these hold nothing.
If an output is gone, the cache treats its step as never run, so the next run makes the output again.

An artifact is removed in two moves: it gets the name of an unfinished one, which no reader takes for an artifact, and
is then deleted. If the second is interrupted, the next run or the next `prune` deletes the rest.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gnn_encoder.artifacts.finished_run import check_place
from gnn_encoder.artifacts.folder import MANIFEST
from gnn_encoder.errors import UserError, without_password
from gnn_encoder.machine.disk import entries
from gnn_encoder.promotion.registry import BUNDLE, DIGEST, Registry, Version, open_registry
from gnn_encoder.storage import abandoned_fetches, cache_folder, is_remote
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.pipeline_run import LATE, SQLITE, STORES, impatient, noted_stores, own_store, tracking_uri

OUTPUTS, PARTS, CHECKPOINTS, FETCHED = (
    "outputs of earlier runs",
    "parts of killed attempts",
    "checkpoints",
    "fetched bundles without an alias",
)
KINDS = (OUTPUTS, PARTS, CHECKPOINTS, FETCHED)
LEFTOVERS = ("pipeline/**/.*.partial-*", "tokens/.partial-*", "checkpoints/.*.partial-*", "tmp/*")
"""Patterns of what killed processes leave in a root; while the root is locked, none of it is in use."""
OF_CALL = re.compile(r"(?!answers-|paid-)\w+-[0-9a-f]{20}")
"""Names of the folders of checkpoints that belong to one call."""
PROGRAMS = ("pipeline", "artifacts", "checkpoints", "tokens", "tmp", "logs")
"""Folders of a root in which this program and MLflow keep their own files, and users no links."""


@dataclass(frozen=True)
class Unneeded:
    """A folder or file that no kept run needs, and which of `KINDS` it is."""

    kind: str
    path: Path


@dataclass
class _Run:
    """A run of a root, as its events tell: the time of its last output, and the outputs that it made or reused."""

    name: str
    ended: float = 0.0
    outputs: list[Path] = field(default_factory=list)


def unneeded(root: Path, keep: int) -> list[Unneeded]:
    """Returns what no kept run of a locked root needs; the `keep` newest runs are kept, with what links lead to.

    Raises:
        UserError: the folder is no root, or a store that may have registered versions cannot be asked.
    """
    root = root.resolve()
    check_place(root)
    uris = stores(root)
    versions = [version for uri in uris for version in _versions(uri, root)]
    runs = sorted(_runs(root), key=lambda run: run.ended)[-keep:] if keep else []
    removable = [Unneeded(OUTPUTS, path) for path in _outputs(root, versions, runs)]
    removable += [Unneeded(PARTS, path) for path in leftovers(root)]
    removable += [Unneeded(CHECKPOINTS, path) for path in _checkpoints(root, runs, uris)]
    removable += [Unneeded(FETCHED, path) for path in _fetched(root, versions)]
    return removable


def check_root(root: Path) -> None:
    """Refuses a folder that is no root of runs."""
    if not (root / ".lock").is_file() or not (root / "logs").is_dir():
        raise UserError(f"no runs under {root}: start one with gnn-encoder run, or give its --root")


def remove(removable: Iterable[Unneeded]) -> None:
    """Deletes what `unneeded` found, under the same lock; links are deleted, and not what they lead to."""
    for item in removable:
        path = item.path
        if not os.path.lexists(path):  # it was in what is deleted already
            continue
        if item.kind != PARTS:  # those have such a name already
            hidden = path.with_name(f".{path.name}.partial-{os.getpid()}")
            path = path.rename(hidden)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        if item.kind == OUTPUTS:
            item.path.with_name(f".{item.path.name}.checked.json").unlink(missing_ok=True)
            folder = item.path.parent
            while folder.name != "pipeline" and not any(folder.iterdir()):  # a step or a run without outputs now
                folder.rmdir()
                folder = folder.parent


def _outputs(root: Path, versions: Sequence[Version], runs: Iterable[_Run]) -> list[Path]:
    """Returns the artifacts under `pipeline/` that are not needed."""
    below = {artifact: [path for path, _ in entries(artifact)] for artifact in artifacts_in(root / "pipeline")}
    addresses = [version.tags.get(BUNDLE, "") for version in versions]
    waiting = [Path(address).resolve() for address in addresses if address and "://" not in address]
    # The runs may have been moved here since they were registered.
    lost = {version.tags.get(DIGEST) for version in versions if not Path(version.tags.get(BUNDLE, "")).exists()}
    waiting += [artifact for artifact in below if lost and _bundle_digest(artifact) in lost]
    waiting += [output for run in runs for output in run.outputs]
    waiting += _linked(root)
    needed: set[Path] = set()
    while waiting:
        path = waiting.pop()
        holder = next((folder for folder in (path, *path.parents) if folder in below), None)
        if holder is None or holder in needed:
            continue
        needed.add(holder)
        waiting += [entry.resolve() for entry in below[holder] if entry.is_symlink()]
    return [artifact for artifact in below if artifact not in needed]


def artifacts_in(folder: Path) -> Iterator[Path]:
    """Yields the complete artifacts below a folder; links to folders are not followed."""
    for name, folders, files in os.walk(folder) if not folder.is_symlink() else ():
        if MANIFEST in files:
            yield Path(name)
            folders.clear()
        folders[:] = [subfolder for subfolder in folders if not subfolder.startswith(".")]


def _linked(root: Path) -> Iterator[Path]:
    """Yields what the links under a root lead to: those of `latest/`, and those that a user made beside it."""
    for top in (root, root / "latest"):  # which may be a link itself
        for name, folders, files in os.walk(top):
            folders[:] = [subfolder for subfolder in folders if Path(name) != root or subfolder not in PROGRAMS]
            for entry in (Path(name) / child for child in (*folders, *files)):
                if entry.is_symlink():
                    yield entry.resolve()


def _runs(root: Path) -> Iterator[_Run]:
    """Yields the runs of a root that have outputs, finished or not."""
    for file in (root / "logs").glob("*.events.jsonl"):
        run = _Run(file.name.removesuffix(".events.jsonl"))
        for line in file.read_text("utf-8", errors="replace").splitlines():
            event: Any = None
            with suppress(json.JSONDecodeError):  # a full disk may have cut a line
                event = json.loads(line) if '"outputs"' in line else None
            if event and isinstance(paths := event.get("outputs"), dict):
                run.outputs += [Path(path).resolve() for path in paths.values()]
                run.ended = float(event["time"])
        if run.outputs:
            yield run


def leftovers(root: Path) -> Iterator[Path]:
    """Yields what killed processes left in a locked root and in the cache of fetched folders."""
    for pattern in LEFTOVERS:
        top = root / pattern.partition("/")[0]
        yield from sorted(root.glob(pattern)) if not top.is_symlink() else ()
    yield from abandoned_fetches()


def _checkpoints(root: Path, runs: Iterable[_Run], uris: Iterable[str]) -> list[Path]:
    """Returns the checkpoints that no kept run can resume.

    They are the checkpoints of finished calls, or all checkpoints if every kept run has come to its end. The answers of
    language models (`answers-…`) and the vectors of embeddings services (`paid-…`) stay: they are paid for, and an
    update asks for those of new passages alone.
    """
    top = root / "checkpoints"
    folders = sorted(path for path in top.glob("*-*") if path.is_dir()) if not top.is_symlink() else []
    folders = [path for path in folders if OF_CALL.fullmatch(path.name) and not path.is_symlink()]
    if not folders:
        return []
    with ExitStack() as stack:
        stack.enter_context(impatient())
        clients = [stack.enter_context(mlflow_runs.reaching(uri)) for uri in uris]

        def finished(condition: str) -> bool:
            wanted = f"attributes.status = 'FINISHED' and {condition}"
            finished_runs = (
                client.search_runs(
                    [experiment.experiment_id for experiment in client.search_experiments()], wanted, max_results=1
                )
                for client in clients
            )
            return any(LATE not in run.data.tags for page in finished_runs for run in page)

        if all("'" not in run.name and finished(f"attributes.run_name = '{run.name}'") for run in runs):
            return folders
        return [path for path in folders if finished(f"tags.key LIKE '{path.name[-20:]}%'")]


def _fetched(root: Path, versions: Iterable[Version]) -> Iterator[Path]:
    """Yields the bundles in the cache of fetched folders that no alias names and no link under the root leads to."""
    named = [version.tags for version in versions if version.aliases and is_remote(version.tags.get(BUNDLE, ""))]
    digests, linked = {tags.get(DIGEST) for tags in named}, set(_linked(root))
    for folder in sorted(cache_folder().glob("*")):
        if folder.is_symlink() or not re.fullmatch("[0-9a-f]{32}", folder.name) or folder.resolve() in linked:
            continue
        if (digest := _bundle_digest(folder)) and digest not in digests:
            yield folder


def _bundle_digest(folder: Path) -> str:
    """Returns the digest in a bundle's manifest; empty for other folders."""
    try:
        facts = json.loads((folder / MANIFEST).read_text("utf-8"))
        return str(facts["digest"]) if facts["schema"] == "bundle" else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def stores(root: Path) -> list[str]:
    """Returns the addresses of the root's own MLflow store, if it has one, of the environment's, and of all others to
    which the root's runs have logged."""
    of_root, of_environment = own_store(root), tracking_uri(root)
    uris = [of_root] * (root / "mlflow.db").is_file() + [of_environment] * (of_environment != of_root)
    return uris + [uri for uri in noted_stores(root) if uri not in map(without_password, uris)]


def registries(uri: str, root: Path) -> list[Registry]:
    """Returns every registered model in a store of a root."""
    try:
        file = Path(unquote(uri.removeprefix(SQLITE).partition("?")[0]))
        if uri.startswith(SQLITE) and uri in noted_stores(root) and not file.is_file():
            raise UserError(f"no MLflow store {uri}")  # MLflow would make an empty one
        with impatient(), mlflow_runs.reaching(uri) as client:
            return [open_registry(uri, model.name) for model in mlflow_runs.all_pages(client.search_registered_models)]
    except UserError as error:
        if uri not in noted_stores(root):
            raise
        raise UserError(
            f"{error}; bundles of {root} may be registered there: let it answer (if it has a password, "
            f"MLFLOW_TRACKING_URI has to name it), or, if it is gone, delete its line in {root / STORES}"
        ) from None


def _versions(uri: str, root: Path) -> list[Version]:
    """Returns every version of every registered model in a store of a root."""
    with impatient():
        return [version for registry in registries(uri, root) for version in registry.versions()]
