"""The labels that people give on a server's page, in a file that `ingest.labels` reads: `labels.jsonl` (artifacts)."""

import os
import time
from pathlib import Path
from threading import Lock

from gnn_encoder.artifacts.added_labels import AddedLabel, new_query_id, read_labels, write_labels
from gnn_encoder.artifacts.replacing import replacing
from gnn_encoder.artifacts.texts import folded
from gnn_encoder.errors import Damaged, UserError

MOST = 10_000
"""Labels that one file takes: each change writes the file anew."""


class Feedback:
    """A file of labels that one server writes. Several threads may use it; a crash leaves the old file or the new.

    What another program writes to it meanwhile, such as `forget`, is read before the next change.
    """

    def __init__(self, path: Path) -> None:
        """Reads what is there; raises UserError if it is no file of labels, or cannot be written."""
        self._path, self._lock = path, Lock()
        self._labels: list[AddedLabel] = []
        self._state: tuple[int, int, int] | None = None
        self._refresh()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write(self._labels)
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}): name another file by --labels") from None

    def mark(self, question: str, passage_id: str, relevant: bool) -> int:
        """Adds or removes a label; returns how many there are.

        Raises:
            UserError: the file is full, or cannot be written. `Damaged`: another program has damaged it.
        """
        question = question.strip()
        with self._lock:
            try:
                self._refresh()
            except UserError as error:
                raise Damaged(str(error)) from error
            form = folded(question)
            labels = [label for label in self._labels if label.passage_id != passage_id or folded(label.query) != form]
            if relevant and len(labels) == len(self._labels):
                if len(labels) >= MOST:
                    raise UserError(f"the file has {MOST:,} labels: train on them, and go on with a new file")
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                labels.append(AddedLabel(new_query_id(question), question, passage_id, now))
            elif relevant:
                return len(self._labels)
            try:
                self._write(labels)
            except OSError as error:
                raise UserError(f"the label cannot be kept: {error.strerror}") from None
            self._labels = labels
            return len(labels)

    def _refresh(self) -> None:
        """Reads the labels if the file is not the one that was last read or written."""
        if (state := _state(self._path)) != self._state:
            self._labels = read_labels(self._path) if state else []
            self._state = state

    def _write(self, labels: list[AddedLabel]) -> None:
        with replacing(self._path) as partial:
            write_labels(partial, labels)
            with partial.open("rb") as written:
                os.fsync(written.fileno())
            state = _state(partial)
        self._state = state


def _state(path: Path) -> tuple[int, int, int] | None:
    """Returns what differs once another program has written a file; None: there is no file."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
