"""Runs the steps of a local run as forks of one process that has imported the large libraries.

A new process imports torch, transformers and MLflow for 6 s of processor time in each step; a fork already has them.
Python's fork server does nothing but import and fork. Its only threads are those of OpenBLAS and jemalloc, which
survive a fork, and it does not ask for GPUs, because CUDA does not survive one. Libraries of macOS do not
survive one either, so steps are forked on Linux only.
"""

import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing import forkserver, get_context, util
from multiprocessing import spawn as _spawn  # noqa: F401  it notes sys.executable, which launch.execute changes
from pathlib import Path

FORK_AFTER = "GNN_ENCODER_FORK_AFTER"
"""Environment variable: how many steps of a run are new processes, while the fork server imports beside them on another
core; by default 2. If it is no number, such as `never`, there is no fork server."""
IMPORTS = (
    "kfp.dsl.executor_main",
    "gnn_encoder.runs.step",
    "mlflow.store.tracking.sqlalchemy_store",
    "transformers.models.auto.modeling_auto",
    "transformers.modeling_utils",
)
"""What the fork server imports."""


class ForkedSteps:
    """Takes the place of `kfp.local`'s `run_local_subprocess`, which stays the way to run the first steps."""

    def __init__(self, new_process: Callable[..., int], interrupted: Callable[[], bool]) -> None:
        self._new_process, self._interrupted = new_process, interrupted
        after = os.environ.get(FORK_AFTER) or "2"
        self._new_processes = int(after) if sys.platform == "linux" and after.isdecimal() else math.inf
        if self._new_processes < math.inf:
            _make_temporary_folder()
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload(list(IMPORTS))

    def __call__(self, full_command: list[str], env_vars: Mapping[str, str] | None = None) -> int:
        """Runs a step's command and returns its exit code, negative for a signal that ended it."""
        if self._new_processes < math.inf:
            os.environ["_KFP_RUNTIME"] = "true"  # as in the command: kfp imports what a step needs, not its compiler
            forkserver.ensure_running()
        self._new_processes -= 1
        if self._new_processes >= 0:
            return self._new_process(full_command=full_command, env_vars=env_vars)
        _shell, _option, _script, program, *arguments = full_command
        process = self._context.Process(target=_execute, args=(program, arguments, dict(env_vars or {})))
        try:
            process.start()
        except (EOFError, ConnectionError):  # the fork server has ended: by Ctrl-C, or by an error of an import
            self._new_processes = math.inf
            return 1 if self._interrupted() else self._new_process(full_command=full_command, env_vars=env_vars)
        process.join()
        code = int(process.exitcode or 0)
        if code < 0:
            print(signal.strsignal(-code))  # as a shell says it
        return code


def _make_temporary_folder() -> None:
    """Makes multiprocessing's folder for its sockets, whose paths have at most 107 bytes; a root's may be longer."""
    usual = tempfile.gettempdir()
    tempfile.tempdir = f"/proc/{os.getpid()}/fd/{os.open(usual, os.O_RDONLY)}"  # the same folder by a short name
    util.get_temp_dir()
    tempfile.tempdir = usual


def _execute(program: str, arguments: list[str], environment: Mapping[str, str]) -> None:
    """Does in this process what the command of a component does in a new one; functions of `atexit` are not called."""
    from kfp.dsl import executor_main

    os.environ.update(environment)
    file = Path(tempfile.mkdtemp()) / "ephemeral_component.py"
    file.write_text(program, encoding="utf-8")
    sys.argv = [executor_main.__file__, "--component_module_path", str(file), *arguments]
    executor_main.executor_main()
