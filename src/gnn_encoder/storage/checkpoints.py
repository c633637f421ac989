"""Where a training step's checkpoints live: a folder on this machine, or an object store that other machines see.

Beside a checkpoint's files stands `SHA256SUMS`, as sha256sum writes it. Damage is noticed before anything is loaded.

In a store each file has an address of its own, `ROOT/STEP-KEY/files/DIGEST-NAME`, and is sent once. A state,
`ROOT/STEP-KEY/states/STEPS-…`, is the list of its files. It is sent after them, and only then the earlier ones are
removed: an interruption leaves a complete state.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gnn_encoder.artifacts.folder import sha256
from gnn_encoder.errors import UserError, one_line
from gnn_encoder.storage import get_folder, is_remote, put_folder
from gnn_encoder.storage.folders import remove_folder, versions

SUMS = "SHA256SUMS"
IN_TRANSIT = "in-transit"
"""Folder below a checkpoint's for what is being sent or fetched."""
DIGITS = 12


def seal(partial: Path, path: Path) -> None:
    """Rename a file of a checkpoint that is complete, and note its SHA-256."""
    new = f"{sha256(partial)}  {path.name}"
    before = _sums(path.parent)
    # Until the file has its new name, its former content has to count as sound: this process may be killed here.
    _write_sums(path.parent, {**before, new: path})
    partial.replace(path)
    _write_sums(path.parent, {**{line: file for line, file in before.items() if file != path}, new: path})


def _sums(folder: Path) -> dict[str, Path]:
    """Line of the digests' file → the file that it is about, of files that exist."""
    path = folder / SUMS
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []
    files = {line: folder / line[66:] for line in lines}
    return {line: file for line, file in files.items() if file.is_file()}


def _write_sums(folder: Path, lines: Collection[str]) -> None:
    partial = folder / f".{SUMS}.partial"
    partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    partial.replace(folder / SUMS)


def _address(line: str) -> str:
    """Where a file is in the store, below `files/`: two files of one content have two names."""
    return line.replace("  ", "-")


class Checkpoints:
    """The checkpoints of one call of a step.

    Args:
        root: a folder, or an `s3://` address.
        name: of the call, the same for the same work.
        warn: called with what the user should know, also by another thread.
    """

    def __init__(self, root: str, name: str, warn: Callable[[str], None] = print) -> None:
        self._uri = f"{root.rstrip('/')}/{name}" if is_remote(root) else ""
        self.folder = Path(tempfile.gettempdir() if self._uri else root) / name
        """What is written and read, on this machine."""
        self._warn = warn
        self._sender = ThreadPoolExecutor(1, "checkpoints")
        self._sending: tuple[Future[None], Path] | None = None

    def fetch(self, steps_done: Callable[[Path], int]) -> None:
        """Put the newest complete state into the folder; a damaged one is removed.

        Args:
            steps_done: how many steps the state in a folder has done, -1 without one. The folder's may be further
                than the store's, where the store was away.

        Raises:
            UserError: the store cannot be used.
        """
        arriving = self.folder / IN_TRANSIT
        shutil.rmtree(arriving, ignore_errors=True)  # of a killed process
        sums, files = _sums(self.folder), (path for path in self.folder.glob("[!.]*") if path.name != SUMS)
        if damaged := next((path for path in files if f"{sha256(path)}  {path.name}" not in sums), None):
            self._warn(f"the checkpoint {damaged} is damaged and is removed: training starts again without it")
            shutil.rmtree(self.folder)
        states = versions(f"{self._uri}/states") if self._uri else {}
        newest = max((state for state, complete in states.items() if complete), default="")
        if newest and int(newest[:DIGITS]) > steps_done(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
            get_folder(f"{self._uri}/states/{newest}", arriving)
            lines = (arriving / SUMS).read_text("utf-8").splitlines()
            if not all(re.fullmatch(r"[0-9a-f]{64}  [\w.-]+", line) for line in lines):
                raise UserError(f"{self._uri}/states/{newest}/{SUMS} is corrupt: delete {self._uri} and run again")
            for line in lines:
                get_folder(f"{self._uri}/files/{_address(line)}", arriving / "file")
                (arriving / "file" / line[66:]).replace(self.folder / line[66:])
            _write_sums(self.folder, lines)
            shutil.rmtree(arriving)

    def keep(self, steps: int) -> None:
        """Have a thread send the folder as the state after so many steps; training goes on meanwhile.

        Of states that wait for an earlier one to be sent, the last is sent. A store that is away costs a warning.
        """
        if not self._uri:
            return
        if self._sending and self._sending[0].cancel():  # it had not begun
            shutil.rmtree(self._sending[1])
        (self.folder / IN_TRANSIT).mkdir(exist_ok=True)
        snapshot, lines = Path(tempfile.mkdtemp(dir=self.folder / IN_TRANSIT)), _sums(self.folder)
        (snapshot / "state").mkdir()
        _write_sums(snapshot / "state", lines)
        for line, file in lines.items():
            linked = snapshot / "files" / _address(line)
            linked.mkdir(parents=True)
            os.link(file, linked / file.name)  # a file of a checkpoint is replaced, never written again
        self._sending = self._sender.submit(self._send, snapshot, steps), snapshot

    def _send(self, snapshot: Path, steps: int) -> None:
        with self._warning(f"the checkpoint after {steps:,} steps is on this machine alone"):
            state = f"{steps:0{DIGITS}}-{sha256(snapshot / 'state' / SUMS)[:DIGITS]}"
            files = {path.name for path in (snapshot / "files").iterdir()}
            there = versions(f"{self._uri}/files")
            for name in (name for name in files if not there.get(name)):
                put_folder(snapshot / "files" / name, f"{self._uri}/files/{name}")
            if not versions(f"{self._uri}/states").get(state):
                put_folder(snapshot / "state", f"{self._uri}/states/{state}")
            self._forget({state}, files)
        shutil.rmtree(snapshot, ignore_errors=True)

    def finish(self) -> None:
        """Wait until the last state is sent."""
        self._sender.shutdown()

    def drop(self) -> None:
        """Remove them all: the step's outputs stand."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._uri:
            self._forget(set(), set())

    def _forget(self, *kept: set[str]) -> None:
        """Remove all states, then all files, but for those that are kept."""
        with self._warning("checkpoints that nobody needs are left in the store"):
            for kind, names in zip(("states", "files"), kept, strict=True):
                for name in versions(f"{self._uri}/{kind}").keys() - names:
                    remove_folder(f"{self._uri}/{kind}/{name}")

    @contextmanager
    def _warning(self, what: str) -> Iterator[None]:
        """A block whose failure, whatever it is, ends no training."""
        try:
            yield
        except Exception as error:
            self._warn(f"{what}: {one_line(error)}")
