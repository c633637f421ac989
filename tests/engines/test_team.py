"""Whichever of the processes that train together dies, the others end, the cause is named, and a rerun goes on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import team_steps
from safetensors import SafetensorError

from gnn_encoder.artifacts import Dataset, TrainingSet, drafting, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.engines import team
from gnn_encoder.errors import UserError
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.steps.train_dual_encoder import train_dual_encoder
from gnn_encoder.tracking.context import CHECKPOINTS

PATIENCE = 60
"""Seconds in which a training with a dead process has to end."""


@pytest.fixture
def inputs(tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path) -> dict[str, Path]:
    labels = tiny_dataset.split_qrels("train")
    negatives = np.full((len(labels.query), 1), -1, dtype=np.int32)
    with drafting(tmp_path / "training_set", "training_set") as draft:
        texts, origin = tiny_dataset.query_texts(labels.query), np.zeros(len(labels.query), dtype=np.int8)
        TrainingSet(texts, labels.query, labels.passage, negatives, origin).write(draft)
    with drafting(tmp_path / "dpr", "model") as draft:
        DualEncoder.from_backbone(
            str(tiny_backbone), pooling="mean", normalize="no", query_length=32, passage_length=32, share_encoders=False
        ).save(draft.path)
    return {"dataset": tiny_dataset.path, "training_set": tmp_path / "training_set", "start": tmp_path / "dpr"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path / "checkpoints"))


def train(out: Path, inputs: dict[str, Path]) -> dict[str, bytes]:
    """The files of the model that two processes train."""
    settings = TrainDualEncoder(
        epochs=10, batch_size=16, start_from="dpr", precision="fp32", dropout=0.1, dev_queries=0, processes=2,
        checkpoint_seconds=1e-9,
    )  # fmt: skip
    train_dual_encoder(settings, **inputs, dual_encoder=out)
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*.safetensors")}


@pytest.mark.slow
def test_a_training_whose_follower_is_killed_resumes_with_the_same_bits(
    inputs: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # What two processes learn is what one learns: tests/training/test_ranks.py.
    undisturbed = train(tmp_path / "undisturbed", inputs)
    assert not any((tmp_path / "checkpoints").glob("*"))
    DualEncoder.load(tmp_path / "undisturbed")
    assert len(read_history(tmp_path / "undisturbed")["train_dual_encoder"].curves["loss"]) == 40
    assert read_manifest(tmp_path / "undisturbed", "model").metrics["peak_memory_gib"] > 0.1
    killed = []

    def kill_the_follower() -> None:
        while not list(tmp_path.glob("checkpoints/*/checkpoint.safetensors")):
            time.sleep(0.01)
        (follower,) = (process for process in multiprocessing.active_children() if process.name == "rank 1")
        follower.kill()
        killed.append(time.monotonic())

    threading.Thread(target=kill_the_follower, daemon=True).start()
    with pytest.raises(RuntimeError, match=r"rank 1 \(pid \d+\) was killed by SIGKILL \(out of memory\?\)"):
        train(tmp_path / "killed", inputs)
    assert time.monotonic() - killed[0] < PATIENCE
    assert not multiprocessing.active_children() and not (tmp_path / "killed").exists()
    capfd.readouterr()
    resumed = train(tmp_path / "resumed", inputs)
    assert "resumed at" in capfd.readouterr().err
    assert resumed == undisturbed


@pytest.mark.parametrize(
    ("trouble", "error", "words"),
    [
        ("die", RuntimeError, r"rank 1 \(pid \d+\) was killed by SIGKILL"),
        ("user error", UserError, "^the data are wrong: mend them$"),
    ],
)
def test_a_follower_that_fails_ends_the_leader_in_its_own_work(
    trouble: str, error: type[Exception], words: str, tiny_dataset: Dataset, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("GNN_ENCODER_TEAM", trouble)
    began = time.monotonic()
    with pytest.raises(error, match=words):
        team_steps.train_dual_encoder(
            TrainDualEncoder(processes=2), dataset=tiny_dataset.path, dual_encoder=tmp_path / "out"
        )
    assert time.monotonic() - began < PATIENCE
    assert len(processes(tmp_path)) == 2 and not alive(tmp_path)


def test_the_earliest_failure_is_the_cause() -> None:
    pipes = [Pipe(duplex=False) for _ in range(3)]
    for (_, sender), (at, error) in zip(pipes, [(3.0, "broken"), (1.0, "cause"), (2.0, "broken")], strict=True):
        sender.send(("failure", at, ValueError(error)))
    with pytest.raises(ValueError, match="cause"):
        team._watch({receiver: None for receiver, _ in pipes}, None)  # type: ignore[arg-type, misc]


def test_an_error_that_cannot_be_pickled_is_passed_on_in_words() -> None:
    assert repr(team._portable(SafetensorError("cut"))) == "RuntimeError('SafetensorError: cut')"
    for error in (UserError("mend it"), OSError(28, "No space left on device", "file")):
        assert team._portable(error) is error


@pytest.mark.parametrize("ending", ["kill -9 of the step's process", "Ctrl-C"])
def test_no_process_is_left(ending: str, tiny_dataset: Dataset, tmp_path: Path) -> None:
    source = Path(team.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (source, Path(team_steps.__file__).parent)))}
    command = [sys.executable, team_steps.__file__, str(tiny_dataset.path), str(tmp_path / "out")]
    # A shell starts its background jobs (`make test &`) with Ctrl-C ignored, and the step would inherit that.
    step = subprocess.Popen(
        command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    wait_for(lambda: len(alive(tmp_path)) == 2)
    if ending == "Ctrl-C":
        time.sleep(0.5)
        os.killpg(step.pid, signal.SIGINT)
    else:
        step.kill()
    _, said = step.communicate(timeout=PATIENCE)
    wait_for(lambda: not alive(tmp_path), seconds=5)
    assert said.count("Traceback") == (ending == "Ctrl-C"), said


def processes(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]


def alive(folder: Path) -> list[int]:
    return [pid for pid in processes(folder) if Path(f"/proc/{pid}").exists()]


def wait_for(done: Any, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_auto_is_two_processes_for_documents_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, gpu = 4, False
    monkeypatch.setattr(team.torch, "get_num_threads", lambda: cores)
    monkeypatch.setattr(team.torch.cuda, "is_available", lambda: gpu)
    kinds = [TrainReranker(kind=kind).in_documents for kind in ("lim", "colbert")]
    assert [team.fitting_size(kind) for kind in kinds] == [2, 1]
    cores = 1
    assert team.fitting_size(True) == 1
    cores, gpu = 4, True
    assert team.fitting_size(True) == 1
