"""The plan of a run without a preset: read the data, measure the machine, plan, and keep the plan in a file.

A run that is interrupted and started again must not plan again, because measured rates vary and other settings would
train again. So the plan is a file under the root, whose name is a digest of the data, the budget and the user's
settings.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.data import source_digest, temporary_dataset
from gnn_encoder.errors import UserError
from gnn_encoder.models.check import check_models
from gnn_encoder.pipelines.train import train
from gnn_encoder.planning import AUTO
from gnn_encoder.planning.facts import data_facts
from gnn_encoder.planning.plan import plan_run
from gnn_encoder.planning.rates import measure_rates
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.settings.shared import MINILM

PLANNED = ("ingest", "shared")
"""Sections whose overrides the plan depends on."""


def budget_seconds(text: str) -> float:
    """Returns the seconds of a budget such as `30m`, `2h` or `1h30m`; raises UserError for another text."""
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?", text.strip())
    seconds = 3600 * float(match[1] or 0) + 60 * float(match[2] or 0) if match else 0.0
    if not 60 <= seconds <= 30 * 24 * 3600:
        raise UserError(f"--budget {text}: write it as 30m, 2h or 1h30m, from one minute to 30 days")
    return seconds


def planned_seconds(plan: Path) -> dict[str, float]:
    """Returns the seconds of each call, by title, as far as the file of a plan has them."""
    lines = re.findall(r"^# (.+) takes about (\d+) s$", plan.read_text("utf-8"), flags=re.MULTILINE)
    return {title: float(seconds) for title, seconds in lines}


def planned(overrides: Sequence[str], budget: str, root: Path, show: Callable[[str, str], None]) -> Path:
    """Returns the settings file of a run with `overrides` (`step.setting=value`) in a writable root.

    `show` gets each reason: its name and text.

    Raises:
        UserError: no dataset is given, its source is not usable, a pretrained model would be read wrongly, or no run
            fits the budget.
    """
    seconds = budget_seconds(budget)
    data_overrides = [override for override in overrides if override.partition(".")[0] in PLANNED]
    settings = parse_settings({"shared": {"backbone": MINILM, "generator": MINILM}}, data_overrides, source="auto")
    if not settings.ingest.dataset:
        raise UserError("no data: give --dataset, or a --preset that names its own (gnn-encoder presets)")
    check_models(train(settings).nodes)
    key = digest_of({"data": source_digest(settings.ingest), "budget": seconds, "settings": sorted(overrides)})
    path = root / AUTO / f"{key[:12]}.yaml"
    if path.is_file():
        show("plan", f"of an earlier start: {path}")
        return path
    backbone = settings.train_dual_encoder.backbone
    with temporary_dataset(settings.ingest) as (data, _):
        facts = data_facts(data, backbone, settings.ingest.seed)
        plan = plan_run(facts, measure_rates(data, backbone, settings.ingest.seed), seconds, backbone)
    lines = [f"# {name}: {reason}" for name, reason in plan.reasons.items()]
    lines += [f"# {title} takes about {took:.0f} s" for title, took in plan.calls.items()]
    text = "\n".join([f"# gnn-encoder run --budget {budget}", *lines, yaml.safe_dump(plan.settings, sort_keys=False)])
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".partial")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
    for name, reason in plan.reasons.items():
        show(name, reason)
    show("plan", f"{path}; change a setting with --set, or edit it and give --preset {path}")
    return path
