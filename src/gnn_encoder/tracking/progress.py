"""The progress of a step: events for the launcher, text lines in the log.

The launcher names a file in `GNN_ENCODER_EVENTS`; a step appends one JSON object per line to it:
{"step": ..., "event": "started" | "progress" | "finished" | "failed", "time": seconds, ...}.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EVENTS = "GNN_ENCODER_EVENTS"
EVENT_SECONDS = 0.5
LINE_SECONDS = 10.0


def emit(step: str, event: str, **facts: Any) -> None:
    """Append an event to the launcher's file, if there is a launcher."""
    path = os.environ.get(EVENTS)
    if path:
        line = json.dumps({"step": step, "event": event, "time": time.time(), **facts}, default=str)
        with Path(path).open("ab+") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                line = "\n" + line  # the previous line was cut because the disk was full
            file.write(f"{line}\n".encode())


class Progress:
    """Counts the units done in one stage of a step and reports them every half second."""

    def __init__(self, step: str, stage: str, total: int, unit: str) -> None:
        self.step, self.stage, self.total, self.unit = step, stage, total, unit
        self.done = self._before = 0
        self.note = ""
        self.began = time.monotonic()
        self._emitted = self._printed = 0.0

    @property
    def rate(self) -> float:
        """Units per second so far, without the units of an interrupted attempt."""
        return (self.done - self._before) / max(time.monotonic() - self.began, 1e-9)

    def resume(self, done: int) -> None:
        """Count `done` units of an interrupted attempt."""
        self._before = done
        self.advance(done, note=f"resumed at {done:,}")

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count `count` more units; `note` is a short text to show beside the count, such as `loss 0.31`."""
        self.done += count
        self.note = note or self.note
        now, last = time.monotonic(), self.done >= self.total
        if last or now - self._emitted >= EVENT_SECONDS:
            self._emitted = now
            facts = {"stage": self.stage, "done": self.done, "total": self.total, "unit": self.unit, "note": self.note}
            emit(self.step, "progress", **facts)
        if last or now - self._printed >= LINE_SECONDS:
            self._printed = now
            rate = f"{self.rate:,.1f} {self.unit}/s"
            tail = f" {self.note}" if self.note else ""
            print(f"{self.step}: {self.stage} {self.done:,}/{self.total:,} {self.unit}, {rate}{tail}", file=sys.stderr)


NewProgress = Callable[[str, int, str], Progress]
"""Makes the progress of a stage from its name, total and unit."""
