"""The benchmarks for a GPU, tried on a CPU: each part measures at tiny size; failures and limits are reported."""

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from trained_root import tiny_settings, write_beir

from gnn_encoder.artifacts import Dataset

PROJECT = Path(__file__).parents[2]
BENCHMARKS = PROJECT / "benchmarks"
RATIO = r"\d+\.\d\d × the fastest peer \(bar [\d.]+ ×\)"
PARTS = """
import os, subprocess, time
def two(arguments): return float(arguments[0])
def wrong(arguments): raise ValueError("a bug")
def crash(arguments): os.kill(os.getpid(), 9)
def endless(arguments):
    print(subprocess.Popen(["sleep", "600"]).pid)
    time.sleep(600)
"""


def script(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, BENCHMARKS / name, *arguments], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])  # spawned ones import torch
def test_a_part_has_a_result_or_a_reason(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some_parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu

    assert gpu.run("some_parts.two", ["2"], 100, start) == ("", 2.0)
    assert gpu.run("some_parts.wrong", [], 100, start) == ("failed, exit code 1", None)
    assert "ValueError: a bug" in capfd.readouterr().err
    assert gpu.run("some_parts.crash", [], 100, start) == ("failed, exit code -9", None)
    assert gpu.run("some_parts.endless", [], 2) == ("exceeded 2 s", None)
    began = int(capfd.readouterr().out)
    time.sleep(0.2)
    state = Path(f"/proc/{began}/stat")
    assert not state.exists() or " Z " in state.read_text()  # what it had started has ended, too


def outcomes_of(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Part → its outcome in the summary, without its time."""
    summary = done.stdout[done.stdout.rindex("\n\n") :]
    return dict(re.findall(r"^([\w-]+) +(.*), \d+ s$", summary, flags=re.MULTILINE))


def dry_run(dataset: Dataset, backbone: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    options = ["--tiny", "1", "--limit", "1500", "--results", folder, "--dataset", dataset.path]
    return script("gpu.py", *options, "--backbone", backbone, *more)


@pytest.mark.slow
def test_parts_measure_and_one_that_fails_hides_no_other(
    tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path
) -> None:
    (tmp_path / "profile-large.txt").mkdir()  # the part cannot write its file
    parts = ["encode", "score", "max-similarity", "search", "profile-large", "propagate", "profile"]
    done = dry_run(tiny_dataset, tiny_backbone, tmp_path, "--only", ",".join(parts))
    outcomes = outcomes_of(done)
    assert list(outcomes) == ["prepare", *parts], done.stdout + done.stderr
    for part in ("encode", "score", "max-similarity", "search", "propagate"):
        assert re.fullmatch(RATIO, outcomes[part]), outcomes
    assert outcomes["prepare"] == outcomes["profile"] == "done"
    assert outcomes["profile-large"] == "failed, exit code 1" and "IsADirectoryError" in done.stderr
    assert done.returncode == 1
    profile = (tmp_path / "profile-minilm.txt").read_text()
    assert profile.startswith("20 steps, ")
    assert re.search(r" 1\.0 × ProfilerStep\n", profile) and re.search(r"\d+\.\d{3} ms +\d+\.\d × aten::mm\n", profile)


@pytest.mark.slow
def test_all_parts(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path) -> None:
    done = dry_run(tiny_dataset, tiny_backbone, tmp_path)
    outcomes = outcomes_of(done)
    assert done.returncode == 0 and len(outcomes) == 13, done.stdout + done.stderr
    with_peer = all(importlib.util.find_spec(name) for name in ("datasets", "accelerate"))
    for part in ("train", "train-large"):
        assert re.fullmatch(RATIO if with_peer else r"done, without a peer \(bar 2 ×\)", outcomes[part]), outcomes
    assert with_peer or "needs the package" in done.stdout


@pytest.mark.slow
def test_a_limit_ends_a_command_and_reasons_are_known_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_long

    with pytest.raises(SystemExit, match="DATA=FOLDER"):
        gpu_long.main(["--data", str(tmp_path / "obliqa")])
    lines = gpu_long.lines_of(["sh", "-c", "echo begun; sleep 600"], 1, tmp_path / "log")
    assert list(lines) == ["begun", "-9"]
    assert (tmp_path / "log").read_text() == "begun\n"
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # the tests below are nobody's worker
    tests = tmp_path / "test_some.py"
    tests.write_text("import time\ndef test_sum(): assert 1 + 1 == 3\ndef test_right(): pass\n")
    assert not gpu_long.run_tests([str(tests), "-c", "/dev/null"], 200, tmp_path)
    shown = capsys.readouterr().out
    assert "test_sum (call): " in shown and "assert (1 + 1) == 3" in shown and "1 failed, 1 passed" in shown
    tests.write_text(tests.read_text() + "def test_endless(): time.sleep(600)\n")
    assert not gpu_long.run_tests([str(tests), "-c", "/dev/null", "-n", "0"], 20, tmp_path)
    shown = capsys.readouterr().out
    assert "test_sum (call): " in shown and "the limit of 20 s struck" in shown


@pytest.mark.slow
def test_a_run_and_the_tests(tiny_dataset: Dataset, tiny_backbone: Path, tiny_seq2seq: Path, tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("def test_right(): pass\n")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny_settings(tiny_backbone, tiny_seq2seq)))
    options = ["--data", write_beir(tiny_dataset, tmp_path / "beir"), "--preset", tmp_path / "tiny.yaml"]
    options += ["--results", tmp_path / "results", "--tests", f"{tmp_path}/test_some.py -c /dev/null"]
    done = script("gpu_long.py", *options, "--limit", "3000", "--run-limit", "2000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"train_gnn +done  [\d.]+ s  loss", done.stdout)
    assert "figures: not compared, because there is no tiny.yaml" in done.stdout
    assert "GNN-encoder" in done.stdout and "== run: done" in done.stdout and "1 passed" in done.stdout
    struck = script("gpu_long.py", *options, "--run-limit", "12")
    assert struck.returncode == 1 and "the limit of 12 s struck in " in struck.stdout
    assert "== tests: passed" in struck.stdout
