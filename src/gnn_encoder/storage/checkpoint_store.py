"""Where a training step's checkpoints are kept: a folder on this machine, or an object store that other machines see.

Beside a checkpoint's files is `SHA256SUMS`, as sha256sum writes it. Damage is noticed before anything is loaded.

In a store each file has a name of its own, `ROOT/STEP-KEY/files/DIGEST-NAME`, and is sent once. A state,
`ROOT/STEP-KEY/states/STEPS-…`, is the `SHA256SUMS` of its files. It is sent after them, and only then the earlier
states and their files are removed: an interruption leaves a complete state.
"""

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.artifacts.replacing import partial_of, replace_content
from gnn_encoder.errors import Missing, UserError, one_line
from gnn_encoder.storage.s3 import is_remote
from gnn_encoder.storage.transfer import Listing, fetch_files, list_folder, put_files, remove_files

SUMS = "SHA256SUMS"
IN_TRANSIT = "in-transit"
"""Folder below a checkpoint's for files that are being sent or fetched."""
FILES, STATES = "files/", "states/"
DIGITS = 12
STATE = re.compile(rf"{STATES}\d{{{DIGITS}}}-[0-9a-f]{{{DIGITS}}}")


_CHANGE = threading.Lock()
"""Held while a thread changes the files of a checkpoint or their list: a training's thread does, and so does the thread
that writes its states."""


@contextmanager
def sealed(path: Path) -> Iterator[Path]:
    """Yields a file to write, which becomes a file of a checkpoint after the block: its SHA-256 is recorded."""
    path.parent.mkdir(parents=True, exist_ok=True)
    yield (partial := partial_of(path))
    new = f"{sha256(partial)}  {path.name}"
    with _CHANGE:
        before = _sums(path.parent)
        # Until the file has its new name, its former content has to count as sound: this process may be killed here.
        _write_sums(path.parent, {**before, new: path})
        partial.replace(path)
        _write_sums(path.parent, {**{line: file for line, file in before.items() if file != path}, new: path})


def discard(path: Path) -> None:
    """Remove a file of a checkpoint that no later state needs."""
    with _CHANGE:
        path.unlink(missing_ok=True)


def _sums(folder: Path) -> dict[str, Path]:
    """Line of `SHA256SUMS` → its file, for files that exist."""
    path = folder / SUMS
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []
    files = {line: folder / line[66:] for line in lines}
    return {line: file for line, file in files.items() if file.is_file()}


def _write_sums(folder: Path, lines: Collection[str]) -> None:
    replace_content(folder / SUMS, "".join(f"{line}\n" for line in lines).encode())


def _stored_name(line: str) -> str:
    """The name in the store of the file of a line: two files of one content have two names."""
    return FILES + line.replace("  ", "-")


def _matches(line: str, path: Path) -> bool:
    return bool(re.fullmatch(r"[0-9a-f]{64}  [\w.-]+", line)) and path.is_file() and sha256(path) == line[:64]


class Checkpoints:
    """The checkpoints of one call of a step, in a folder or at an `s3://` address (`root`).

    `name` is the call's, the same for the same work. `warn` is called with lines for the user, also by another thread.
    """

    def __init__(self, root: str, name: str, warn: Callable[[str], None] = print) -> None:
        self._uri = f"{root.rstrip('/')}/{name}" if is_remote(root) else ""
        self.folder = Path(tempfile.gettempdir() if self._uri else root) / name
        """The checkpoint on this machine."""
        self.warn = warn
        self._sender = ThreadPoolExecutor(1, "checkpoints")
        self._sending: tuple[Future[None], Path] | None = None

    def fetch(self, steps_done: Callable[[Path], int]) -> None:
        """Put the newest state into the folder; a damaged one there is removed, one in the store is a UserError.

        `steps_done` gives the number of steps of the state in a folder, -1 without one: the folder is ahead of the
        store if the store was unreachable.
        """
        arriving = self.folder / IN_TRANSIT
        shutil.rmtree(arriving, ignore_errors=True)  # of a killed process
        sums, files = _sums(self.folder), (path for path in self.folder.glob("[!.]*") if path.name != SUMS)
        if damaged := next((path for path in files if f"{sha256(path)}  {path.name}" not in sums), None):
            self.warn(f"the checkpoint {damaged} is damaged and is removed: training starts again without it")
            shutil.rmtree(self.folder)
        stored = self._stored()
        newest = max((name for name in stored if STATE.fullmatch(name)), default="")
        if newest and int(newest.removeprefix(STATES)[:DIGITS]) > steps_done(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
            state = {newest: stored[newest]}
            fetch_files(self._uri, state, arriving)
            lines = (arriving / newest).read_text("utf-8", errors="replace").splitlines()
            sound = sha256(arriving / newest)[:DIGITS] == newest[-DIGITS:]
            names = {_stored_name(line) for line in lines} & stored.keys()
            fetch_files(self._uri, state | {name: stored[name] for name in names}, arriving)
            if not sound or not all(_matches(line, arriving / _stored_name(line)) for line in lines):
                raise UserError(f"{self._uri}/{newest} is corrupt: delete {self._uri} and run again")
            for line in lines:
                (arriving / _stored_name(line)).replace(self.folder / line[66:])
            _write_sums(self.folder, lines)
            shutil.rmtree(arriving)

    def keep(self, steps: int) -> None:
        """Have a thread send the folder as the state after so many steps; training goes on meanwhile.

        Of several states that wait for an earlier one, only the last is sent. A store that is away causes a warning.
        """
        if not self._uri:
            return
        if self._sending and self._sending[0].cancel():  # it had not begun
            shutil.rmtree(self._sending[1])
        (self.folder / IN_TRANSIT).mkdir(exist_ok=True)
        snapshot = Path(tempfile.mkdtemp(dir=self.folder / IN_TRANSIT))
        (snapshot / FILES).mkdir()
        with _CHANGE:
            lines = _sums(self.folder)
            for line, file in lines.items():
                os.link(file, snapshot / _stored_name(line))  # a file of a checkpoint is replaced, never written again
        _write_sums(snapshot, lines)
        self._sending = self._sender.submit(self._send, snapshot, steps), snapshot

    def _send(self, snapshot: Path, steps: int) -> None:
        with self._warning(f"the checkpoint after {steps:,} steps is on this machine alone"):
            files = {f"{FILES}{path.name}": path for path in (snapshot / FILES).iterdir()}
            state = {f"{STATES}{steps:0{DIGITS}}-{sha256(snapshot / SUMS)[:DIGITS]}": snapshot / SUMS}
            stored = self._stored()
            for group in (files, state):
                put_files({name: path for name, path in group.items() if name not in stored}, self._uri)
            # A state of more steps is of a process that took this one's place: what is there belongs to it.
            if not any(STATE.fullmatch(name) and name > max(state) for name in stored):
                self._forget(files | state)
        shutil.rmtree(snapshot, ignore_errors=True)

    def finish(self) -> None:
        """Wait until the last state is sent."""
        self._sender.shutdown()

    def drop(self) -> None:
        """Remove all checkpoints: the step's outputs are complete."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._uri:
            self._forget(())

    def _stored(self) -> Listing:
        """The files in the store."""
        try:
            return list_folder(self._uri, indexed=False) if self._uri else {}
        except Missing:
            return {}

    def _forget(self, kept: Collection[str]) -> None:
        """Remove from the store all states, then all files, but the kept ones."""
        with self._warning("checkpoints that nobody needs are left in the store"):
            outdated = [name for name in self._stored() if name not in kept]
            for kind in (STATES, FILES):
                remove_files([name for name in outdated if name.startswith(kind)], self._uri)

    @contextmanager
    def _warning(self, action: str) -> Iterator[None]:
        """A block whose failure, whatever it is, ends no training."""
        try:
            yield
        except Exception as error:
            self.warn(f"{action}: {one_line(error)}")
