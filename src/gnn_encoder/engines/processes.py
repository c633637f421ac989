"""Runs the steps of a local run as processes, later ones as forks of a process that has imported the large libraries.

A new process imports torch, transformers and MLflow for 6 s of processor time in each step; a fork already has them.
Python's fork server does nothing but import and fork. Its only threads are those of OpenBLAS and jemalloc, which
survive a fork, and it does not ask for GPUs, because CUDA does not survive one. Libraries of macOS do not
survive one either, so steps are forked on Linux only.
"""

import math
import os
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from multiprocessing import forkserver, get_context, util
from multiprocessing import spawn as _spawn  # noqa: F401  it notes sys.executable

FORK_AFTER = "GNN_ENCODER_FORK_AFTER"
"""Environment variable: how many steps of a run are new processes, while the fork server imports beside them on another
core; by default 2. If it is no number, such as `never`, there is no fork server."""
IMPORTS = (
    "gnn_encoder.engines.step",
    "matplotlib.backends.backend_svg",
    "mlflow.store.tracking.sqlalchemy_store",
    "transformers.models.auto.modeling_auto",
    "transformers.modeling_utils",
    *(f"gnn_encoder.steps.{step}" for step in ("rank", "fuse_parts", "choose_graph", "promote")),
)
"""What the fork server imports."""


class StepProcesses:
    """Starts one step at a time."""

    def __init__(self) -> None:
        self._interrupted = False
        after = os.environ.get(FORK_AFTER) or "2"
        self._new_processes = int(after) if sys.platform == "linux" and after.isdecimal() else math.inf
        if self._new_processes < math.inf:
            _make_temporary_folder()
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(IMPORTS))

    def run(self, step: str, executor_input: str) -> int:
        """Runs a step and returns its exit code, negative for a signal that ended it."""
        if self._new_processes < math.inf:
            forkserver.ensure_running()
        self._new_processes -= 1
        if self._new_processes >= 0:
            return self._reported(_new_process(step, executor_input))
        process = self._context.Process(target=_execute, args=(step, executor_input))
        try:
            process.start()
        except (EOFError, ConnectionError):  # the fork server has ended: by Ctrl-C, or by an error of an import
            self._new_processes = math.inf
            return 1 if self._interrupted else self._reported(_new_process(step, executor_input))
        process.join()
        return self._reported(int(process.exitcode or 0))

    def interrupt(self) -> None:
        """Notes an interruption. The running step has the signal, too, and ends by itself."""
        self._interrupted = True

    def _reported(self, code: int) -> int:
        if code < 0:
            print(signal.strsignal(-code))  # as a shell says it
        return code


def _new_process(step: str, executor_input: str) -> int:
    command = [sys.executable, "-m", "gnn_encoder.steps", step, "--executor_input", executor_input]
    return subprocess.run(command, check=False).returncode


def _execute(step: str, executor_input: str) -> None:
    import_module("gnn_encoder.steps.__main__").main([step, "--executor_input", executor_input])


def _make_temporary_folder() -> None:
    """Makes multiprocessing's folder for its sockets, whose paths have at most 107 bytes; a root's may be longer."""
    usual = tempfile.gettempdir()
    tempfile.tempdir = f"/proc/{os.getpid()}/fd/{os.open(usual, os.O_RDONLY)}"  # the same folder by a short name
    util.get_temp_dir()
    tempfile.tempdir = usual
