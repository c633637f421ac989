"""A resumed run ends with the weights of an undisturbed one, bit for bit."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from saved_states import wait_for_each
from small_disk import small_disk
from small_training import SETTINGS, Batches, Interrupted, loss_until, model

from gnn_encoder.errors import UserError
from gnn_encoder.storage.checkpoint_store import SUMS
from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.progress import Progress
from gnn_encoder.training import checkpoint, loop
from gnn_encoder.training.loop import Objective, fit, linear_schedule

pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture(autouse=True)
def _states(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_each(monkeypatch)


def train(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None, workers: int = 0
) -> dict[str, torch.Tensor]:
    monkeypatch.setenv(CHECKPOINTS, str(folder))
    net = model()

    with mlflow_runs.step_log("test", params={}, tags={}) as run:
        context = Context("test", run, "key")
        result = fit(
            Objective(net, Batches(), loss_until(net, stop_at)),
            SETTINGS.model_copy(update={"workers": workers}),
            context,
        )
    speed = context.curves.pop("batches_per_second")
    assert all(rate > 0 for _, rate in speed)
    curves = {f"curve of {name}": torch.tensor(points) for name, points in context.curves.items()}
    return net.state_dict() | {"loss": torch.tensor(result["final_loss"])} | curves


@pytest.mark.parametrize("stop_at", [1, 5, 7, 14])
def test_resumed_equals_undisturbed(tmp_path, monkeypatch, stop_at):
    expected = train(tmp_path / "whole", monkeypatch)
    assert len(expected["curve of learning_rate"]) == 15
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", monkeypatch, stop_at)
    torch.manual_seed(99)  # whatever happened to the random state in between
    resumed = train(tmp_path / "cut", monkeypatch)
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


@pytest.mark.slow
def test_workers_change_no_weight_and_resume_too(tmp_path, monkeypatch):
    expected = train(tmp_path / "thread", monkeypatch)
    with pytest.raises(Interrupted):
        train(tmp_path / "workers", monkeypatch, 7, workers=2)
    assert not multiprocessing.active_children()
    resumed = train(tmp_path / "workers", monkeypatch, workers=1)
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_a_full_disk_keeps_the_checkpoint_before_and_with_room_it_goes_on(tmp_path, monkeypatch):
    expected = train(tmp_path / "whole", monkeypatch)
    (kept,) = (tmp_path / "whole").rglob(checkpoint.FILE)
    with small_disk(tmp_path / "disk") as disk:
        disk.fill(free=kept.stat().st_size + 3 * 4096)  # for one checkpoint and its digests, not for two
        with pytest.raises(UserError, match=rf"no checkpoint in {disk.path}.*No space left.*free space") as caught:
            train(disk.path, monkeypatch)
        assert "\n" not in str(caught.value)
        assert {left.name for left in disk.path.glob("test-*/[!.]*")} == {checkpoint.FILE, SUMS}
        disk.grow()
        begun = []
        monkeypatch.setattr(Progress, "resume", lambda self, done: begun.append(done))
        resumed = train(disk.path, monkeypatch)
    assert begun == [1]
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_control_without_the_random_state_the_weights_differ(tmp_path, monkeypatch):
    expected = train(tmp_path / "whole", monkeypatch)
    with pytest.raises(Interrupted):
        train(tmp_path / "cut", monkeypatch, 7)
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    resumed = train(tmp_path / "cut", monkeypatch)
    assert not all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    expected = train(tmp_path, monkeypatch)
    again = train(tmp_path, monkeypatch, stop_at=0)  # a single loss would raise
    assert all(torch.equal(expected[name], again[name]) for name in expected)


def noted(name: str, read: Callable, calls: list[str]) -> Callable:
    """A method of tensors that notes its calls."""

    def method(tensor: torch.Tensor, *arguments: object) -> object:
        calls.append(name)
        return read(tensor, *arguments)

    return method


def test_losses_are_read_rarely_and_the_training_is_the_same(tmp_path, monkeypatch):
    """A program waits for a GPU where it reads a tensor's value."""
    expected = train(tmp_path / "each", monkeypatch)
    monkeypatch.setattr(loop, "UNREAD_STEPS", {"cpu": 4})
    read: list[str] = []
    for name in ("item", "tolist", "__bool__", "__float__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, noted(name, getattr(torch.Tensor, name), read))
    monkeypatch.setitem(globals(), "SETTINGS", SETTINGS.model_copy(update={"checkpoint_seconds": 1e6}))
    rarely = train(tmp_path / "rarely", monkeypatch)
    assert read == ["tolist"] * 6  # in each of three epochs after four steps of five, and at its end
    monkeypatch.setattr(loop, "UNREAD_STEPS", {"cpu": 1})
    train(tmp_path / "control", monkeypatch)
    assert len(read) == 6 + 15
    assert all(torch.equal(expected[name], rarely[name]) for name in expected)


@pytest.mark.parametrize("seconds", [1e-9, 1e6])  # a state after each step, and none
@pytest.mark.parametrize("bad", [0, 2, 6])
def test_a_loss_that_is_no_number_ends_the_training_and_no_state_has_it(bad, seconds, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "UNREAD_STEPS", {"cpu": 4})
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    net, calls = model(), []

    def loss(batch: torch.Tensor) -> torch.Tensor:
        calls.append(batch)
        return net(batch).square().mean() * (torch.nan if len(calls) == bad + 1 else 1.0)

    settings = SETTINGS.model_copy(update={"checkpoint_seconds": seconds})
    with mlflow_runs.step_log("test", params={}, tags={}) as run:
        context = Context("test", run, "key")
        with pytest.raises(FloatingPointError, match=rf"^loss is nan at step {bad}: lower learning_rate"):
            fit(Objective(net, Batches(), loss), settings, context)
    assert len(calls) <= (bad + 1 if seconds < 1 else bad + 4)
    assert len(context.curves.get("loss", [])) == bad
    states = list(tmp_path.rglob(checkpoint.FILE))
    assert len(states) == (seconds < 1 and bad > 0)
    assert all(tensor.isfinite().all() for state in states for tensor in load_file(state).values())
    assert any(p.isnan().any() for p in net.parameters())  # control: the weights in memory have it


@pytest.mark.parametrize("bad", [2, 14])  # 14: the last step, which no other loss follows
def test_a_gradient_that_is_no_number_ends_the_training_though_the_loss_is_finite(bad, tmp_path, monkeypatch):
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    net, calls = model(), []

    def loss(batch: torch.Tensor) -> torch.Tensor:
        calls.append(batch)
        added = (0 * net[0].bias).abs().sqrt().sum()  # 0, and its gradient NaN
        return net(batch).square().mean() + (added if len(calls) == bad + 1 else 0)

    with (
        mlflow_runs.step_log("test", params={}, tags={}) as run,
        pytest.raises(FloatingPointError, match=rf"^gradient norm is nan at step {bad}: lower learning_rate"),
    ):
        fit(Objective(net, Batches(), loss), SETTINGS, Context("test", run, "key"))
    (state,) = tmp_path.rglob(checkpoint.FILE)
    assert all(tensor.isfinite().all() for tensor in load_file(state).values())
    assert net[0].bias.isnan().any()  # control


def flip(file: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 1 << bit
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        *(
            lambda file, offset=offset: flip(file, offset, bit=offset % 8) for offset in range(0, 2000, 200)
        ),  # the header
        *(
            lambda file, offset=offset: flip(file, -offset) for offset in (1, 700, 5000)
        ),  # moments, parameters, random state
        lambda file: file.write_bytes(file.read_bytes()[:100]),
        lambda file: file.write_bytes(b""),
        lambda file: flip(file.with_name(SUMS), 7),
        lambda file: file.with_name(SUMS).unlink(),
    ],
)
def test_a_damaged_checkpoint_is_said_and_starts_anew(damage, tmp_path, monkeypatch, capsys):
    expected = train(tmp_path, monkeypatch)
    (file,) = tmp_path.rglob(checkpoint.FILE)
    assert file.stat().st_size > 8000
    damage(file)
    capsys.readouterr()
    again = train(tmp_path, monkeypatch)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "training 1" not in line)
    assert line.endswith(f"{checkpoint.FILE} is damaged and is removed: training starts again without it")
    assert all(torch.equal(expected[name], again[name]) for name in expected)


def test_schedule_rises_then_falls_to_zero():
    rates = [linear_schedule(step, 20, 0.25) for step in range(20)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[5:] == pytest.approx([(20 - s) / 15 for s in range(5, 20)])
