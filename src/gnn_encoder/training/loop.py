"""One loop for every training step: AdamW, linear schedule, checkpoints, curves, resume.

The loop knows nothing of models: a plan has batches that depend on the epoch alone, a loss turns a
batch into a scalar. That is what makes resuming exact: skip the batches done, restore the rest.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gnn_encoder.inference.encoding import autocast
from gnn_encoder.models.dual_encoder import device
from gnn_encoder.settings.shared import Optimization
from gnn_encoder.tracking.context import Context
from gnn_encoder.training import checkpoint
from gnn_encoder.training.checkpoint import Position
from gnn_encoder.training.prefetch import BatchPlan, made
from gnn_encoder.training.ranks import TrainingOver, average_gradients, is_leader, meet, seed_follower

CURVE_POINTS = 200


@dataclass(frozen=True)
class FitResult:
    """What a training run comes to."""

    steps: int
    loss: float
    """Mean over the last window of the curve."""
    seconds: float
    examples_per_second: float

    def metrics(self) -> dict[str, float]:
        """As a step reports them."""
        return {"steps": self.steps, "final_loss": self.loss, "examples_per_second": self.examples_per_second}


def linear_schedule(step: int, steps: int, warmup: float) -> float:
    """Factor on the learning rate at `step`: 0 → 1 over the warm-up, then 1 → 0."""
    rise = max(int(steps * warmup), 1)
    return (step + 1) / rise if step < rise else max((steps - step) / max(steps - rise, 1), 0.0)


def parameter_groups(model: nn.Module, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices decay, biases and norms do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() > 1], "lr": learning_rate, "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "lr": learning_rate, "weight_decay": 0.0},
    ]


def set_dropout(model: nn.Module, rate: float) -> None:
    """Every dropout of the model: modules, and the plain numbers that BART's layers hold."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, rate)


def fit(
    model: nn.Module,
    plan: BatchPlan,
    loss: Callable[[Any], Tensor],
    settings: Optimization,
    context: Context,
    *,
    groups: list[dict[str, Any]] | None = None,
    after_epoch: Callable[[int], dict[str, float]] | None = None,
) -> FitResult:
    """Train `model` in place for `settings.epochs` epochs; resumes from this call's checkpoint if there is one.

    Where several processes train together (`ranks`), all call this, and the leader reports and saves.

    `groups` are AdamW's parameter groups (default: `parameter_groups` at the settings' rate); `loss`
    gives the mean loss of a batch; `after_epoch` gives figures that become curves at that epoch.

    Raises:
        FloatingPointError: the loss is not finite.
        TrainingOver: at the end, in a process that does not lead.
    """
    torch.manual_seed(settings.seed)
    model.to(device()).train()
    if settings.dropout != "backbone":
        set_dropout(model, settings.dropout)
    groups = groups or parameter_groups(model, settings.learning_rate, settings.weight_decay)
    optimizer = torch.optim.AdamW(groups, fused=True)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    rates = [group["lr"] for group in optimizer.param_groups]
    kept = context.checkpoints()
    if is_leader():  # all of a team share one folder
        kept.fetch(checkpoint.steps_done)
    meet()
    position = checkpoint.load(kept.folder, model, optimizer) or Position()
    context.resume_curves(position.curves)
    steps = plan.steps_per_epoch * settings.epochs
    leads = is_leader()
    progress = context.progress("training", steps, "steps") if leads else None
    if position.step and progress:
        progress.resume(position.step)
    every = max(1, steps // CURVE_POINTS)
    window = list(position.window)
    shown = position.loss
    step, began, saved = position.step, time.monotonic() - position.seconds, time.monotonic()

    def save(epoch: int, in_epoch: int) -> None:
        seconds = time.monotonic() - began
        now = Position(step, epoch, in_epoch, seconds, shown, tuple(window), context.curves)
        checkpoint.save(kept.folder, model, optimizer, now)
        kept.keep(step)

    for epoch in range(position.epoch, settings.epochs):
        skip = position.in_epoch if epoch == position.epoch else 0
        with closing(made(plan, epoch, skip=skip, workers=settings.workers)) as batches:
            for index, batch in enumerate(batches, skip):
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * linear_schedule(step, steps, settings.warmup)
                if not leads:
                    seed_follower(settings.seed, step)
                with autocast(settings.precision):
                    value = loss(batch)
                if not torch.isfinite(value):
                    raise FloatingPointError(
                        f"loss is {value.item()} at step {step}: lower learning_rate or score_scale"
                    )
                value.backward()
                average_gradients(parameters)
                norm = nn.utils.clip_grad_norm_(parameters, settings.max_gradient_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                step += 1
                window.append(value.item())
                if step % every == 0 or step == steps:
                    shown = sum(window) / len(window)
                    window.clear()
                if progress and not window:
                    context.metric("loss", shown, step)
                    context.metric("learning_rate", optimizer.param_groups[0]["lr"], step)
                    context.metric("gradient_norm", norm.item(), step)
                if progress:
                    progress.advance(1, note=f"loss {window[-1] if window else shown:.3f}")
                if leads and time.monotonic() - saved >= settings.checkpoint_seconds:
                    save(epoch, index + 1)
                    saved = time.monotonic()
        if after_epoch and leads:
            model.eval()
            for name, figure in after_epoch(epoch).items():
                context.metric(name, figure, epoch + 1)
            model.train()
        if leads and epoch + 1 < settings.epochs:
            save(epoch + 1, 0)
            saved = time.monotonic()
    seconds = time.monotonic() - began
    if not leads:
        raise TrainingOver
    # The last state is kept until the step's output stands: a kill in between costs no training.
    save(settings.epochs, 0)
    kept.finish()
    model.eval()
    return FitResult(step, shown, seconds, step * plan.batch_examples / max(seconds, 1e-9))
