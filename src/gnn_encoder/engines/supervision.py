"""Starts, watches and interrupts the engine's process, and never leaves it behind."""

import contextlib
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Event = dict[str, Any]
"""A line of the event file (`progress.emit`): `step`, `event`, `time`, and other values of the event."""
Show = Callable[[list[Event]], None]
"""Called ten times a second with the events since the last call, which may be none."""
POLL_SECONDS = 0.1
PATIENCE_SECONDS, PATIENCE_AT_DEADLINE = 60.0, 15.0
"""Time in which an interrupted step can end in order; then it is killed."""


def supervise(
    command: list[str],
    environment: Mapping[str, str],
    log: Path,
    events: Path,
    show: Show,
    deadline: Callable[[], float] = lambda: math.inf,
) -> int | Literal["late"] | None:
    """Runs `command` in its own session and shows its events.

    Returns the exit code, None if it was interrupted, `late` if that was at the deadline.

    The first Ctrl-C or SIGTERM is forwarded to all processes of the command. The processes are killed after a second
    signal, or if they have not ended a minute later. At the `deadline` (`time.time()`), which may
    change meanwhile, they are interrupted, too.
    """
    events.touch()
    with log.open("ab") as output, events.open("rb") as lines:
        engine = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        try:
            with _forwarding_signals(engine.pid) as interrupted_at:
                patience, is_late = PATIENCE_SECONDS, False
                while True:
                    code = engine.poll()
                    show(_new_events(lines))
                    if code is not None:
                        break
                    if not interrupted_at and time.time() > deadline():
                        _signal_group(engine.pid, signal.SIGINT)
                        interrupted_at.append(time.monotonic())
                        patience, is_late = PATIENCE_AT_DEADLINE, True
                    if interrupted_at and time.monotonic() > interrupted_at[0] + patience:
                        _signal_group(engine.pid, signal.SIGKILL)
                    time.sleep(POLL_SECONDS)
        finally:
            _signal_group(engine.pid, signal.SIGKILL)  # also ends processes that the engine has left behind
            engine.wait()
    return "late" if is_late else None if interrupted_at else code


@contextmanager
def _forwarding_signals(group: int) -> Iterator[list[float]]:
    """Forwards signals to a group of processes inside the block; yields the times of the signals.

    Python has handlers in the main thread alone: in another one, such as a web application's, none is forwarded.
    """
    times: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield times
        return

    def forward(signum: int, frame: object) -> None:
        # SIGINT becomes a step's KeyboardInterrupt: the step discards its drafts and closes its tracked run.
        _signal_group(group, signal.SIGKILL if times else signal.SIGINT)
        times.append(time.monotonic())

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield times
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_group(group: int, number: int) -> None:
    # The group has ended. On macOS the error is PermissionError until a parent has waited for the ended processes.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _new_events(lines: Any) -> list[Event]:
    """Returns the events of complete lines written since the last call."""
    events: list[Event] = []
    while (line := lines.readline()).endswith(b"\n"):
        # A full disk may have cut a line; the next event starts a new one.
        with contextlib.suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    lines.seek(-len(line), os.SEEK_CUR)  # a line that is still being written
    return events
