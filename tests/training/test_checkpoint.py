"""States are copied at their step and written by a thread; a kill at any moment leaves a complete state."""

import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from saved_states import slow_disk, wait_for_each
from torch import nn

from gnn_encoder.errors import UserError
from gnn_encoder.settings.shared import Optimization
from gnn_encoder.storage import checkpoint_store
from gnn_encoder.storage.checkpoint_store import SUMS, Checkpoints, discard, sealed
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.training import checkpoint
from gnn_encoder.training.checkpoint import FILE, FROZEN, Position, Saver
from gnn_encoder.training.loop import Objective, fit
from gnn_encoder.training.passage_cache import PassageCache

SETTINGS = Optimization(epochs=2, learning_rate=0.05, checkpoint_seconds=1e-9, precision="fp32")


class Killed(Exception):
    pass


class Batches:
    steps_per_epoch, batch_examples = 3, 4

    def draws(self, epoch: int) -> Iterator[int]:
        return iter(range(epoch * 10, epoch * 10 + self.steps_per_epoch))

    def batch(self, drawn: int) -> torch.Tensor:
        return torch.randn(4, 6, generator=torch.Generator().manual_seed(drawn))


def model(frozen: float = 0.5) -> nn.Sequential:
    """The second layer is not trained."""
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    net[1].requires_grad_(False).weight.fill_(frozen)
    return net


class Training:
    """A training that keeps the best epoch; `before` is called with the number of each step of this attempt."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(CHECKPOINTS, str(folder))
        self.folder = folder / "test-key"
        self.steps = 0

    def before(self, step: int) -> None:
        """Nothing."""

    def run(self, net: nn.Sequential | None = None, settings: Optimization = SETTINGS) -> dict[str, Any]:
        net = net or model()

        def loss(batch: torch.Tensor) -> torch.Tensor:
            self.before(self.steps)
            self.steps += 1
            return net(batch).square().mean()

        def figures() -> dict[str, float]:
            return {"dev": net[0].weight[0, 0].item()}

        objective = Objective(net, Batches(), loss, measure=figures, keep="best")
        result = fit(objective, settings, Context("test", StepLog(), "key"))
        return net.state_dict() | {name: result[name] for name in ("kept_epoch", "kept_figure", "final_loss")}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in one)


def stop_before(training: Training, step: int) -> None:
    def before(number: int) -> None:
        if number == step:
            raise Killed

    training.before = before  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_kill_at_any_rename_or_removal_leaves_a_state_that_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_each(monkeypatch)
    whole = Training(tmp_path / "whole", monkeypatch).run()
    assert whole["kept_epoch"] == 2, "control: one epoch's file replaces another's"
    changes = [(Path, "replace", SUMS), (Path, "replace", FILE), (Path, "replace", "kept-"), (Path, "unlink", "kept-")]
    for owner, change, name in changes:
        for number in itertools.count():
            with monkeypatch.context() as patch:
                left = patch_nth(patch, owner, change, name, number)
                cut = Training(tmp_path / f"{change}-{name}-{number}", monkeypatch)
                with suppress(Killed):
                    cut.run()
            if left():
                break
            again = Training(cut.folder.parent, monkeypatch)
            assert same(again.run(), whole), (change, name, number)
            assert len(list(cut.folder.glob("kept-*"))) == 1
        assert number >= (1 if change == "unlink" else 2)


def patch_nth(patch: pytest.MonkeyPatch, owner: Any, change: str, name: str, number: int) -> Any:
    """Let a change of a file of this name fail, the number-th; returns whether it was not reached."""
    real, turns, reached = getattr(owner, change), itertools.count(), threading.Event()

    def counted(path: Path, *arguments: Any, **named: Any) -> Any:
        target = Path(arguments[0]) if arguments else path
        if target.name.startswith(name) and next(turns) == number:
            reached.set()
            raise Killed
        return real(path, *arguments, **named)

    patch.setattr(owner, change, counted)
    return lambda: not reached.is_set()


def test_each_file_holds_what_changes_as_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_each(monkeypatch)
    written, save = [], checkpoint.save_file
    monkeypatch.setattr(
        checkpoint,
        "save_file",
        lambda tensors, path, **named: (written.append(path.name), save(tensors, path, **named)),
    )
    training = Training(tmp_path, monkeypatch)
    training.run()
    assert written[0] == f".{FROZEN}.partial" and written.count(f".{FROZEN}.partial") == 1
    assert written.count(f".{FILE}.partial") == 8 and len([name for name in written if "kept" in name]) == 2
    names = {path.name: set(load_file(path)) for path in training.folder.glob("*.safetensors")}
    trained = {f"{layer}.{kind}" for layer in (0, 3) for kind in ("weight", "bias")}
    moments = {f"optimizer.{name}.{key}" for name in trained for key in ("step", "exp_avg", "exp_avg_sq")}
    assert names == {
        FILE: {f"model.{name}" for name in trained} | moments | {"rng"} | ({"rng_cuda"} & names[FILE]),
        "kept-2.safetensors": trained,
        FROZEN: {"1.weight", "1.bias"},
    }


def test_what_is_not_trained_is_resumed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_each(monkeypatch)
    whole = Training(tmp_path / "whole", monkeypatch).run()
    cut = Training(tmp_path / "cut", monkeypatch)
    stop_before(cut, 4)
    with pytest.raises(Killed):
        cut.run()
    (cut.folder / FROZEN).rename(tmp_path / "away")
    with pytest.raises(UserError, match=rf"{FROZEN} is missing: delete {cut.folder}, then rerun"):
        Training(tmp_path / "cut", monkeypatch).run()
    (tmp_path / "away").rename(cut.folder / FROZEN)
    other = Training(tmp_path / "other", monkeypatch).run(model(frozen=0.25))
    assert not same(other, whole), "control: it matters"
    assert same(Training(tmp_path / "cut", monkeypatch).run(model(frozen=0.25)), whole)


def test_a_state_is_of_its_step_although_it_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Training(tmp_path / "whole", monkeypatch).run()

    def interrupted(name: str) -> Training:
        """The disk is slow until training is interrupted: the state of the first step is written then."""
        training = Training(tmp_path / name, monkeypatch)
        with slow_disk(monkeypatch) as disk, monkeypatch.context() as patch:
            wait_for_each(patch)

            def before(step: int) -> None:
                if step == 1:
                    patch.undo()
                if step == 5:
                    assert not (training.folder / FILE).exists(), "no step waited for the disk"
                    disk.set()
                    raise Killed

            training.before = before  # type: ignore[method-assign]
            with pytest.raises(Killed):
                training.run()
        assert checkpoint.steps_done(training.folder) == 1
        return Training(tmp_path / name, monkeypatch)

    assert same(interrupted("cut").run(), whole)
    with monkeypatch.context() as patch:
        patch.setattr(Saver, "_reserve", lambda saver, tensors: saver._copies.update(tensors))
        live = interrupted("live")
    assert not same(live.run(), whole), "control: without a copy, the state is of a later step"


def test_while_a_state_is_written_no_other_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, copied, save = Training(tmp_path, monkeypatch), [], Saver.save

    def saving(saver: Saver, position: Position, kept: dict[str, torch.Tensor]) -> None:
        save(saver, position, kept)
        copied.append((position.step, sorted(copy.data_ptr() for copy in saver._copies.values())))

    monkeypatch.setattr(Saver, "save", saving)
    with slow_disk(monkeypatch) as disk:
        threading.Timer(0.5, disk.set).start()
        training.run()
    steps, places = zip(*copied, strict=True)
    assert len(steps) <= 3 and steps[-1] == 6 and checkpoint.steps_done(training.folder) == 6
    assert len(set(map(tuple, places))) == 1, "the copies have one place in memory"


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_the_thread_that_writes_has_no_team_of_openmp(tmp_path: Path) -> None:
    """Two teams have more threads than cores, and then the barriers of a training sleep instead of spin."""

    def threads() -> set[str]:
        return {task.name for task in Path("/proc/self/task").iterdir()}

    def threads_after(work: Callable[[], object]) -> int:
        before = threads()
        work()
        return len(threads() - before)

    net = nn.Linear(512, 512)  # operations on such tensors run on two cores
    optimizer, cores = torch.optim.AdamW(net.parameters(), fused=True), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        net(torch.ones(512, 512)).sum().backward()
        optimizer.step()
        with Saver(Checkpoints(str(tmp_path), "key"), net, optimizer, {}, share=math.inf, resumed=True) as saver:

            def writes() -> None:
                assert saver.ready() and saver._work
                wait([saver._work])
                saver.save(Position(), {})
                wait([saver._work])

            assert threads_after(writes) == 1
            with ThreadPoolExecutor(1) as other:
                added = threads_after(lambda: other.submit(torch.ones(1 << 20).zero_).result())
            assert added == 2, "control: this thread has one"
    finally:
        torch.set_num_threads(cores)


EVERY_STATE = [1, 2, 3, 3, 4, 5, 6, 6]


@pytest.mark.parametrize(
    ("writing", "share", "states"),
    [(checkpoint.WRITING, 1e-9, [6]), (0.0, 1e-9, [1, 6]), (checkpoint.WRITING, math.inf, EVERY_STATE)],
)
def test_states_are_rarer_where_writing_would_take_too_large_a_share(
    writing: float, share: float, states: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, save = [], Saver.save

    def saving(saver: Saver, position: Position, kept: dict[str, torch.Tensor]) -> None:
        saved.append(position.step)
        save(saver, position, kept)

    monkeypatch.setattr(Saver, "save", saving)
    monkeypatch.setattr(checkpoint, "WRITING", writing)
    wait_for_each(monkeypatch, share)
    Training(tmp_path, monkeypatch).run()
    assert saved == states


@pytest.mark.parametrize("resumed", [False, True])
def test_a_training_that_is_resumed_may_save_at_once(resumed: bool, tmp_path: Path) -> None:
    net = model()
    arguments = (Checkpoints(str(tmp_path), "key"), net, torch.optim.AdamW(net.parameters()), {})
    with Saver(*arguments, share=1e-9, resumed=resumed) as saver:
        assert saver.ready() is resumed


@pytest.mark.parametrize("at", ["the next state", "the end", "an interruption"])
def test_an_error_of_the_thread_reaches_the_user(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise SafetensorError("No space left on device (os error 28)")

    training = Training(tmp_path, monkeypatch)
    monkeypatch.setattr(checkpoint, "save_file", full)
    said = rf"no checkpoint in {training.folder}: No space left on device \(os error 28\); free space or mend it"
    if at == "an interruption":
        wait_for_each(monkeypatch)  # the first state is copied after the first step
        stop_before(training, 1)
        with pytest.raises(Killed):
            training.run()
        (line,) = (line for line in capsys.readouterr().err.splitlines() if "warning" in line)
        assert line.startswith(f"warning: no checkpoint in {training.folder}: No space left on device")
        return
    if at == "the next state":
        wait_for_each(monkeypatch)
    else:
        monkeypatch.setattr(Saver, "ready", lambda saver: False)
    with pytest.raises(UserError, match=said):
        training.run(settings=SETTINGS.model_copy(update={"epochs": 1}))
    assert training.steps == (2 if at == "the next state" else 3)
    assert "warning" not in capsys.readouterr().err, "it is said once"


def test_vectors_that_a_state_needs_stay_although_it_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PassageCache(np.zeros((4, 2), np.float32), np.arange(4), lambda rows: np.zeros((len(rows), 2)))
    net, checkpoints = model(), Checkpoints(str(tmp_path), "key")

    def left(version: int) -> list[str]:
        cache.advance(version, checkpoints.folder, lambda total: Progress("test", "vectors", total, "passages"))
        return sorted(path.name for path in checkpoints.folder.glob("passages-*"))

    left(1)
    with Saver(checkpoints, net, torch.optim.AdamW(net.parameters()), {}, share=1.0) as saver:
        with slow_disk(monkeypatch):
            saver.save(Position(step=1), {})
            left(2)
        while not saver.ready():
            time.sleep(0.01)
        assert left(3) == ["passages-1.npy", "passages-2.npy", "passages-3.npy"], "1 was in use at the state's step"
        saver.save(Position(step=2), {})
    assert left(4) == ["passages-3.npy", "passages-4.npy"], "control"


def test_a_file_is_not_removed_while_it_is_taken_into_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Checkpoints("s3://bucket/runs", "train-key")
    kept.folder = tmp_path
    for name in ("state", "vectors"):
        with sealed(tmp_path / name) as partial:
            partial.write_text(name)
    threads, link = [], os.link

    def removing(source: Path, target: Path) -> None:
        if not threads:  # the training's thread removes the vectors while the first file is linked
            threads.append(threading.Thread(target=discard, args=(tmp_path / "vectors",)))
            threads[0].start()
            threads[0].join(0.2)
        link(source, target)

    monkeypatch.setattr(os, "link", removing)
    monkeypatch.setattr(Checkpoints, "_send", lambda *arguments: None)
    kept.keep(1)
    threads[0].join()
    assert len(list(tmp_path.glob(f"{checkpoint_store.IN_TRANSIT}/*/files/*"))) == 2
    assert not (tmp_path / "vectors").exists(), "control: it is removed"
    kept.finish()


def test_a_training_shorter_than_the_time_between_checkpoints_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Position] = []
    monkeypatch.setattr(Saver, "save", lambda saver, position, kept: saved.append(position))
    for seconds, some in ((60.0, False), (1e-9, True)):
        Training(tmp_path, monkeypatch).run(settings=SETTINGS.model_copy(update={"checkpoint_seconds": seconds}))
        assert bool(saved) == some
