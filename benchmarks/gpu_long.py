"""A preset's whole run on a GPU, then the fast tests with the reasons of failures, in at most nine minutes.

`make gpu-long DATA=FOLDER` runs `gnn-encoder run --preset obliqa` on the BEIR folder FOLDER/obliqa until the joint
training and the figures, and prints each step's time and result, and which figures differ from a CPU's by more than
other seeds' do. Both the run and the tests have limits; what was reached is printed. The exit code is 1 if a limit
struck, the run ended with an error, or a test failed.

    python benchmarks/gpu_long.py --data FOLDER/obliqa [--preset obliqa] [--run-limit 350] [--limit 525]
                                  [--results gpu-results] [--tests "FILES AND OPTIONS OF PYTEST"]

RESULTS gets `run.txt`, `suite.txt` and `failures.txt`, which has the reason of each failure as soon as it is known.
"""

import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
FAILURES = "GNN_ENCODER_FAILURES"
"""Environment variable: the file of the plugin below."""
SHOWN = 60
"""Failures that are printed; the file has all."""


def pytest_runtest_logreport(report: Any) -> None:
    """As a plugin of pytest: write each failure's reason at once, because a test run that is killed says none."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message if crash else str(report.longrepr)
        with Path(os.environ[FAILURES]).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid} ({report.when}): {' '.join(reason.split())[:300]}\n")


def lines_of(command: Sequence[str], seconds: float, log: Path, **environment: str) -> Iterator[str]:
    """Yields the lines of a command as they come, and writes them to `log`; last the exit code, -9 after `seconds`."""
    process = subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | environment, start_new_session=True,
    )  # fmt: skip

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(max(seconds, 0), end)
    timer.start()
    assert process.stdout
    with log.open("w", encoding="utf-8") as file:
        for line in process.stdout:
            file.write(line)
            yield line.rstrip("\n")
    yield str(process.wait())
    timer.cancel()
    end()


def run_preset(data: str, preset: str, seconds: float, log: Path) -> bool:
    """Run the pipeline and print what each step reached; returns whether the run ended well."""
    running: dict[str, str] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        program = [sys.executable, "-c", "from gnn_encoder.cli.app import main; main()"]
        command = [*program, "run", "--preset", preset, "--dataset", data, "--root", root, "--verbose"]
        for line in lines_of(command, seconds, log):
            _, step, *words = re.split(r" {2,}", line) if re.match(r"\d\d:\d\d:\d\d  ", line) else ("", "")
            if words and (words[0] == "started" or words[0].endswith("%")):
                running[step] = "  ".join(words)
            else:
                running.pop(step, None)
                print(line, flush=True)
        if line == "0":
            print(
                f"figures: {'; '.join(unlike_a_cpu(Path(root), preset)) or 'as on a CPU, within the spread of seeds'}"
            )
    if line == str(-signal.SIGKILL):
        steps = " and ".join(f"{step} ({words})" for step, words in running.items())
        print(f"the limit of {seconds:.0f} s struck in {steps or 'no step'}")
    return line == "0"


def unlike_a_cpu(root: Path, preset: str) -> Iterator[str]:
    """Yields the figures that differ from a CPU's by more than their tolerance (`tests/effectiveness`)."""
    file = PROJECT / "tests" / "effectiveness" / f"{Path(preset).stem}.yaml"
    if not file.is_file():
        yield f"not compared, because there is no {file.name} in tests/effectiveness"
        return
    sys.path.insert(0, str(file.parent))
    import yaml

    from gnn_encoder.artifacts import Report

    report = Report.read(root / "latest" / "report")
    pinned, results = yaml.safe_load(file.read_text("utf-8")), report.metrics["results"]["test"]
    yield from importlib.import_module("test_effectiveness").misses(pinned, results)


def run_tests(options: Sequence[str], seconds: float, folder: Path) -> bool:
    """Run the tests and print the reasons of failures; returns whether all passed."""
    failures, line, tail = folder / "failures.txt", "", [""]
    failures.write_text("")
    workers = str(min(os.cpu_count() or 1, 12))
    plugins = ["-p", "gpu_long", "-p", "no:cacheprovider", "-n", workers, "--dist", "loadfile"]
    command = [sys.executable, "-m", "pytest", *plugins, "--no-loadscope-reorder", "-rfE", "--tb=short", *options]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    for line in lines_of(
        command, seconds, folder / "suite.txt",
        PYTHONPATH=paths, OMP_NUM_THREADS="1", XLA_PYTHON_CLIENT_PREALLOCATE="false", **{FAILURES: str(failures)},
    ):  # fmt: skip
        tail = [*tail[-1:], line]
    reasons = failures.read_text(encoding="utf-8").splitlines()
    print("\n".join([*reasons[:SHOWN], f"{len(reasons)} failures, in {failures}", *tail[:-1]]))
    if line == str(-signal.SIGKILL):
        print(f"the limit of {seconds:.0f} s struck; the last line has the share of the tests that had ended")
    return line == "0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both; returns the exit code."""
    from common import machine, options

    began = time.monotonic()
    limits = {"limit": 525.0, "run_limit": 350.0}
    o = options(__doc__, arguments, data=None, preset="obliqa", results=Path("gpu-results"), tests="", **limits)
    if not o.data or not Path(o.data).exists():
        raise SystemExit(
            f"gpu_long.py: --data {o.data}: no such folder; `make gpu-long DATA=FOLDER` needs FOLDER/obliqa"
        )
    o.results.mkdir(parents=True, exist_ok=True)
    results = o.results.resolve()
    print(f"{machine()}\n\n== run --preset {o.preset}, at most {o.run_limit:.0f} s", flush=True)
    ran = run_preset(str(Path(o.data).resolve()), o.preset, o.run_limit, results / "run.txt")
    left = o.limit - (time.monotonic() - began)
    print(f"== run: {'done' if ran else 'not done'}, {o.limit - left:.0f} s (bar 360 s)")
    print(f"\n== tests, at most {left:.0f} s", flush=True)
    passed = run_tests(shlex.split(o.tests), left, results)
    print(f"== tests: {'passed' if passed else 'not passed'}, {time.monotonic() - began:.0f} s in all")
    return int(not (ran and passed))


if __name__ == "__main__":
    raise SystemExit(main())
