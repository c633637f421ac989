"""kill -9 in the two long training steps, on real text: a rerun goes on and ends where an undisturbed run ends."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnn_encoder.artifacts import Report

pytestmark = [pytest.mark.effectiveness, pytest.mark.timeout(3600)]

SETTINGS = [
    "ingest.max_passages=250", "train_query_generator.max_pairs=40", "generate_queries.max_passages=20",
    "shared.checkpoint_seconds=1", "shared.checkpoint_share=1", "train_converged.epochs=0",
]  # fmt: skip
"""Without the converged dual encoder, which takes as long as all other steps and is trained by the same loop."""


def command(root: Path) -> list[str]:
    chosen = [word for setting in SETTINGS for word in ("--set", setting)]
    return [
        str(Path(sys.executable).with_name("gnn-encoder")),
        "run",
        "--preset",
        "quickstart",
        "--root",
        str(root),
        *chosen,
    ]


def kill_in(step: str, root: Path) -> None:
    """Start a run and kill it -9 when `step` has a checkpoint of the middle of its training."""
    with (root.parent / f"{step}.out").open("w") as output:
        launcher = subprocess.Popen(command(root), stdout=output, stderr=output)
        deadline = time.monotonic() + 900
        while not list(root.glob(f"checkpoints/{step}-*/checkpoint.safetensors")):
            assert launcher.poll() is None and time.monotonic() < deadline, (root.parent / f"{step}.out").read_text()
            time.sleep(0.2)
        launcher.kill()
        launcher.wait()


def figures(root: Path) -> dict[str, float]:
    results = Report.read(root / "latest" / "report").metrics["results"]["test"]
    return {f"{system} {name}": value for system, means in results.items() for name, value in means.items()}


def test_a_run_killed_twice_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    subprocess.run(command(tmp_path / "whole"), check=True)
    killed = tmp_path / "killed"
    for step in ("train_dual_encoder", "train_gnn"):
        kill_in(step, killed)
    subprocess.run(command(killed), check=True)
    logs = "".join(path.read_text() for path in killed.glob("logs/*.log"))
    for step in ("train_dual_encoder", "train_gnn"):
        (done, total), *_ = re.findall(rf"{step}: training ([\d,]+)/([\d,]+) steps, .*resumed at", logs)
        assert int(done.replace(",", "")) < int(total.replace(",", "")), "it was killed in the middle"
    assert figures(killed) == pytest.approx(figures(tmp_path / "whole"), abs=1e-3)
