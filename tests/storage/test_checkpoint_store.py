"""Checkpoints: a store that is slow does not stop a training, and only a complete, sound state is resumed."""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from saved_states import wait_for_each
from slow_store import SlowStore, slow_store
from torch import nn

from gnn_encoder.settings.shared import Optimization
from gnn_encoder.storage import checkpoint_store
from gnn_encoder.storage.checkpoint_store import IN_TRANSIT, SUMS, Checkpoints, sealed
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.training import checkpoint
from gnn_encoder.training.checkpoint import Position, Saver
from gnn_encoder.training.loop import Objective, fit

ROOT = "s3://bucket/runs"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStore]:
    with slow_store(monkeypatch) as store:
        yield store


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def write(folder: Path, name: str, content: str) -> None:
    with sealed(folder / name) as partial:
        partial.write_text(content)


def steps_done(folder: Path) -> int:
    return int((folder / "state").read_text()) if (folder / "state").is_file() else -1


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*") if path.name not in (SUMS, IN_TRANSIT)}


def keep(steps: int, **others: str) -> None:
    """Send a state of this machine and wait for it."""
    kept = Checkpoints(ROOT, "train-key")
    for name, content in {"state": str(steps), **others}.items():
        write(kept.folder, name, content)
    kept.keep(steps)
    kept.finish()


def fetched(new_machine: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a machine that begins now goes on from."""
    monkeypatch.setattr("tempfile.tempdir", str(new_machine))
    kept = Checkpoints(ROOT, "train-key")
    kept.fetch(steps_done)
    return contents(kept.folder)


class Batches:
    steps_per_epoch, batch_examples = 12, 4

    def draws(self, epoch: int) -> Iterator[int]:
        return iter(range(self.steps_per_epoch))

    def batch(self, drawn: int) -> torch.Tensor:
        return torch.randn(4, 6, generator=torch.Generator().manual_seed(drawn))


def train(after: Callable[[int], object] = lambda step: None) -> int:
    """A training with a checkpoint after every step; the number of its steps."""
    torch.manual_seed(5)
    net, steps = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1)), 0

    def loss(batch: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        after(steps)
        steps += 1
        return net(batch).square().mean()

    settings = Optimization(epochs=1, learning_rate=0.01, checkpoint_seconds=1e-9, precision="fp32")
    fit(Objective(net, Batches(), loss), settings, Context("train", StepLog(), "key"))
    return steps


@pytest.mark.slow
def test_steps_go_on_while_a_slow_store_is_sent_to(
    store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, ROOT)
    wait_for_each(monkeypatch)
    written = []

    def look(step: int) -> None:
        written.append(len(store.writes))
        assert len(list(machine.glob(f"*/{IN_TRANSIT}/*"))) <= 2, "one is being sent, one waits"
        if step == 11:
            store.opened.set()

    store.opened.clear()
    assert train(look) == 12
    assert written == [0] * 12, "all steps were taken while the first write waited"
    (state,) = {key for key in store.objects if "/states/" in key}
    assert "/states/000000000012-" in state, "when fit returns, the last state is in the store"
    assert len([key for key in store.writes if "/states/" in key]) == 2, "the ten between had no turn"
    assert train() == 0, "and it is complete"


@pytest.mark.slow
def test_control_without_a_thread_the_steps_wait(
    store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inline:
        def __init__(self, *_: object) -> None:
            """Has no threads."""

        def submit(self, send: Callable[..., None], *arguments: object) -> Future[None]:
            done: Future[None] = Future()
            done.set_result(send(*arguments))
            return done

    monkeypatch.setenv(CHECKPOINTS, ROOT)
    monkeypatch.setattr(checkpoint_store, "ThreadPoolExecutor", Inline)
    wait_for_each(monkeypatch)
    written: list[int] = []
    store.opened.clear()
    store.patience = 0.01

    def look(step: int) -> None:
        written.append(len(store.writes))
        if step == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(look)
    assert 0 == written[0] < written[2] < written[3]


def test_only_what_changed_is_sent_and_what_is_superseded_goes(
    store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(1, large="never changes", twin="never changes")
    keep(2, large="never changes", twin="never changes")
    assert len([key for key in store.writes if key.endswith("-large")]) == 1
    assert len(store.objects) == 4, "three files and their list"
    assert fetched(machine / "new", monkeypatch) == {"state": "2", "large": "never changes", "twin": "never changes"}
    Checkpoints(ROOT, "train-key").drop()
    assert not store.objects


@pytest.mark.slow
def test_a_send_that_is_cut_off_leaves_the_state_before(
    store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(1, other="one")
    for writes in itertools.count():
        store.room = writes
        keep(2, other=f"two, {writes} writes")
        state = fetched(machine / f"new-{writes}", monkeypatch)
        monkeypatch.setattr("tempfile.tempdir", str(machine))
        if state != {"state": "1", "other": "one"}:
            break
    assert writes >= 2 and state == {"state": "2", "other": f"two, {writes} writes"}
    store.room = 1000
    keep(3, other="three")
    assert len([key for key in store.objects if key.endswith("-other")]) == 1, "what was cut off is removed too"


def test_a_store_that_refuses_is_reported_and_ends_no_training(
    store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CHECKPOINTS, ROOT)
    events = machine / "events"
    monkeypatch.setenv("GNN_ENCODER_EVENTS", str(events))
    store.room = 0
    train()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert said[-1].startswith("warning: the checkpoint after 12 steps is on this machine alone: s3://bucket/runs/")
    assert "bucket is full" in said[-1] and '"event": "note"' in events.read_text()


@pytest.mark.parametrize(("here", "expected"), [(1, "2"), (3, "3")])
def test_the_further_state_wins(
    here: int, expected: str, store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(2)
    write(machine / "new" / "train-key", "state", str(here))
    assert fetched(machine / "new", monkeypatch) == {"state": expected}


def test_a_damaged_state_is_replaced_by_the_stores(
    store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(2)
    write(machine / "new" / "train-key", "state", "3")
    (machine / "new" / "train-key" / "state").write_text("4")
    assert fetched(machine / "new", monkeypatch) == {"state": "2"}
    (line,) = capsys.readouterr().out.splitlines()
    assert "train-key/state is damaged" in line


@pytest.mark.slow
def test_a_list_of_files_from_elsewhere_is_refused(
    store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(1)
    (state,) = (key for key in store.objects if "/states/" in key)
    (file,) = (key for key in store.objects if "/files/" in key)
    digest = hashlib.sha256(b"1").hexdigest()
    for content in (f"{digest}  ../outside\n", f"{digest}  missing\n", f"{'0' * 64}  state\n", "odd\n"):
        store.objects.pop(state)
        state = f"{state.rpartition('-')[0]}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
        store.objects[state] = content.encode()
        store.objects[f"{file.rpartition('/')[0]}/{'0' * 64}-state"] = b"2"
        with pytest.raises(
            checkpoint_store.UserError, match=r"/states/0+1-\w+ is corrupt: delete s3://bucket/runs/train-key"
        ):
            fetched(machine / "new", monkeypatch)
    store.objects[state] += b" "
    with pytest.raises(checkpoint_store.UserError, match="is corrupt"):
        fetched(machine / "new", monkeypatch)


def test_a_kill_between_the_two_renames_leaves_a_sound_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Checkpoints(str(tmp_path), "train-key")
    write(kept.folder, "other", "beside it")
    write(kept.folder, "state", "1")
    for steps in ("2", "3"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", _killed_at("state", Path.replace))
            with pytest.raises(KeyboardInterrupt):
                write(kept.folder, "state", steps)
        kept.fetch(steps_done)
        assert contents(kept.folder) == {"other": "beside it", ".state.partial": steps, "state": "1"}
    write(kept.folder, "state", "4")
    assert len((kept.folder / SUMS).read_text().splitlines()) == 2


def _killed_at(name: str, replace):
    def killed(self: Path, target: Path) -> Path:
        if Path(target).name == name:
            raise KeyboardInterrupt
        return replace(self, target)

    return killed


def test_how_far_a_state_is(tmp_path: Path) -> None:
    assert checkpoint.steps_done(tmp_path) == -1
    model = torch.nn.Linear(2, 2)
    checkpoints = Checkpoints(str(tmp_path), "key")
    with Saver(checkpoints, model, torch.optim.AdamW(model.parameters()), {}, share=1.0) as saver:
        saver.save(Position(step=7), {})
    assert checkpoint.steps_done(checkpoints.folder) == 7


@pytest.mark.slow
def test_a_process_whose_place_was_taken_does_not_remove_a_later_state(
    store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(machine / "new"))
    keep(9, weights="later")
    monkeypatch.setattr("tempfile.tempdir", str(machine / "old"))
    keep(4, weights="earlier")
    assert fetched(machine / "third", monkeypatch) == {"state": "9", "weights": "later"}
    monkeypatch.setattr("tempfile.tempdir", str(machine / "new"))
    keep(10, weights="last")
    assert len([name for name in store.objects if "/states/" in name]) == 1, "control: earlier states do go"


def test_only_the_newest_state_is_fetched(store: SlowStore, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(machine / "old"))
    monkeypatch.setattr(Checkpoints, "_forget", lambda self, kept: None)  # as of a process that died before it did
    keep(4, weights="earlier")
    keep(9, weights="later")
    before, fetch = [], checkpoint_store.fetch_files
    monkeypatch.setattr(
        checkpoint_store, "fetch_files", lambda uri, files, folder: before.extend(files) or fetch(uri, files, folder)
    )
    assert fetched(machine / "new", monkeypatch) == {"state": "9", "weights": "later"}
    assert len(store.objects) == 6 and len(set(before)) == 3, "a state and its two files"
