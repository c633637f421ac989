"""Ends a step together with the run that started it, so that a rerun never competes with an orphan.

Every process of a run watches its launcher and ends when the launcher ends, even after `kill -9`. The launcher holds a
lock on the root. The steps of a run share a second lock, which must be free when a run begins.
"""

import contextlib
import fcntl
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO

from gnn_encoder.errors import UserError

LAUNCHER = "GNN_ENCODER_LAUNCHER"
"""Environment variable with the process id of the launcher."""
STEPS_LOCK = "GNN_ENCODER_STEPS_LOCK"
"""Environment variable with the path of the lock file that a root's steps share."""
STEPS_FILE = ".lock-steps"
"""Name of the steps' lock file in a root."""
GRACE_SECONDS = 3.0
"""How long a new run waits until the processes of a killed run have ended."""
_held: list[IO[str]] = []
"""Files whose locks this process holds until its end."""


def take(root: Path) -> IO[str]:
    """Locks a root until the returned file is closed or this process ends; a UserError if a run or step is active."""
    deadline = time.monotonic() + GRACE_SECONDS
    file = _lock(root / ".lock", deadline)
    _lock(root / STEPS_FILE, deadline).close()
    return file


def _lock(path: Path, deadline: float) -> IO[str]:
    file = path.open("a", encoding="utf-8")
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise UserError(
                    f"another run is going on in {path.parent}: wait for it, or give another --root"
                ) from None
            time.sleep(0.1)


def attach() -> None:
    """Lets SIGTERM end this step's process in order, shares the steps' lock, and ends the process with the launcher.

    Without a launcher (in a cluster's container, in a test), only SIGTERM is handled.
    """
    if threading.current_thread() is threading.main_thread():
        # SIGTERM is handled like Ctrl-C: unfinished outputs are deleted, and the MLflow run gets the status KILLED.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if lock := os.environ.get(STEPS_LOCK):
        _held.append(Path(lock).open("a", encoding="utf-8"))  # noqa: SIM115
        fcntl.flock(_held[-1], fcntl.LOCK_SH)
    if launcher := os.environ.get(LAUNCHER):
        end_with(int(launcher))


def end_with(process: int) -> None:
    """Lets this process be killed as soon as another one, by its id, has ended."""
    threading.Thread(target=_die_with, args=(process,), name="lifeline", daemon=True).start()


def _die_with(process: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a sandbox that forbids the call
            # The file becomes readable when the process ends; no polling, and reuse of the process id does not matter.
            poll = select.poll()
            poll.register(os.pidfd_open(process), select.POLLIN)
            poll.poll()
            os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended, or another user's process has its id
        while True:
            os.kill(process, 0)
            time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
