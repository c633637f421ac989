"""The engine's process: started, watched, interrupted in order, never left behind."""

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
Show = Callable[[list[Event]], None]
"""Is called ten times a second with the events since the last call, also when there are none."""
POLL_SECONDS = 0.1
PATIENCE_SECONDS = 60.0
"""Time for an interrupted step to end in order before it is killed."""


def supervise(command: list[str], environment: Mapping[str, str], log: Path, events: Path, show: Show) -> int | None:
    """Run `command` to its end in a session of its own and show its events; returns its exit code, None after a signal.

    Ctrl-C and SIGTERM are sent on to all its processes, once. A second one kills them, and so does a minute without an
    end.
    """
    events.touch()
    with log.open("ab") as output, events.open("rb") as lines:
        engine = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            with _forwarding_signals(engine.pid) as interrupted_at:
                while True:
                    code = engine.poll()
                    show(_new_events(lines))
                    if code is not None:
                        break
                    if interrupted_at and time.monotonic() > interrupted_at[0] + PATIENCE_SECONDS:
                        _signal_group(engine.pid, signal.SIGKILL)
                    time.sleep(POLL_SECONDS)
        finally:
            _signal_group(engine.pid, signal.SIGKILL)  # whatever it may have left behind
            engine.wait()
    return None if interrupted_at else code


@contextmanager
def _forwarding_signals(group: int) -> Iterator[list[float]]:
    """A block that sends signals on to a group of processes; the times at which they came."""
    times: list[float] = []

    def forward(signum: int, frame: object) -> None:
        # SIGINT is a step's KeyboardInterrupt: it discards its drafts and closes its tracked run.
        _signal_group(group, signal.SIGKILL if times else signal.SIGINT)
        times.append(time.monotonic())

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield times
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_group(group: int, number: int) -> None:
    # All of it has ended; macOS says PermissionError where nobody has waited for the ended processes yet.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _new_events(lines: Any) -> list[Event]:
    """The complete lines written since the last call."""
    events: list[Event] = []
    while (line := lines.readline()).endswith(b"\n"):
        # A full disk may have cut a line; the next event starts a new one.
        with contextlib.suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    lines.seek(-len(line), os.SEEK_CUR)  # a line that is still being written
    return events
