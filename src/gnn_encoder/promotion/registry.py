"""The model registry: versions of a model, and the aliases that name the served version.

A version is an MLflow model (`promotion.logged_model`) that names a bundle. This program reads the bundle's address
from the version's tag `bundle`.

The alias `champion` names the version in service, `previous` the former champion. MLflow sets an alias without a
condition, so two processes that compared with the same champion could both replace the champion. Therefore each move of
the aliases is first recorded as a version of the model `NAME.moves` that names the previous move. MLflow assigns each
version number once, so all readers agree which successor of a move came first. Only the first successor is valid, and
only its process sets the aliases.

No process waits for another process. If a process stops between recording and setting, the next reader sets the aliases
of the last move. If a process resumes late and sets the aliases of an older move, the process then reads the last move
and sets that move's aliases again. Aliases that a user moves in MLflow's own pages stay as the user set them.
"""

import functools
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.folder import Manifest
from gnn_encoder.errors import Missing, UserError
from gnn_encoder.promotion.logged_model import log_model
from gnn_encoder.storage import is_remote, local_folder
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.pipeline_run import existing_store, impatient

CHAMPION, PREVIOUS = "champion", "previous"
BUNDLE, DIGEST, DECISION, REASON, RUNG = "bundle", "digest", "decision", "reason", "rung"
"""Tags of a version: address and digest of its bundle, and the gate's decision with its reason."""
DATASET, SOURCE = "dataset.digest", "dataset"
"""Tags of a version: the digest of its dataset, and the setting `ingest.dataset`."""
QUERIES, GENERATED, HUMAN = "evaluation.queries", "generated", "human"
"""Tag of a version: who wrote the queries that it was measured on."""
AFTER, SET = "after", "aliases set"
"""Tags of a move: the previous move ("0": none), and whether the aliases are set. A move also has a tag per alias."""
SCHEME = "models:/"
"""Prefix of the name of a registered version."""

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Version:
    """A registered bundle."""

    number: str
    created: float
    """Seconds since the epoch."""
    tags: Mapping[str, str]
    aliases: tuple[str, ...]
    card: str
    """The model card in Markdown."""
    run_id: str
    """Id of the run that registered the version, empty if no run did."""

    def bundle_folder(self) -> Path:
        """Returns the local folder of the version's bundle, after fetching it if it is in an object store.

        Raises:
            UserError: the store cannot be used. It is a `Missing` if the address is unreadable or empty.
        """
        address = self.tags.get(BUNDLE, "")
        if not address or ("://" in address and not is_remote(address)):
            where = f"at {address}, and only folders and s3:// are read" if address else f"without a tag {BUNDLE!r}"
            raise Missing(f"version {self.number} is registered {where}")
        # A bundle that KFP's launcher wrote has no index of its objects. The bundle's manifest is checked nevertheless.
        return local_folder(address, indexed=False)


@dataclass(frozen=True)
class Aliases:
    """The versions that the aliases name, None for a missing alias."""

    champion: str | None
    previous: str | None
    move: str
    """Number of the last move, "0" if there is none."""


def _naming_store(method: Method) -> Method:
    """Wraps a method: errors of the store become a `UserError` that names the store."""

    @functools.wraps(method)
    def call(registry: "Registry", *args: Any, **kwargs: Any) -> Any:
        with mlflow_runs.store_errors(registry.uri):
            return method(registry, *args, **kwargs)

    return cast(Method, call)


class Registry:
    """A registered model in a store. Every call may raise a UserError that names the store."""

    def __init__(self, client: Any, uri: str, name: str, run_id: str | None = None) -> None:
        """Sends no request; `run_id` is the run that registers versions."""
        self.uri, self.name, self._moves = uri, name, f"{name}.moves"
        self._client, self._run_id = client, run_id

    @_naming_store
    def versions(self) -> list[Version]:
        """Returns all versions, newest first."""
        aliases = self._aliases()
        return [
            Version(
                number := str(entity.version),
                entity.creation_timestamp / 1000,
                dict(entity.tags),
                tuple(sorted(alias for alias, version in aliases.items() if version == number)),
                entity.description or "",
                entity.run_id or "",
            )
            for entity in reversed(self._entities(self.name))
        ]

    def find(self, named: str) -> Version:
        """Returns the version with a number or an alias; raises `UserError` if there is none."""
        versions = self.versions()
        for version in versions:
            if named in (version.number, *version.aliases):
                return version
        known = [*(version.number for version in versions), *(alias for v in versions for alias in v.aliases)]
        known_versions = f"there are {', '.join(known)}" if known else "nothing is registered under that name"
        raise UserError(f"no version or alias {named!r} of the model {self.name!r}: {known_versions}")

    @_naming_store
    def champions(self) -> frozenset[str]:
        """Returns the numbers of the versions that have ever been made the champion."""
        return frozenset(move.tags.get(CHAMPION, "") for move in self._valid_moves())

    @_naming_store
    def logged(self, version: Version, name: str, folder: str) -> Path:
        """Fetches the artifact `name` of the run that registered a version into `folder`; returns its path."""
        return Path(self._client.download_artifacts(version.run_id, name, folder))

    @_naming_store
    def log_model(self, bundle: Bundle, address: str, figures: Mapping[str, float], dataset: Manifest) -> str:
        """Logs a bundle as an MLflow model with its figures on a dataset; returns the model's id."""
        data = mlflow_runs.dataset_of(dataset)
        return log_model(self._client, str(self._run_id), self.name, bundle, address, figures, data)

    @_naming_store
    def register(
        self, bundle: str, tags: Mapping[str, Any], metrics: Mapping[str, float], card: str, model: str
    ) -> str:
        """Registers a bundle as a version; returns the version's number.

        Args:
            bundle: the bundle's folder, or its address in an object store.
            card: the model card, cut to the length that the store accepts.
            model: the id of the bundle's MLflow model (`log_model`).
        """
        _agree(self._client.create_registered_model, self.name)
        most = mlflow_runs.VALUE_CHARACTERS
        figures = {f"metric.{mlflow_runs.metric_name(name)}": f"{value:.6g}" for name, value in metrics.items()}
        labels = {name: str(value)[:most] for name, value in {**tags, **figures, BUNDLE: bundle}.items()}
        created = self._client.create_model_version(
            self.name,
            f"{SCHEME}{model}",
            self._run_id,
            tags=labels,
            description=mlflow_runs.shortened(card),
            model_id=model,
        )
        return str(created.version)

    @_naming_store
    def withdraw(self, number: str) -> None:
        """Deletes a version that was registered but not promoted in time."""
        self._client.delete_model_version(self.name, number)

    @_naming_store
    def aliases(self) -> Aliases:
        """Sets the aliases to those of the last move; returns the aliases."""
        move, versions = self._set_aliases(), self._aliases()
        return Aliases(versions.get(CHAMPION), versions.get(PREVIOUS), move)

    def promote(self, number: str, seen: Aliases | None = None) -> bool:
        """Makes a version the champion, and the former champion `previous`; returns whether the aliases were moved.

        With `seen`, nothing is moved if the aliases have been moved since `seen` was read.
        """
        while True:
            now = seen or self.aliases()
            if now.champion == number or self._move(now, number, now.champion or ""):
                return True
            if seen:
                return False

    def roll_back(self) -> tuple[str, str]:
        """Exchanges `champion` and `previous`, which must exist; returns the new and the former champion."""
        while True:
            now = self.aliases()
            if not now.champion or not now.previous or now.champion == now.previous:
                raise UserError(f"the model {self.name!r} has no previous champion: gnn-encoder models promote VERSION")
            if self._move(now, now.previous, now.champion):
                return now.previous, now.champion

    @_naming_store
    def _move(self, seen: Aliases, champion: str, previous: str) -> bool:
        """Moves the aliases; returns False if another process has moved the aliases since `seen` was read."""
        _agree(self._client.create_registered_model, self._moves)
        # If an answer is lost, the request is sent again and makes a second version. The source marks both as ours.
        # The source is an address without content; a server requires an address with a path.
        source = f"move://champion/{uuid.uuid4()}"
        tags = {AFTER: seen.move, CHAMPION: champion, PREVIOUS: previous}
        self._client.create_model_version(self._moves, source, tags=tags)
        won = any(move.source == source for move in self._valid_moves())
        self._set_aliases()
        return won

    def _valid_moves(self) -> list[Any]:
        """Returns the valid moves, in order: each is the first move that names the valid move before it."""
        valid: list[Any] = []
        for move in self._entities(self._moves):
            if move.tags.get(AFTER) == (str(valid[-1].version) if valid else "0"):
                valid.append(move)
        return valid

    def _set_aliases(self) -> str:
        """Sets the aliases to those of the last move, unless that is done; returns the move's number."""
        done = ""
        while moves := self._valid_moves():
            last, number = moves[-1], str(moves[-1].version)
            if SET in last.tags and done in ("", number):
                return number
            for alias in (CHAMPION, PREVIOUS):
                if version := last.tags.get(alias):
                    _agree(self._client.set_registered_model_alias, self.name, alias, version)
            _agree(self._client.set_model_version_tag, self._moves, number, SET, "yes")
            # Others may have moved the aliases between reading and setting, which may be hours apart: read again.
            done = number
        return "0"

    def _aliases(self) -> dict[str, str]:
        """Returns {alias: version}."""
        for model in self._client.search_registered_models(f"name = '{self.name}'"):
            return {alias: str(version) for alias, version in model.aliases.items()}
        return {}

    def _entities(self, name: str) -> list[Any]:
        """Returns MLflow's versions of a model, oldest first."""
        entities = mlflow_runs.all_pages(self._client.search_model_versions, f"name = '{name}'")
        return sorted(entities, key=lambda entity: int(entity.version))


def _agree(method: Callable[..., Any], *arguments: str) -> None:
    """Calls a method that creates or sets an object that other processes may create, set or delete at the same time."""
    from mlflow.exceptions import MlflowException

    try:
        method(*arguments)
    except MlflowException as error:
        if error.error_code == "BAD_REQUEST":  # two processes inserted a row at once: now the row exists and is updated
            method(*arguments)
        elif error.error_code not in ("RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"):
            raise


def open_registry(uri: str, name: str) -> Registry:
    """Returns the registered model `name`, which need not exist yet, in the store at `uri`."""
    with mlflow_runs.reaching(uri) as client:
        return Registry(client, uri, name)


def registry_of(run: mlflow_runs.StepLog, name: str) -> Registry | None:
    """Returns the registered model `name` in the store that tracks a step's run, None for an untracked run."""
    return Registry(run.client, os.environ["MLFLOW_TRACKING_URI"], name, run.run_id) if run.client else None


def named_bundle(name: str, root: Path) -> Path:
    """Returns the local folder of the bundle that a user names by its folder, `s3://` address or version.

    A version (`models:/NAME@ALIAS`, `models:/NAME/VERSION`) is looked up in the tracking store of the environment, else
    of the root. If ROOT/latest links to the same bundle, the path in ROOT/latest is returned, because that folder also
    holds the artifacts that explain the bundle.
    """
    version = named_version(name, root)
    if version is None:
        if not is_remote(name) and not local_folder(name).is_dir():
            raise UserError(
                f"no bundle {name}: name a folder such as gnn-encoder-runs/latest/bundle, an s3:// address or "
                f"{SCHEME}NAME@ALIAS"
            )
        return local_folder(name)
    return version_folder(version, root)


def named_version(name: str, root: Path) -> Version | None:
    """Returns the version that `models:/NAME@ALIAS` or `models:/NAME/VERSION` names now; None for other names.

    Raises:
        UserError: there is no such version, or the tracking store cannot be asked.
    """
    registered = parse_name(name)
    if registered is None:
        return None
    model, version = registered
    with impatient():
        return open_registry(existing_store(root), model).find(version)


def version_folder(version: Version, root: Path) -> Path:
    """Returns the local folder of a version's bundle; the path in ROOT/latest if that links to the same bundle."""
    with impatient():
        folder = version.bundle_folder()
    latest = root / "latest" / "bundle"
    return latest if latest.exists() and latest.resolve() == folder else folder


def parse_name(text: str) -> tuple[str, str] | None:
    """Returns name and alias (or version) in `models:/NAME@ALIAS` or `models:/NAME/VERSION`, None for other schemes."""
    if not text.startswith(SCHEME):
        return None
    if not (parts := re.fullmatch(f"{SCHEME}([^@/]+)[@/]([^@/]+)", text)):
        raise UserError(f"{text}: write {SCHEME}NAME@ALIAS or {SCHEME}NAME/VERSION")
    return parts[1], parts[2]
