"""The fork server of local runs: what it imports, and what happens without it. test_launch.py runs forked steps."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gnn_encoder.engines import forked_steps
from gnn_encoder.engines.forked_steps import FORK_AFTER, IMPORTS, ForkedSteps

HARMLESS = """
import importlib, sys, threading
import torch
def refuse(*given):
    raise SystemExit("asked CUDA")
for name in ("is_available", "device_count", "init", "_lazy_init"):
    setattr(torch.cuda, name, refuse)
for name in sys.argv[1:]:
    importlib.import_module(name)
if threading.active_count() > 1:
    raise SystemExit("started a thread")
"""


@pytest.mark.parametrize(
    ("more", "said"), [([], ""), (["asks_cuda"], "asked CUDA\n"), (["starts_thread"], "started a thread\n")]
)
def test_the_fork_server_imports_what_survives_a_fork(more: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "asks_cuda.py").write_text("import torch\ntorch.cuda.is_available()")
    (tmp_path / "starts_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    source = str(Path(forked_steps.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{source}:{tmp_path}", "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-c", HARMLESS, *(more or IMPORTS)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stderr) == (1 if said else 0, said)


def test_without_a_fork_server_steps_are_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORK_AFTER, "0")
    monkeypatch.setenv(
        "_KFP_RUNTIME", "false"
    )  # restored afterwards, as ForkedSteps sets it for the launcher's process
    monkeypatch.setattr(forked_steps, "forkserver", SimpleNamespace(ensure_running=lambda: None))
    started: list[list[str]] = []
    interrupted: list[int] = []

    def new_process(full_command: list[str], env_vars: object) -> int:
        started.append(full_command)
        return 7

    def gone(**_: object) -> None:
        raise EOFError

    for expected in (7, 1):
        steps = ForkedSteps(new_process, lambda: bool(interrupted))
        monkeypatch.setattr(steps, "_context", SimpleNamespace(Process=lambda **_: SimpleNamespace(start=gone)))
        assert steps(["sh", "-ec", "", "program"]) == expected
        interrupted.append(2)
    assert started == [["sh", "-ec", "", "program"]]
