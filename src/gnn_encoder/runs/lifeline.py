"""A step lives no longer than the run that started it, so that a rerun never races an orphan.

Every process of a run watches its launcher and dies with it, even where the launcher was killed with
-9 and could tell nobody. The launcher holds a lock on the root; its steps share a second one, which
a beginning run must find free.
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
"""Environment variable: process id of the launcher."""
STEPS_LOCK = "GNN_ENCODER_STEPS_LOCK"
"""Environment variable: the lock file that a root's steps share."""
GRACE_SECONDS = 3.0
"""How long a beginning run waits for the processes of a killed one to be gone."""

_held: list[IO[str]] = []


def steps_lock(root: Path) -> Path:
    """The lock file that the steps of a root share."""
    return root / ".lock-steps"


def take(root: Path) -> IO[str]:
    """Begin a run: the root is ours until the returned file is closed or this process ends.

    Raises:
        UserError: another run, or a step of one, is going on under the same root.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    file = _lock(root / ".lock", deadline)
    _lock(steps_lock(root), deadline).close()
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
    """Called by a step's process: share the steps' lock, die with the launcher, end on SIGTERM in order.

    Without a launcher (a cluster's container, a test) only the last.
    """
    if threading.current_thread() is threading.main_thread():
        # As Ctrl-C: drafts are discarded and the tracked run ends KILLED.
        signal.signal(signal.SIGTERM, _interrupt)
    if lock := os.environ.get(STEPS_LOCK):
        file = Path(lock).open("a", encoding="utf-8")  # noqa: SIM115  held until the process ends
        fcntl.flock(file, fcntl.LOCK_SH)
        _held.append(file)
    if launcher := os.environ.get(LAUNCHER):
        threading.Thread(target=_die_with, args=(int(launcher),), name="lifeline", daemon=True).start()


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _die_with(launcher: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it is gone already
        if sys.platform == "linux":
            # Readable when the process ends: no polling, and no other process that got its id meanwhile.
            poll = select.poll()
            poll.register(os.pidfd_open(launcher), select.POLLIN)
            poll.poll()
        else:
            with contextlib.suppress(PermissionError):  # another user's process has its id by now
                while True:
                    os.kill(launcher, 0)
                    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
