"""What differs between Linux, macOS and Windows: the tests run on Linux, and take away or replace what others lack."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gnn_encoder.engines import lifeline, supervision
from gnn_encoder.engines.containers import check_engine
from gnn_encoder.errors import UserError
from gnn_encoder.machine import threads
from gnn_encoder.machine.memory import peak_gib
from gnn_encoder.machine.scratch import reserve, scratch
from gnn_encoder.retrieval.index_file import build_index, load_index
from gnn_encoder.settings.outcome import IndexKind
from gnn_encoder.training import prefetch

SOURCE = str(Path(threads.__file__).parents[2])


@pytest.fixture(params=["linux", "darwin"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Linux as it is; macOS has no `posix_fallocate`."""
    if request.param == "darwin":
        monkeypatch.delattr(os, "posix_fallocate")
    return request.param


def test_room_for_a_file_is_taken_and_what_it_holds_stays(platform: str, tmp_path: Path) -> None:
    size = 2**20
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"head")
        file.flush()
        reserve(file, size)
        assert os.fstat(file.fileno()).st_blocks * 512 >= size, "a file with holes would have fewer blocks"
        file.seek(0)
        assert file.read() == b"head" + bytes(size - 4)


def test_without_room_there_is_an_error_and_not_a_crash(platform: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        assert scratch(2**20, dtype=np.uint8).sum() == 0
        with pytest.raises(OSError, match="File too large"):
            scratch(2**20 + 1, dtype=np.uint8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_an_index_of_inverted_lists_is_written(platform: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float32)
    build_index(vectors, tmp_path / "index", IndexKind(index="ivf", ivf_lists=4, ivf_probes=4))
    _, rows = load_index(tmp_path / "index", vectors.shape).search(vectors[:20], 1)
    assert rows[:, 0].tolist() == (vectors[:20] @ vectors.T).argmax(1).tolist()


@pytest.mark.parametrize(("platform", "counted"), [("linux", 3 * 2**20), ("darwin", 3 * 2**30)])
def test_peak_memory_is_in_gib(platform: str, counted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=counted))
    assert peak_gib() == 3.0


def test_a_c_library_without_malloc_trim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
    threads.give_back()


MISSING = "sys.platform = 'darwin'; del os.pidfd_open"
FORBIDDEN = "os.pidfd_open = lambda process: os.open('/no/such/file', os.O_RDONLY)"
"""As in a sandbox: the call raises an OSError."""


@pytest.mark.parametrize("lack", [MISSING, FORBIDDEN])
def test_a_step_dies_with_its_launcher_without_pidfd(lack: str) -> None:
    launcher = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = f"import sys, os, time; {lack}; from gnn_encoder.engines import lifeline; "
    step = subprocess.Popen(
        [sys.executable, "-c", code + "lifeline.attach(); print('ready', flush=True); time.sleep(60)"],
        env={**os.environ, "PYTHONPATH": SOURCE, lifeline.LAUNCHER: str(launcher.pid)},
        stdout=subprocess.PIPE,
    )
    try:
        assert step.stdout and step.stdout.readline() == b"ready\n"
        time.sleep(0.5)
        assert step.poll() is None
        launcher.kill()
        launcher.wait()
        assert step.wait(timeout=20) == -signal.SIGKILL
    finally:
        launcher.kill()
        step.kill()
        step.communicate()


def test_a_launcher_whose_id_another_users_process_has_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def kill(pid: int, number: int) -> None:
        if number == 0:
            raise PermissionError
        sent.append((pid, number))

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(os, "kill", kill)
    lifeline._die_with(1)
    assert sent == [(os.getpid(), signal.SIGKILL)]


def test_ended_processes_that_nobody_has_waited_for_need_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    def killpg(group: int, number: int) -> None:
        raise PermissionError  # macOS, where Linux sends the signal to nobody

    monkeypatch.setattr(os, "killpg", killpg)
    supervision._signal_group(1, signal.SIGINT)


@pytest.mark.parametrize(("platform", "forked"), [("linux", True), ("darwin", False)])
def test_batches_are_made_in_other_processes_where_forking_is_safe(
    platform: str, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(draws=lambda epoch: iter(range(3)), batch=lambda drawn: (drawn, os.getpid()))
    monkeypatch.setattr(sys, "platform", platform)
    batches = list(prefetch.batches_of(plan, 0, workers=2))  # type: ignore[arg-type]
    assert [number for number, _ in batches] == [0, 1, 2]
    assert all((process != os.getpid()) == forked for _, process in batches)


def test_containers_are_refused_outside_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="--runner docker works on Linux only"):
        check_engine("any")


def test_windows_itself_is_refused_in_one_line() -> None:
    code = (
        "import sys; sys.modules |= {'fcntl': None, 'resource': None}; from gnn_encoder.cli.app import main; "
        "sys.platform = 'win32'; main()"
    )
    command = [sys.executable, "-c", code, "run", "--preset", "quickstart"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}, check=False
    )
    assert done.returncode == 2
    assert "on Windows use WSL" in done.stderr and len(done.stderr.splitlines()) == 1
