"""Takes forgotten texts out of what is not on this machine: tables of PostgreSQL, object stores, MLflow servers.

What cannot be done from here is returned in words, one line each, for the record: backups, versions that a bucket
keeps, and what a store refuses.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from gnn_encoder.engines.forgotten_files import Traces, bundle_of, renewed
from gnn_encoder.engines.latest import FORGOTTEN
from gnn_encoder.engines.prune import OF_CALL
from gnn_encoder.errors import Missing, UserError, without_password
from gnn_encoder.serving.exports import export, postgres_table
from gnn_encoder.storage import Transfer, get_folder, is_remote, put_folder
from gnn_encoder.storage.checkpoint_store import Checkpoints
from gnn_encoder.storage.transfer import folders_below, has_former_versions, list_folder, remove_files, remove_folder
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS
from gnn_encoder.tracking.pipeline_run import addressed, impatient, runs_of

OF_QUERIES = ("report", "study", "select_queries", "generated_queries")
"""Folders with queries among the files that MLflow has of a run."""

Note = Callable[..., None]
"""As `Forgetting.note`."""


def renew(target: str, latest: Path, traces: Traces, note: Note) -> None:
    """As `forgotten_files.renewed`, also of a table, `postgresql://…#TABLE`, and of a folder at an `s3://` address."""
    name = without_password(target)
    if is_remote(target):
        _renew_remote(target, latest, traces, note)
    elif "://" in target:
        before, at, after = target.rpartition("@")  # what is before may be a password
        after, _, table = after.partition("#")
        address, table = f"{before}{at}{after}", table or "passages"
        known = postgres_table.read_facts(address, table)
        bundle = bundle_of(latest, known["system"], known.get("served_as", ""), name)
        if known["bundle_digest"] != bundle.manifest.digest:
            export(bundle, known["format"], address, table=table, update=True)
            note("rewritten", name)
        note("left", *postgres_table.vacuum(address, table))
    elif renewed(Path(target), latest, traces):
        note("rewritten", name)


def _renew_remote(target: str, latest: Path, traces: Traces, note: Note) -> None:
    """Makes the folder at an `s3://` address anew.

    Nobody can read a folder that was sent in part, so what is sent lies in the root until all of it has arrived.
    """
    unsent = (latest.parent / FORGOTTEN).with_name(f"unsent-{sha256(target.encode()).hexdigest()[:16]}")
    partial = unsent.with_suffix(".partial")

    def send() -> None:
        put_folder(unsent, target, Transfer(f"sending {target}"))
        note("rewritten", target)
        unsent.rename(partial / "sent")

    shutil.rmtree(partial, ignore_errors=True)  # of a killed process
    partial.mkdir(parents=True)
    try:
        if unsent.exists():
            send()
        get_folder(target, folder := partial / "folder", Transfer(f"fetching {target}"))
        if renewed(folder, latest, traces):
            shutil.rmtree(partial / "sent", ignore_errors=True)
            folder.rename(unsent)
            send()
    finally:
        shutil.rmtree(partial)
    note("left", *_former(target))


def remove(address: str, note: Note) -> None:
    """Deletes a folder that `put_folder` has sent, and notes what else is at its address."""
    try:
        remove_folder(address)
        note("left", *(f"{address}/{name}" for name in list_folder(address, indexed=False)))
    except Missing:
        note("deleted", address)
        note("left", *_former(address))
    except UserError as error:
        note("left", str(error))


def _former(address: str) -> list[str]:
    """Returns in words what the bucket has of a folder that was deleted or replaced."""
    try:
        return [f"earlier versions that the bucket keeps of {address}"] if has_former_versions(address) else []
    except UserError as error:
        return [f"earlier versions of {address}, if the bucket keeps any ({error})"]


def remove_checkpoints(root: Path, uris: Sequence[str], note: Note) -> None:
    """Deletes the checkpoints of a root's runs in an object store; MLflow has the keys of their calls."""
    where = os.environ.get(CHECKPOINTS, "")
    if not is_remote(where):
        note("left", *[where] if where and not Path(where).resolve().is_relative_to(root) else [])
        return
    keys = {run.data.tags.get("key", "")[:20] for uri in uris for run in _runs(uri, root)}
    names, ours = list[str](), list[str]()
    try:
        names = [name for name in folders_below(where) if OF_CALL.match(name)]
        ours = [name for name in names if name.removesuffix("-training")[-20:] in keys]
        for name in ours:
            remove_files(list_folder(address := f"{where.rstrip('/')}/{name}", indexed=False), address)
            Checkpoints(where, name).drop()  # the copy on this machine
            note("deleted", address)
        note("left", *_former(where) if ours else [])
    except UserError as error:
        note("left", str(error))
    if others := len(names) - len(ours):
        note("left", f"{others:,} checkpoints of calls that no run of this root names, in {where}")


def _runs(uri: str, root: Path) -> list[Any]:
    with impatient(), mlflow_runs.reaching(uri) as client:
        return runs_of(client, root)


def clean_runs(uri: str, root: Path, traces: Traces, began: float, note: Note) -> None:
    """Deletes from an MLflow store the files with a text of a root's runs, and reports of runs before `began`.

    Of labels of a run, those with a text are deleted.
    """
    with impatient(), addressed(uri), mlflow_runs.reaching(uri) as client:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        for run in runs_of(client, root):
            is_old, address = run.info.start_time < 1000 * began, run.info.artifact_uri
            try:
                with mlflow_runs.store_errors(uri), tempfile.TemporaryDirectory() as folder:
                    repository = get_artifact_repository(address)
                    for path in [file.path for file in repository.list_artifacts()]:
                        if (is_old and path in OF_QUERIES) or traces.below(
                            Path(client.download_artifacts(run.info.run_id, path, folder))
                        ):
                            repository.delete_artifacts(path)
                            note("deleted", f"{without_password(address)}/{path}")
            except UserError as error:
                note("left", f"{without_password(address)} ({error})")
            for label in [label for label, value in run.data.tags.items() if traces.in_text(value)]:
                client.delete_tag(run.info.run_id, label)
                note("deleted", f"tag {label} of run {run.info.run_id}")
    note("left", f"database, backups, former files, and runs without a log here, of {without_password(uri)}")
