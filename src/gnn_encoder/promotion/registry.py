"""The model registry: versions of a model, and the aliases that say which of them is served.

`champion` is the version in service, `previous` the one before it. MLflow moves an alias in one step, but cannot
compare before it moves: two processes could each win against the same champion. Whoever moves an alias therefore
waits for its turn. It takes a ticket, which is a version of the model `NAME.turns`, as MLflow gives out each number
once, and whoever holds the lowest is next (Lamport's bakery). A ticket that stays the lowest for `STALE_SECONDS` is
of a process that died, and is torn. No clocks are compared.
"""

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from gnn_encoder.errors import UserError
from gnn_encoder.storage import is_remote
from gnn_encoder.tracking import mlflow_runs

CHAMPION, PREVIOUS = "champion", "previous"
STALE_SECONDS = 60.0
"""A turn is a few calls of the store."""
POLL_SECONDS = 0.2
BUNDLE, DIGEST, DECISION, REASON = "bundle", "digest", "decision", "reason"
"""Tags of a version: where its bundle lies, that one's digest, and what the gate said."""

Given = ParamSpec("Given")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Version:
    """A registered bundle."""

    number: str
    created: float
    """Seconds since the epoch."""
    tags: Mapping[str, str]
    aliases: tuple[str, ...]
    card: str
    """Markdown."""
    run_id: str
    """Of the run that registered it; empty where none did."""


def _telling(
    method: Callable[Concatenate["Registry", Given], Found],
) -> Callable[Concatenate["Registry", Given], Found]:
    @functools.wraps(method)
    def call(registry: "Registry", /, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        with mlflow_runs.store_errors(registry.uri):
            return method(registry, *args, **kwargs)

    return call


class Registry:
    """One registered model of one store. Every call may raise a UserError that names the store."""

    def __init__(self, client: Any, uri: str, name: str, run_id: str | None = None) -> None:
        """Nothing is asked of the store yet; `run_id` is the run that versions are registered by."""
        self.uri, self.name = uri, name
        self._client, self._run_id = client, run_id

    @_telling
    def versions(self) -> list[Version]:
        """All of them, the newest first."""
        wanted = f"name = '{self.name}'"
        page = self._client.search_model_versions(wanted)
        entities = list(page)
        while page.token:
            page = self._client.search_model_versions(wanted, page_token=page.token)
            entities += page
        aliases = self._aliases()
        return [
            Version(
                number := str(each.version),
                each.creation_timestamp / 1000,
                dict(each.tags),
                tuple(sorted(alias for alias, at in aliases.items() if at == number)),
                each.description or "",
                each.run_id or "",
            )
            for each in sorted(entities, key=lambda each: int(each.version), reverse=True)
        ]

    def at(self, alias: str) -> Version | None:
        """The version that an alias points at."""
        return next((version for version in self.versions() if alias in version.aliases), None)

    def find(self, named: str) -> Version:
        """A version by number or alias.

        Raises:
            UserError: there is none.
        """
        versions = self.versions()
        for version in versions:
            if named == version.number or named in version.aliases:
                return version
        known = [*(version.number for version in versions), *(alias for v in versions for alias in v.aliases)]
        there = f"there are {', '.join(known)}" if known else "nothing is registered under that name"
        raise UserError(f"no version or alias {named!r} of the model {self.name!r}: {there}")

    @_telling
    def logged(self, version: Version, name: str, folder: str) -> Path:
        """Fetch into `folder` what the run that registered a version logged under a name."""
        return Path(self._client.download_artifacts(version.run_id, name, folder))

    @_telling
    def register(self, bundle: str, tags: Mapping[str, Any], metrics: Mapping[str, float], card: str) -> str:
        """Make a bundle a version; its number.

        An MLflow server refuses a source on the client's disk. There the source is the registering run, and the tag
        `bundle` says where the bundle lies.

        Args:
            bundle: its folder or `s3://` address.
            card: its description, of which as much is kept as a store takes.
        """
        from mlflow.exceptions import MlflowException

        self._create(self.name)
        most = mlflow_runs.VALUE_CHARACTERS
        if len(card) > most:
            card = card[: card.rindex("\n", 0, most - 1)] + "\n…"
        figures = {f"metric.{mlflow_runs.metric_name(name)}": f"{value:.6g}" for name, value in metrics.items()}
        labels = {name: str(value)[:most] for name, value in {**tags, **figures, BUNDLE: bundle}.items()}
        source = bundle if is_remote(bundle) else Path(bundle).as_uri()
        try:
            made = self._client.create_model_version(self.name, source, self._run_id, labels, description=card)
        except MlflowException as error:
            if "model version source" not in str(error):
                raise
            source = f"runs:/{self._run_id}/bundle"
            made = self._client.create_model_version(self.name, source, self._run_id, labels, description=card)
        return str(made.version)

    @_telling
    def promote(self, number: str) -> None:
        """Make a version the champion and the former one `previous`. In one's turn only.

        `previous` moves first: whoever is killed in between leaves the champion where it was.
        """
        former = self._aliases().get(CHAMPION)
        if former == number:
            return
        if former:
            self._client.set_registered_model_alias(self.name, PREVIOUS, former)
        self._client.set_registered_model_alias(self.name, CHAMPION, number)

    @_telling
    def roll_back(self) -> tuple[str, str]:
        """Let `champion` and `previous` change places; the new champion and the former. In one's turn only.

        `champion` moves first: whoever is killed in between has rolled back.

        Raises:
            UserError: there was no other champion before.
        """
        aliases = self._aliases()
        champion, previous = aliases.get(CHAMPION), aliases.get(PREVIOUS)
        if not champion or not previous or champion == previous:
            raise UserError(f"the model {self.name!r} has no previous champion: gnn-encoder models promote VERSION")
        self._client.set_registered_model_alias(self.name, CHAMPION, previous)
        self._client.set_registered_model_alias(self.name, PREVIOUS, champion)
        return previous, champion

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A block in which no other process registers a version or moves an alias.

        Raises:
            UserError: this process stood still so long that the others took it for dead.
        """
        ticket = self._take_ticket()
        try:
            first, since = -1, 0.0
            while (now := self._first_ticket()) != ticket:
                if now is None or now > ticket:
                    raise UserError(f"the turn at {self._turns!r} was given to another process: run it again")
                if now != first:
                    first, since = now, time.monotonic()
                elif time.monotonic() - since > STALE_SECONDS:
                    self._tear(now)
                time.sleep(POLL_SECONDS)
            yield
        finally:
            self._tear(ticket)

    @property
    def _turns(self) -> str:
        return f"{self.name}.turns"

    @_telling
    def _take_ticket(self) -> int:
        self._create(self._turns, f"Tickets of those that register a version of {self.name} or move its aliases.")
        # Nothing lies there; a server wants an address with a path.
        return int(self._client.create_model_version(self._turns, f"ticket://turns/{self._turns}").version)

    @_telling
    def _first_ticket(self) -> int | None:
        held = self._client.search_model_versions(f"name = '{self._turns}'")
        return min((int(each.version) for each in held), default=None)

    @_telling
    def _tear(self, ticket: int) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.delete_model_version(self._turns, str(ticket))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # another waiting process was faster
                raise

    def _aliases(self) -> dict[str, str]:
        """Alias → version."""
        for model in self._client.search_registered_models(f"name = '{self.name}'"):
            return {alias: str(version) for alias, version in model.aliases.items()}
        return {}

    def _create(self, name: str, description: str | None = None) -> None:
        from mlflow.exceptions import MlflowException

        if self._client.search_registered_models(f"name = '{name}'"):
            return
        try:
            self._client.create_registered_model(name, description=description)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process was faster
                raise


def open_registry(uri: str, name: str) -> Registry:
    """The registered model of that name, which need not be there yet, in the store at `uri`.

    Raises:
        UserError: the store cannot be used.
    """
    with mlflow_runs.reaching(uri) as client:
        return Registry(client, uri, name)


def registry_of(run: mlflow_runs.StepRun, name: str) -> Registry | None:
    """The registered model of that name where a step's run is tracked; None where it is not."""
    return Registry(run.client, os.environ["MLFLOW_TRACKING_URI"], name, run.run_id) if run.client else None
