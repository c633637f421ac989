"""Versions of a bundle with added labels, and the link that names the version in use.

ROOT/latest/bundle                 a link to the run's bundle, or to a version below
ROOT/latest/.labels/0003/bundle    a version: links to the files of the run's bundle, and the folder `added/`
ROOT/latest/.labels/0003/former    a link to the bundle before

The bundles in ROOT/latest/bundles share ROOT/latest/bundles/.labels.

A change writes a whole version first and then replaces the link, in one step of the file system. So a process that is
killed leaves the old bundle or the new one. The run's bundle never changes: KFP's cache and the registry name it.
"""

import fcntl
import shutil
from pathlib import Path

from gnn_encoder.artifacts import Bundle, drafting
from gnn_encoder.artifacts.added_labels import AddedLabels
from gnn_encoder.errors import UserError

FOLDER, FORMER, LOCK = ".labels", "former", ".lock"
KEPT = 20
"""Changes that can be taken back."""


class Versions:
    """The versions behind a link; as a context manager it waits until no other process changes them.

    Several paths may lead to the folder with the link: all of them are the same versions.
    """

    def __init__(self, link: Path) -> None:
        folder = link.parent.resolve()
        self.link, self._folder = folder / link.name, (folder / FOLDER).resolve()

    @classmethod
    def of(cls, link: Path) -> "Versions":
        """Raises UserError if the path is no link."""
        link = link.absolute()
        if not link.is_symlink():
            raise UserError(
                f"{link} is a folder and not a link to one, and a run's bundle is never changed: give --bundle "
                "ROOT/latest/bundle of a finished run"
            )
        return cls(link)

    def __enter__(self) -> "Versions":
        try:
            self._folder.mkdir(exist_ok=True)
            self._lock = (self._folder / LOCK).open("w")
        except OSError as error:
            raise UserError(
                f"cannot write to {self._folder}: {error.strerror}; labels need a writable folder"
            ) from None
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    def write(self, bundle: Bundle, added: AddedLabels) -> None:
        """Writes a version of the bundle with other added labels, and makes the link name it."""
        former, chain = self.link.readlink(), self._chain()
        numbers = [int(folder.name) for folder in self._folder.iterdir() if folder.name.isdigit()]
        version = self._folder / f"{max(numbers, default=0) + 1:04}"
        with drafting(version / self.link.name, "bundle") as draft:
            bundle.with_added(draft, added)
        (version / FORMER).symlink_to(former)
        self._name(version / self.link.name)
        self._delete_all_but([version, *chain[:KEPT]])

    def undo(self) -> None:
        """Makes the link name the bundle before the last change; raises UserError if there is none."""
        chain = self._chain()
        former = (chain[0] / FORMER).readlink() if chain and (chain[0] / FORMER).is_symlink() else None
        if former is None or not (self.link.parent / former).exists():
            raise UserError(f"{self.link} has no change of labels to take back: see gnn-encoder labels list")
        self._name(former)
        self._delete_all_but(chain[1:])

    def keep_present(self) -> None:
        """Deletes the versions that no link names now, so that nothing can be taken back."""
        if self._folder.is_dir():
            self._delete_all_but(self._chain()[:1])

    def _chain(self) -> list[Path]:
        """Returns the folders of the versions from the one in use back to the run's bundle, newest first."""
        chain, target = [], self.link.parent / self.link.readlink()
        while (version := target.parent.resolve()).parent == self._folder and target.exists():
            chain.append(version)
            target = self.link.parent / (version / FORMER).readlink()
        return chain

    def _name(self, target: Path) -> None:
        fresh = self._folder / "link"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(target)
        fresh.replace(self.link)

    def _delete_all_but(self, kept: list[Path]) -> None:
        links = [link for link in self.link.parent.iterdir() if link.is_symlink()]
        others = [folder for link in links if link != self.link for folder in Versions(link)._chain()]
        kept = [*kept, *others, *(link.resolve().parent for link in links)]
        for folder in self._folder.iterdir():
            if folder.is_dir() and folder not in kept:
                shutil.rmtree(folder, ignore_errors=True)
