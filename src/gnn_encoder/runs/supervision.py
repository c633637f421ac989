"""The engine's process: started, listened to, interrupted in order, never left behind."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Event = dict[str, Any]
"""A line of the event file (`progress.emit`): `step`, `event`, `time`, and facts of the event."""

POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
"""How long an interrupted step has to end in order before it is killed."""


class Interrupted(Exception):
    """The user, or whoever stops this machine, ended the run."""


def supervise(
    command: list[str], environment: Mapping[str, str], log: Path, events: Path, hear: Callable[[list[Event]], None]
) -> int:
    """Run `command` to its end in a session of its own and pass on its events; its exit code.

    Ctrl-C and SIGTERM are sent on to it and everything it started, once; a second one, or too long
    an ending, kills. `hear` is called ten times a second, also without news.

    Raises:
        Interrupted: after all its processes have ended, if a signal came.
    """
    events.touch()
    with log.open("ab") as output, events.open("rb") as lines:
        engine = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            with _forwarding_signals(engine.pid) as stop:
                while True:
                    code = engine.poll()
                    hear(_new_events(lines))
                    if code is not None:
                        break
                    if stop.overdue():
                        _signal_group(engine.pid, signal.SIGKILL)
                    time.sleep(POLL_SECONDS)
        finally:
            _signal_group(engine.pid, signal.SIGKILL)  # whatever it may have left behind
            engine.wait()
    if stop.since is not None:
        raise Interrupted
    return code


class _Stop:
    """When the user asked to stop, and whether that is too long ago."""

    since: float | None = None

    def overdue(self) -> bool:
        return self.since is not None and time.monotonic() > self.since + PATIENCE_SECONDS


@contextmanager
def _forwarding_signals(group: int) -> Iterator[_Stop]:
    stop = _Stop()

    def forward(signum: int, frame: object) -> None:
        # A step hears SIGINT as KeyboardInterrupt: it discards its drafts and closes its tracked run.
        _signal_group(group, signal.SIGINT if stop.since is None else signal.SIGKILL)
        stop.since = time.monotonic() if stop.since is None else stop.since

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_group(group: int, number: int) -> None:
    # All of it has ended; macOS says PermissionError where nobody has waited for the ended processes yet.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _new_events(lines: Any) -> list[Event]:
    """The complete lines written since the last look."""
    found: list[Event] = []
    while (line := lines.readline()).endswith(b"\n"):
        # A full disk may have cut a line; the next event starts a new one.
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    lines.seek(-len(line), os.SEEK_CUR)  # a line that is still being written
    return found
