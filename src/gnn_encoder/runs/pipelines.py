"""What `gnn-encoder run`, `update` and `ablate` ask of this machine: settings checked, turned into a pipeline's
arguments, and its outputs kept in reach under `latest/`.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.errors import UserError, expanded
from gnn_encoder.models.backbone import backbone_width
from gnn_encoder.promotion.registry import Registry, open_registry
from gnn_encoder.runs import launch
from gnn_encoder.runs.containers import Containers, check_engine
from gnn_encoder.runs.local_run import Audience, Outcome, run_pipeline
from gnn_encoder.runs.provenance import step_arguments
from gnn_encoder.settings.pipeline import FOUNDATION, PIPELINES, Settings, StepArguments
from gnn_encoder.settings.presets import load_settings, parse_settings
from gnn_encoder.settings.studies import largest_graph, variants, with_seeds
from gnn_encoder.tracking.pipeline_run import existing_store, tracking_uri

MODELS = ("dual_encoder", "cross_encoder", "gnn_encoder")
KEPT = ("bundle", "report", "dataset", "graph", "passage_vectors", "encoding", *MODELS)
"""Outputs of a finished run that `latest/` under the root points at: what is used, and what an update needs."""
PROCESSES, CONTAINERS = RUNNERS = ("subprocess", "docker")
"""What a step is on this machine: a process, or a container."""


@dataclass(frozen=True)
class Training:
    """A training pipeline that may run: settings checked, the root there."""

    preset: str
    settings: Settings
    root: Path

    @property
    def tracking_uri(self) -> str:
        """Of the store that it is tracked in."""
        return tracking_uri(self.root)

    def models(self) -> Registry:
        """Where its versions are registered.

        Raises:
            UserError: the store cannot be used; `Missing`, if nothing ran under the root yet.
        """
        return open_registry(existing_store(self.root), self.settings.promote.model_name)

    def arguments(self, registry: str = "") -> dict[str, str]:
        """What its steps are called with.

        Args:
            registry: what is registered so far, in any words: with others `promote` decides anew.

        Raises:
            UserError: data source or backbone are not there.
        """
        return step_arguments(self.settings, PIPELINES["train"], registry=f"{self.tracking_uri} {registry}".strip())

    def run(
        self, arguments: Mapping[str, str], audience: Audience, runner: str = PROCESSES, memory: str = ""
    ) -> Outcome:
        """Run it and report to `audience`.

        Args:
            runner: `subprocess` or `docker`, where each step is a container.
            memory: what a container may take, as `6g`; empty: all there is.

        Raises:
            UserError: settings do not fit the backbone, the tracking store or the container engine is not usable, or
                another run is going on under the root.
        """
        check_heads(self.settings)
        if runner not in RUNNERS:
            raise UserError(f"no runner {runner!r}: choose of {', '.join(RUNNERS)}")
        if memory and runner != CONTAINERS:
            raise UserError(f"--memory limits containers: add --runner {CONTAINERS}")
        containers = None
        if runner == CONTAINERS:
            check_engine(launch.image_of("train"))
            containers = Containers(str(self.root), tuple(_local_paths(self.settings)), memory)
        params = {"preset": self.preset, **_params(self.settings, PIPELINES["train"])}
        pipeline, name = launch.pipeline_file("train"), dated(Path(self.preset).stem)
        outcome = run_pipeline(pipeline, arguments, self.root, name, params, audience, containers)
        return _made_latest(self.root, outcome)


def training(preset: str, dataset: str | None, overrides: Iterable[str], root: Path) -> Training:
    """The training pipeline of a preset.

    Raises:
        UserError: settings or root are not usable.
    """
    settings = load_settings(preset, [*overrides, *dataset_override(dataset)])
    return Training(preset, settings, _usable(root))


def run(
    preset: str,
    dataset: str | None,
    overrides: Iterable[str],
    root: Path,
    audience: Audience,
    *,
    runner: str = PROCESSES,
    memory: str = "",
) -> Outcome:
    """Run a preset's training pipeline under `root` and report to `audience`; for `runner` and `memory` see `Training`.

    Raises:
        UserError: settings, data source, backbone, tracking store, container engine or root are not usable, or
            another run is going on there. No step has been started then.
    """
    job = training(preset, dataset, overrides, root)
    return job.run(job.arguments(), audience, runner, memory)


def update(since: Path, dataset: str | None, overrides: Iterable[str], root: Path, audience: Audience) -> Outcome:
    """Run the update pipeline over a data set, with the models and settings of the run that `since` leads to.

    Raises:
        UserError: as `run`, or `since` is no folder of a finished run.
    """
    overrides, steps = list(overrides), PIPELINES["update"]
    for override in overrides:
        if override.partition(".")[0] not in steps:
            raise UserError(f"--set {override}: an update runs {', '.join(steps)} alone")
    since = expanded(since).resolve()
    if not since.is_dir():
        raise UserError(f"no finished run at {since}: gnn-encoder run first, or name its folder by --from")
    models = {name: str((since / name).resolve()) for name in MODELS}
    for path in models.values():
        read_manifest(path, "model")
    made = {"ingest": "dataset", "build_graph": "graph", "encode_corpus": "bundle"}
    tree = {step: read_manifest(since / artifact).settings for step, artifact in made.items()}
    for step in ("build_graph", "encode_corpus"):
        tree[step]["previous"] = str(since)
    settings = parse_settings(tree, [*overrides, *dataset_override(dataset)], source=str(since))
    root = _usable(root)
    arguments = step_arguments(settings, steps)
    params = {"from": str(since), **_params(settings, steps)}
    pipeline, name = launch.pipeline_file("update"), dated("update")
    return _made_latest(root, run_pipeline(pipeline, arguments | models, root, name, params, audience))


def ablate(
    preset: str,
    dataset: str | None,
    overrides: Iterable[str],
    studies: Iterable[str],
    own: Iterable[str],
    seeds: int,
    root: Path,
    audience: Audience,
) -> Outcome:
    """Run the ablation pipeline: the variants of `studies` and the user's `own`, each with so many seeds.

    Raises:
        UserError: as `run`, or a study or variant is unknown.
    """
    settings = load_settings(preset, [*overrides, *dataset_override(dataset)])
    tried = variants(settings, studies, own)
    settings = settings.model_copy(update={"build_graph": largest_graph(settings.build_graph, tried)})
    root = _usable(root)
    arguments: dict[str, str | list[str]] = {**step_arguments(settings, PIPELINES["ablation"])}
    call = StepArguments.model_validate_json(str(arguments.pop("try_variant")))
    arguments["variants"] = [
        call.model_copy(update={"settings": each.model_dump(mode="json"), "label": f"{each.variant}, seed {each.seed}"})
        .model_dump_json()
        for variant in tried
        for each in with_seeds(variant, seeds)
    ]  # fmt: skip
    params = {"preset": preset, "seeds": seeds, **_params(settings, FOUNDATION)}
    name = dated(f"ablation-{Path(preset).stem}")
    return run_pipeline(launch.pipeline_file("ablation"), arguments, root, name, params, audience)


def check_heads(settings: Settings) -> None:
    """Refuse before the first step what would fail in the twelfth."""
    width, heads = backbone_width(settings.train_dual_encoder.backbone), settings.train_gnn.heads
    if width and width % heads:
        raise UserError(f"train_gnn.heads = {heads}: must divide the backbone's width {width}")


def _local_paths(settings: Settings) -> set[str]:
    """What the settings name on this machine's disk: the data set, a pretrained model."""
    values = (str(value) for step in PIPELINES["train"] for value in getattr(settings, step).model_dump().values())
    return {value for value in values if value.startswith("/") and Path(value).exists()}


def dataset_override(dataset: str | None) -> list[str]:
    """`--dataset` as an override of the settings; a path that exists is made absolute."""
    if dataset is None:
        return []
    path = expanded(dataset)
    # YAML's escapes, not JSON's, which writes an emoji as two surrogates.
    quoted = yaml.safe_dump(str(path.resolve()) if path.exists() else dataset, default_style='"', width=math.inf)
    return [f"ingest.dataset={quoted}"]


def _usable(root: Path) -> Path:
    root = root.resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / ".lock").touch()
    except OSError as error:
        raise UserError(f"cannot write to {root}: {error.strerror}; give another --root") from None
    return root


def _params(settings: Settings, steps: Iterable[str]) -> dict[str, Any]:
    """All settings of those steps, as `step.name`."""
    values = settings.model_dump(mode="json")
    return {f"{step}.{name}": value for step in steps for name, value in values[step].items()}


def dated(title: str) -> str:
    """A run's name: what it is, and when it began."""
    return f"{title}-{time.strftime('%Y%m%d-%H%M%S')}"


def _made_latest(root: Path, outcome: Outcome) -> Outcome:
    """The outcome of a run; if it finished, `latest/bundle` and the others lead to its outputs."""
    if outcome.status != "FINISHED":
        return outcome
    latest = root / "latest"
    latest.mkdir(exist_ok=True)
    for name in KEPT:
        if name in outcome.outputs:
            fresh = latest / f".{name}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(outcome.outputs[name])
            fresh.replace(latest / name)
            outcome.outputs[name] = latest / name
    return outcome
