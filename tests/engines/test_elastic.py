"""Whichever of the processes that train together dies, the others end, the cause is named, and a rerun goes on."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import elastic_steps
import numpy as np
import pytest
from mlflow_store import write_store
from safetensors import SafetensorError
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from waiting import wait_for

from gnn_encoder.artifacts import Dataset, TrainingSet, drafting, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.engines import elastic
from gnn_encoder.engines.launch import cause_of
from gnn_encoder.errors import Missing, UserError
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.settings.reranking import TrainReranker
from gnn_encoder.steps.train_dual_encoder import train_dual_encoder
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog

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
        wait_for(lambda: list(tmp_path.glob("checkpoints/*/checkpoint.safetensors")))
        (follower,) = (pid for pid in ranks() if b"\0RANK=1\0" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes())
        os.kill(follower, signal.SIGKILL)
        killed.append(time.monotonic())

    threading.Thread(target=kill_the_follower, daemon=True).start()
    with pytest.raises(RuntimeError, match=r"rank 1 \(pid \d+\) was killed by SIGKILL \(out of memory\?\)"):
        train(tmp_path / "killed", inputs)
    assert time.monotonic() - killed[0] < PATIENCE
    wait_for(lambda: not ranks(), seconds=5)
    assert not (tmp_path / "killed").exists()
    capfd.readouterr()
    resumed = train(tmp_path / "resumed", inputs)
    assert "resumed at" in capfd.readouterr().err
    assert resumed == undisturbed


@pytest.mark.slow
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
    monkeypatch.setenv("FAILS", trouble)
    monkeypatch.setenv("PIDS", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", python_path())
    began = time.monotonic()
    with pytest.raises(error, match=words):
        elastic_steps.train_dual_encoder(
            TrainDualEncoder(processes=2), dataset=tiny_dataset.path, dual_encoder=tmp_path / "out"
        )
    assert time.monotonic() - began < PATIENCE
    assert len(processes(tmp_path)) == 2 and not alive(tmp_path)


def failure(folder: Path, local: int, error: dict[str, object] | None, code: int = 1) -> ProcessFailure:
    """A process that failed, as torch's launcher has it."""
    file = folder / str(local) / "error.json"
    if error:
        file.parent.mkdir()
        message = {"message": error["text"], "extraInfo": {"timestamp": 1}}
        file.write_text(json.dumps({"message": message, "error": error}))
    return ProcessFailure(local, 7, code, str(file))


def test_the_cause_is_the_first_error_that_is_not_of_a_broken_connection(tmp_path: Path) -> None:
    broken = {"type": "RuntimeError", "text": "[gloo/transport/tcp/pair.cc] closed", "time": 1.0}
    late, early = ({"type": "ValueError", "text": text, "time": at} for text, at in (("late", 3.0), ("early", 2.0)))
    failures = {
        number: failure(tmp_path, number, error) for number, error in enumerate((broken, late)) if error is not early
    }
    failure(tmp_path, 2, early)  # torch did not wait for its end
    assert cause_of(failures) == {"rank": 2, **early}
    killed = {4: failure(tmp_path / "other", 0, None, -9)}
    assert cause_of(killed)["text"] == "the training process of rank 4 (pid 7) was killed by SIGKILL (out of memory?)"
    assert cause_of({0: failures[0], 3: failure(tmp_path, 3, None, -9)})["rank"] == 2
    alone = {0: failure(tmp_path / "alone", 0, None, 1)}
    assert cause_of(alone)["text"] == "the training process of rank 0 (pid 7) ended with exit code 1"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (UserError("mend it"), UserError("mend it")),
        (Missing("gone"), UserError("gone")),
        (OSError(28, "No space left on device", "file"), OSError(28, "No space left on device", "file")),
        (SafetensorError("cut"), RuntimeError("SafetensorError: cut")),
        (RuntimeError("killed"), RuntimeError("killed")),
    ],
)
def test_an_error_is_passed_on(error: Exception, again: Exception) -> None:
    assert repr(elastic.error_in(elastic.error_text(error), 1)) == repr(again)
    assert "exit code 3" in str(elastic.error_in("", 3))


def test_figures_that_are_no_numbers_are_passed_on(tmp_path: Path) -> None:
    context = Context("train_gnn", StepLog(), "key", curves={"loss": [(1, float("inf"))]})
    with drafting(tmp_path / "out", "model") as draft:
        text = elastic.result_of({"loss": float("nan"), "steps": 2}, context, {"out": draft})
        (tmp_path / elastic.RESULT).write_text(text, "utf-8")
        read = Context("train_gnn", StepLog(), "key")
        metrics = elastic._take(tmp_path, read, {"out": draft})
        (draft.path / "model").touch()
    assert math.isnan(metrics["loss"]) and metrics["steps"] == 2
    assert read.curves == {"loss": [(1, float("inf"))]}


@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() == 1, reason="a single core has a single thread")
def test_a_process_of_a_pod_has_the_threads_that_the_pod_may_use(tmp_path: Path) -> None:
    assert launch(elastic_steps.count_threads, tmp_path, StepLog()) == 0
    assert json.loads((tmp_path / elastic.RESULT).read_text("utf-8"))["metrics"] == {"threads": 1}


@pytest.mark.slow
def test_the_last_points_of_a_training_that_fails_are_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri := write_store(tmp_path / "mlflow.db"))
    client = MlflowClient(uri)
    run = client.create_run(client.create_experiment("steps"))
    assert launch(elastic_steps.fail_after_a_point, tmp_path, StepLog(client, run.info.run_id))
    assert [point.value for point in client.get_metric_history(run.info.run_id, "loss")] == [0.5]


def launch(step: Any, folder: Path, log: StepLog) -> int:
    """The exit code of a launcher of one rank, which gets its numbers from the environment, as in a pod."""
    context, settings = Context(step.__name__, log, "key"), TrainDualEncoder()
    call = elastic.call_of(step, context, settings, {}, {"model": ("model", str(folder / "model"))})
    (folder / elastic.CALL).write_text(call.model_dump_json(), "utf-8")
    numbers = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **numbers, "PET_LOCAL_ADDR": "127.0.0.1", "PYTHONPATH": python_path()}
    return subprocess.run([sys.executable, *elastic.COMMAND, str(folder)], env=environment).returncode


def python_path() -> str:
    """Where processes find the package and this folder's steps."""
    return os.pathsep.join(map(str, (Path(elastic.__file__).parents[2], Path(elastic_steps.__file__).parent)))


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["kill -9 of the step's process", "Ctrl-C"])
def test_no_process_is_left(ending: str, tiny_dataset: Dataset, tmp_path: Path) -> None:
    environment = {**os.environ, "PIDS": str(tmp_path), "PYTHONPATH": python_path()}
    command = [sys.executable, elastic_steps.__file__, str(tiny_dataset.path), str(tmp_path / "out")]
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


def ranks() -> list[int]:
    """Processes of trainings that this process started: their launcher's parent is this process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    return [pid for pid, parent in parents.items() if parents.get(parent) == os.getpid()]


def test_auto_is_two_processes_for_documents_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, gpu = 4, False
    monkeypatch.setattr(elastic.torch, "get_num_threads", lambda: cores)
    monkeypatch.setattr(elastic.torch.cuda, "is_available", lambda: gpu)
    kinds = [TrainReranker(kind=kind).in_documents for kind in ("lim", "colbert")]
    assert [elastic.fitting_size(kind) for kind in kinds] == [2, 1]
    cores = 1
    assert elastic.fitting_size(True) == 1
    cores, gpu = 4, True
    assert elastic.fitting_size(True) == 1
