"""One loop for every training: AdamW, a schedule of the learning rate, checkpoints, curves, the kept epoch.

The loop does not depend on a model. The loop takes an objective, and the batches of the objective's plan depend only on
the epoch. So resuming is exact: finished batches are skipped, and the state is restored.
"""

import math
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnn_encoder.errors import UserError
from gnn_encoder.inference.encoding import autocast
from gnn_encoder.machine.memory import MALLOCS_OWN, reuse_freed
from gnn_encoder.machine.threads import give_back
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.settings.shared import Optimization
from gnn_encoder.tracking.context import Context
from gnn_encoder.training import checkpoint
from gnn_encoder.training.checkpoint import Position
from gnn_encoder.training.computation import computing_as_trained, set_dropout
from gnn_encoder.training.prefetch import BatchPlan, batches_of
from gnn_encoder.training.ranks import (
    TrainingOver,
    alone,
    average_gradients,
    from_leader,
    is_leader,
    seed_follower,
    to_every_machine,
)

CURVE_POINTS = 200
TRIM_SECONDS = 20.0
"""Freed memory of activations goes back to the operating system so often. Batches differ in length, so the heap's holes
fit badly: a ColBERT's training with 32 passages of 128 tokens grew by 45 MB a step, to 4 GB."""
UNREAD_STEPS, UNREAD_SECONDS = {"cpu": 1, "cuda": 20}, 1.0
"""Losses are read after so many steps, or after the first step that ends so many seconds later. A reading waits until a
GPU has worked off its queue, and the GPU then waits for the next calls. NaN is noticed so late."""


@dataclass(frozen=True)
class Objective:
    """What a training minimizes: the loss of a model over a plan of batches."""

    model: nn.Module
    plan: BatchPlan
    loss: Callable[[Any], Tensor]
    """Mean loss of a batch of the plan, or of one of its parts, divided by the size of the batch. If several processes
    train together, the mean over the processes counts."""
    groups: list[dict[str, Any]] | None = None
    """AdamW's parameter groups; None: `parameter_groups` of the model at the settings' learning rate."""
    measure: Callable[[], dict[str, float]] | None = None
    """Figures after an epoch, which become curves; called in eval mode, by the leader alone."""
    keep: str = "last"
    """The epoch that is kept: `last`, or `best`, the earliest one whose first figure of `measure` is highest."""
    patience: int = 0
    """With `keep` = `best`, the training ends after so many epochs without a higher figure, and the model as it is
    before the training is measured and kept, too, as epoch 0. 0: all epochs are trained."""
    adapters: bool = False
    """What is not trained is a backbone around adapters (`adapters`). Checkpoints leave it out: a resumed training has
    read it from the step's inputs again, whose digests are in the checkpoint's key."""
    parts: Callable[[Any], Iterable[Any]] = lambda batch: (batch,)
    """Parts of a batch whose losses add up to the batch's. Each runs backward alone: it takes the memory of one part
    (gradient accumulation)."""


def linear_schedule(step: int, steps: int, warmup: float) -> float:
    """Factor on the learning rate at `step`: 0 → 1 over the warm-up, then 1 → 0."""
    rise = max(int(steps * warmup), 1)
    return (step + 1) / rise if step < rise else max((steps - step) / max(steps - rise, 1), 0.0)


def constant_schedule(step: int, steps: int, warmup: float) -> float:
    """Factor on the learning rate at `step`: 0 → 1 over the warm-up, then 1."""
    return min((step + 1) / max(int(steps * warmup), 1), 1.0)


def parameter_groups(model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices with weight decay, biases and norms without."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "lr": learning_rate, "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "lr": learning_rate, "weight_decay": 0.0},
    ]


def fit(objective: Objective, settings: Optimization, context: Context) -> dict[str, Any]:
    """Trains the objective's model in place for `settings.epochs` epochs; resumes from this call's checkpoint.

    If several processes train together (`ranks`), all processes call this function; the leader reports and saves.

    Returns:
        The figures as a step reports them: `steps`, `epochs`, `training_seconds` (of all attempts), `final_loss` (mean
        over the last window of the curve), `examples_per_second`, `headline`, and `kept_epoch` (from 1; 0: the model
        before the training) with `kept_figure` if an epoch was kept as the best one.

    Raises:
        FloatingPointError: the loss or the gradient is not finite; no state has been written since.
        UserError: `keep` is `best`, but nothing is measured.
        TrainingOver: at the end, in every process but the leader.
    """
    model, plan, measure = objective.model, objective.plan, objective.measure
    if objective.keep == "best" and not measure:
        raise UserError(
            f"{context.step}.keep = best needs figures on dev: the data have no labelled dev query, or dev_queries is 0"
        )
    torch.manual_seed(settings.seed)
    model.to(device()).train()
    if settings.dropout != "backbone":
        set_dropout(model, settings.dropout)
    groups = objective.groups or parameter_groups(model, settings.learning_rate, settings.weight_decay)
    optimizer = torch.optim.AdamW(groups, fused=True)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rates = [group["lr"] for group in optimizer.param_groups]
    reuse_freed(max(p.nbytes for p in parameters) + MALLOCS_OWN)
    checkpoints, leads = context.checkpoints(), is_leader()
    if leads:  # all processes of a machine share one folder
        checkpoints.fetch(checkpoint.steps_done)
    to_every_machine(device(), *(checkpoints.folder / name for name in (checkpoint.FILE, checkpoint.FROZEN)))
    position, kept = checkpoint.load(checkpoints.folder, model, optimizer, not objective.adapters)
    context.resume_curves(position.curves)
    steps = plan.steps_per_epoch * settings.epochs
    progress = context.progress("training", steps, "steps") if leads else None
    if position.step and progress:
        progress.resume(position.step)
    every = max(1, steps // CURVE_POINTS)
    window, shown = list(position.window), position.loss
    unread: list[Tensor] = []  # loss and gradient norm fp64 [2] of each step since the last look
    kept_epoch, best = position.kept_epoch, position.best
    step, trimmed = position.step, time.monotonic()
    began, due, looked = trimmed - position.seconds, trimmed + settings.checkpoint_seconds, trimmed

    def look() -> None:
        """Reads the unread losses. Before this, no state may be written: it could have grown from a loss of NaN."""
        nonlocal shown, looked
        losses = torch.stack(unread).tolist() if unread else []
        for number, (loss, norm) in enumerate(losses, step + 1 - len(losses)):
            for name, value in (("loss", loss), ("gradient norm", norm)):  # a gradient of NaN follows a finite loss
                if not math.isfinite(value):
                    raise FloatingPointError(
                        f"{name} is {value} at step {number - 1}: lower learning_rate or score_scale"
                    )
            window.append(loss)
            if number % every == 0 or number == steps:
                shown = sum(window) / len(window)
                window.clear()
            if progress and not window:
                context.metric("loss", shown, number)
                context.metric("learning_rate", rates[0] * _factor(settings, number - 1, steps), number)
                context.metric("gradient_norm", norm, number)
            if progress:
                progress.advance(1, note=f"loss {window[-1] if window else shown:.3f}")
        unread.clear()
        looked = time.monotonic()

    def measured(epoch: int) -> None:
        nonlocal kept_epoch, best, kept
        assert measure
        model.eval()
        with alone():
            figures = measure()
        model.train()
        for name, figure in figures.items():
            context.metric(name, figure, epoch)
        if objective.keep == "best" and (first := next(iter(figures.values()))) > best:
            kept_epoch, best = epoch, first
            kept = {n: p.detach().cpu().clone() for n, p in model.named_parameters() if p.requires_grad}

    def save(epoch: int, in_epoch: int) -> None:
        nonlocal due
        seconds = time.monotonic() - began
        now = Position(step, epoch, in_epoch, seconds, shown, tuple(window), context.curves, kept_epoch, best)
        saver.save(now, kept)
        due = time.monotonic() + settings.checkpoint_seconds

    def save_if_due(epoch: int, in_epoch: int) -> None:
        if leads and time.monotonic() >= due and saver.ready():
            look()
            save(epoch, in_epoch)

    resumed = position.step > 0
    share, frozen = settings.checkpoint_share, not objective.adapters
    with checkpoint.Saver(checkpoints, model, optimizer, kept, share, resumed, frozen) as saver:
        if objective.patience and leads and not step:
            measured(0)
        for epoch in range(position.epoch, settings.epochs):
            skip = position.in_epoch if epoch == position.epoch else 0
            started, before = time.monotonic(), step
            with (
                computing_as_trained(model, settings.precision),
                closing(batches_of(plan, epoch, skip=skip, workers=settings.workers)) as batches,
            ):
                for index, batch in enumerate(batches, skip):
                    for group, rate in zip(optimizer.param_groups, rates, strict=True):
                        group["lr"] = rate * _factor(settings, step, steps)
                    if not leads:
                        seed_follower(settings.seed, step)
                    total = torch.zeros((), dtype=torch.float64, device=device())
                    for part in objective.parts(batch):
                        with autocast(settings.precision):
                            value = objective.loss(part)
                        value.backward()
                        total += value.detach()
                    total = average_gradients(parameters, total)
                    norm = nn.utils.clip_grad_norm_(parameters, settings.max_gradient_norm)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    step += 1
                    unread.append(torch.stack((total, norm.double())))
                    if len(unread) >= UNREAD_STEPS[device().type] or time.monotonic() - looked >= UNREAD_SECONDS:
                        look()
                    if time.monotonic() - trimmed >= TRIM_SECONDS:
                        give_back()
                        trimmed = time.monotonic()
                    save_if_due(epoch, index + 1)
            look()
            if step > before and (epoch > position.epoch or not position.step):  # a resumed epoch has work done again
                context.metric("batches_per_second", (step - before) / (time.monotonic() - started), epoch + 1)
            if measure and leads:
                measured(epoch + 1)
            if objective.patience and from_leader(epoch + 1 - kept_epoch >= objective.patience, device()):
                break
            if epoch + 1 < settings.epochs:
                save_if_due(epoch + 1, 0)
        seconds = time.monotonic() - began
        if not leads:
            raise TrainingOver
        # A kill before the step's output is complete loses no more than `checkpoint_seconds`, either.
        if time.monotonic() >= due:
            save(settings.epochs, 0)
    checkpoints.finish()
    model.load_state_dict(kept, strict=False)
    model.eval()
    speed = step * plan.batch_examples / max(seconds, 1e-9)
    return {
        "steps": step,
        "epochs": step // plan.steps_per_epoch,
        "training_seconds": round(seconds, 2),
        "final_loss": shown,
        "examples_per_second": speed,
        **({"kept_epoch": kept_epoch, "kept_figure": best} if kept else {}),
        "headline": f"loss {shown:.3f}, {speed:.1f} examples/s",
    }


def _factor(settings: Optimization, step: int, steps: int) -> float:
    schedule = linear_schedule if settings.schedule == "linear" else constant_schedule
    return schedule(step, steps, settings.warmup)
