"""The log of a server's questions, for `watch`: who asked is not in it.

FOLDER/questions-2026-11-30.jsonl has a line for each question of a day (UTC): time, question, the id of the first hit
and its score by the default ranking, and the digest of the bundle. The file of a day is deleted when it is old.
"""

import json
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from errno import ENOSPC
from os import strerror
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from gnn_encoder.artifacts.texts import folded, is_blank, text_lines
from gnn_encoder.errors import UserError
from gnn_encoder.serving.following import Served
from gnn_encoder.serving.watching import FEWEST, Drift, Watched, distinct

NAME = re.compile(r"questions-([0-9]{4}-[0-9]{2}-[0-9]{2})\.jsonl")
"""Name of the file of a day. Other files in the folder are not the log's."""
DAY = 86_400
LATEST = 200
"""Questions that the metrics are about."""
AT_ONCE = 8
"""Questions that are encoded for the metrics at each look, a sample if more arrive: a search waits meanwhile."""


class QuestionLog:
    """A folder that one server writes; several threads may use it."""

    def __init__(self, folder: Path, days: int) -> None:
        """Deletes files of more than `days` days ago; raises UserError if the folder cannot be written."""
        self._folder, self._days, self._lock, self._today = folder, days, Lock(), ""
        self._new: deque[tuple[str, float | None]] = deque(maxlen=AT_ONCE)
        self._latest: dict[str, tuple[float, np.ndarray | None]] = {}
        self._watched: Watched | None = None
        self._digest = ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write([])
        except OSError as error:
            raise UserError(f"{folder} cannot be written ({error.strerror}): name another folder by --log") from None

    def add(self, served: Served, results: Sequence[Mapping[str, Any]], by_default: bool) -> None:
        """Adds the questions of one answer; `by_default`: they were ranked as the bundle ranks by default.

        A full disk ends the log, and no answer.
        """
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        bundle, lines = served.retriever.bundle.manifest.digest, []
        for result in results:
            first = result["hits"][0] if result["hits"] else None
            score = first["score"] if first and by_default else None
            line = {"time": now, "question": result["question"], "passage": first["passage_id"] if first else None}
            lines.append(json.dumps(line | {"score": score, "bundle": bundle}, ensure_ascii=False))
            # A question whose hit was hidden is searched again for its score, but not re-ranked again.
            if by_default and (score is not None or not served.retriever.reranks()):
                self._new.append((result["question"], score))
        try:
            self._write(lines)
        except OSError as error:
            print(f"the log of questions cannot be written: {error.strerror}", flush=True)

    def drift(self, served: Served) -> Drift | None:
        """Returns how the latest distinct questions drift; None: no new one, or nothing to compare with.

        Files that are too old are deleted, also while nobody asks.
        """
        self._write([])
        digest = served.retriever.bundle.manifest.digest
        if digest != self._digest:  # other scores and vectors
            if self._digest:
                self._new.clear()
            self._digest, self._latest = digest, {}
            calibration = served.retriever.bundle.calibration
            enough = calibration is not None and len(calibration.queries) >= FEWEST
            self._watched = Watched(served.retriever) if enough else None
        new = [self._new.popleft() for _ in range(len(self._new))]
        if self._watched is None or not new:
            return None
        questions = [question for question, _ in new]
        vectors = self._watched.vectors(questions) if self._watched.has_vectors else None
        scores = self._watched.scores(questions, [score for _, score in new])
        for i, question in enumerate(questions):
            self._latest[folded(question)] = (float(scores[i]), None if vectors is None else vectors[i])
        self._latest = dict(list(self._latest.items())[-LATEST:])
        latest, rows = zip(*self._latest.values(), strict=True)
        stacked = None if vectors is None else np.stack(rows)
        return self._watched.drift(np.array(latest, np.float64), stacked)

    def _write(self, lines: Sequence[str]) -> None:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        with self._lock:
            if today != self._today:
                oldest = time.strftime("%Y-%m-%d", time.gmtime(time.time() - self._days * DAY))
                for day, file in _files(self._folder).items():
                    if day < oldest:
                        file.unlink()
                self._today = today
            if lines:
                content = "".join(f"{line}\n" for line in lines).encode()
                with (self._folder / f"questions-{today}.jsonl").open("ab", buffering=0) as written:
                    size = written.tell()
                    if written.write(content) < len(content):
                        written.truncate(size)  # half a line would make the log unreadable
                        raise OSError(ENOSPC, strerror(ENOSPC))


def _files(folder: Path) -> dict[str, Path]:
    """Returns the files of a log by their days, oldest first."""
    return {name[1]: file for file in sorted(folder.iterdir()) if (name := NAME.fullmatch(file.name))}


def logged(path: Path) -> list[dict[str, Any]]:
    """Reads a log: a folder of `QuestionLog`, or a file of JSON lines with `question` or `query`, oldest first.

    Returns:
        Objects with `question`, the first of each that are equal when folded.

    Raises:
        UserError: there is no such file, or a line is no such object.
    """
    files = list(_files(path).values()) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise UserError(f"{path}: no log of questions; name the folder of `serve --log`, or a file of JSON lines")
    rows = []
    for file in files:
        try:
            lines = list(text_lines(file))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read ({error}): name a log of `serve --log`, or JSON lines") from None
        for number, line in lines:
            try:
                row = json.loads(line)
                question = row.get("question", row.get("query"))
                question.encode()
            except (ValueError, AttributeError):
                question = None
            if question is None or is_blank(question):
                raise UserError(f'{file} line {number}: not a JSON object with a text as "question" or "query"')
            rows.append(row | {"question": question})
    return [rows[number] for number in distinct([row["question"] for row in rows])]
