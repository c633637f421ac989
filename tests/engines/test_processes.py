"""The fork server of local runs: what it imports, and what happens without it. test_local.py runs forked steps."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gnn_encoder.engines import processes
from gnn_encoder.engines.processes import FORK_AFTER, IMPORTS, StepProcesses

HARMLESS = """
import importlib, sys, threading
import torch
def refuse(*arguments):
    raise SystemExit("asked CUDA")
for name in ("is_available", "device_count", "init", "_lazy_init"):
    setattr(torch.cuda, name, refuse)
for name in sys.argv[1:]:
    importlib.import_module(name)
if threading.active_count() > 1:
    raise SystemExit("started a thread")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"), [([], ""), (["asks_cuda"], "asked CUDA\n"), (["starts_thread"], "started a thread\n")]
)
def test_the_fork_server_imports_what_survives_a_fork(more: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "asks_cuda.py").write_text("import torch\ntorch.cuda.is_available()")
    (tmp_path / "starts_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    source = str(Path(processes.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{source}:{tmp_path}", "MLFLOW_DISABLE_TELEMETRY": "true"}
    command = [sys.executable, "-c", HARMLESS, *(more or IMPORTS)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (ended.returncode, ended.stderr) == (1 if said else 0, said)


def test_without_a_fork_server_steps_are_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORK_AFTER, "0")
    monkeypatch.setattr(processes, "forkserver", SimpleNamespace(ensure_running=lambda: None))
    started: list[tuple[str, str]] = []
    monkeypatch.setattr(processes, "_new_process", lambda *arguments: started.append(arguments) or 7)

    def gone(**_: object) -> None:
        raise EOFError

    for expected in (7, 1):
        steps = StepProcesses()
        monkeypatch.setattr(steps, "_context", SimpleNamespace(Process=lambda **_: SimpleNamespace(start=gone)))
        if expected == 1:
            steps.interrupt()
        assert steps.run("ingest", "{}") == expected
    assert started == [("ingest", "{}")]
