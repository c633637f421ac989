"""A training ends when dev rises no more, and keeps the best epoch, also when it was killed."""

from pathlib import Path

import pytest
import torch
from saved_states import wait_for_each
from small_training import SETTINGS, Batches, Interrupted, loss_until, model
from torch import nn

from gnn_encoder.tracking import mlflow_runs
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.training.loop import Objective, fit

pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture(autouse=True)
def _states(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_each(monkeypatch)


class Dev:
    """A dev figure for each epoch, the model's before the training first; the model is known by its weights."""

    def __init__(self, net: nn.Module, figures: list[float]) -> None:
        self._net, self._figures, self.seen = net, iter(figures), []

    def __call__(self) -> dict[str, float]:
        self.seen.append(self._net[0].weight.detach().clone())
        return {"dev": next(self._figures)}


def train_until(
    folder: Path, monkeypatch: pytest.MonkeyPatch, figures: list[float], stop_at: int | None = None, skip: int = 0
) -> tuple[dict, list, torch.Tensor]:
    """With a patience of 2, as `train_converged`; `skip`: figures that an attempt before has used."""
    monkeypatch.setenv(CHECKPOINTS, str(folder))
    net = model()
    dev = Dev(net, figures[skip:])

    settings = SETTINGS.model_copy(update={"epochs": 9, "schedule": "constant", "warmup": 0.1 / 9})
    with mlflow_runs.step_log("test", params={}, tags={}) as run:
        context = Context("test", run, "key")
        objective = Objective(net, Batches(), loss_until(net, stop_at), measure=dev, keep="best", patience=2)
        result = fit(objective, settings, context)
    assert {rate for _, rate in context.curves["learning_rate"]} == {SETTINGS.learning_rate}
    assert [epoch for epoch, _ in context.curves["dev"]] == list(range(result["epochs"] + 1))
    return result, dev.seen, net[0].weight.detach()


@pytest.mark.parametrize(
    ("figures", "epochs", "kept"),
    [
        ([0.5, 0.6, 0.55, 0.6], 3, 1),  # an equal figure is no better one
        ([0.5, 0.4, 0.45], 2, 0),  # no epoch is as good as the start
        ([0.5, 0.4, 0.6, 0.5, 0.7, 0.1, 0.2], 6, 4),
        ([0.1 * i for i in range(10)], 9, 9),
    ],
)
def test_training_ends_when_dev_rises_no_more_and_the_best_epoch_is_kept(figures, epochs, kept, tmp_path, monkeypatch):
    result, seen, weights = train_until(tmp_path, monkeypatch, figures)
    assert (result["epochs"], result["kept_epoch"], result["kept_figure"]) == (epochs, kept, figures[kept])
    assert torch.equal(weights, seen[kept]) and (kept == epochs or not torch.equal(weights, seen[-1]))


@pytest.mark.parametrize("stop_at", [2, 7, 14, 16, 29])
def test_a_killed_training_with_patience_ends_where_an_undisturbed_one_ends(stop_at, tmp_path, monkeypatch):
    figures = [0.5, 0.6, 0.5, 0.7, 0.6, 0.65, 0.9]
    whole, _, expected = train_until(tmp_path / "whole", monkeypatch, figures)
    assert (whole["epochs"], whole["kept_epoch"]) == (5, 3)
    if stop_at >= 5 * whole["epochs"]:
        train_until(tmp_path / "cut", monkeypatch, figures, stop_at)  # control: it has ended before
        return
    with pytest.raises(Interrupted):
        train_until(tmp_path / "cut", monkeypatch, figures, stop_at)
    done = stop_at // Batches.steps_per_epoch
    again, _, weights = train_until(tmp_path / "cut", monkeypatch, figures, skip=done + 1)
    assert torch.equal(weights, expected)
    for name in ("epochs", "kept_epoch", "kept_figure", "steps"):
        assert again[name] == whole[name]
    # After its end and before its output is complete, it is not trained again, and has the same weights.
    _, seen, last = train_until(tmp_path / "cut", monkeypatch, [], stop_at=0)
    assert not seen and torch.equal(last, expected)
