"""Where a training step's checkpoints live: a folder on this machine, or an object store that the next machine sees.

In a store each state has an address of its own, `ROOT/STEP-KEY/NUMBER`, and its forerunners go when it is complete:
whoever is killed in between leaves the one before.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gnn_encoder.errors import UserError
from gnn_encoder.storage import get_folder, is_remote, put_folder
from gnn_encoder.storage.folders import remove_folder, versions

DIGITS = 12


class Checkpoints:
    """The checkpoints of one call of a step.

    Args:
        root: a folder, or an `s3://` address.
        name: of the call, the same for the same work.
    """

    def __init__(self, root: str, name: str) -> None:
        self._uri = f"{root.rstrip('/')}/{name}" if is_remote(root) else ""
        self.folder = Path(tempfile.gettempdir() if self._uri else root) / name
        """What is written and read, on this machine."""

    def fetch(self, here: int = -1) -> None:
        """Put the newest complete state into the folder, where they are in a store.

        Args:
            here: steps that the state in the folder has done. Where the store was away it may be the newest.

        Raises:
            UserError: the store cannot be used.
        """
        if not self._uri:
            return
        newest = max((int(name) for name, complete in versions(self._uri).items() if complete), default=-1)
        if newest > here:
            shutil.rmtree(self.folder, ignore_errors=True)
            get_folder(f"{self._uri}/{newest:0{DIGITS}}", self.folder)

    def keep(self, number: int) -> None:
        """Send the folder as the state after so many steps. A store that is away costs a warning, not the training."""
        if not self._uri:
            return
        newest = f"{number:0{DIGITS}}"
        with _warning("this checkpoint is on this machine alone"):
            put_folder(self.folder, f"{self._uri}/{newest}")
            self._forget(each for each in versions(self._uri) if each != newest)

    def drop(self) -> None:
        """Remove them all: the step's outputs stand."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._uri:
            with _warning("checkpoints are left"):
                self._forget(versions(self._uri))

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            remove_folder(f"{self._uri}/{name}")


@contextmanager
def _warning(what: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        print(f"warning: {what}: {error}", file=sys.stderr)
