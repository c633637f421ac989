"""`gnn-encoder run`: the whole pipeline on this machine, checked first, watched, and accounted for."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gnn_encoder import launch, lifeline
from gnn_encoder.artifacts import Report
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.context import CHECKPOINTS, TOKENS
from gnn_encoder.errors import UserError
from gnn_encoder.models.backbone import backbone_width
from gnn_encoder.pipeline_run import PipelineRun, tracking_uri
from gnn_encoder.presets import load_settings, parse_settings
from gnn_encoder.progress import EVENTS
from gnn_encoder.provenance import step_arguments
from gnn_encoder.settings import STEPS, STUDY, Settings
from gnn_encoder.steps.step import StepArguments
from gnn_encoder.studies import largest_graph, variants, with_seeds
from gnn_encoder.supervision import Event, Interrupted, supervise

ROOT = "GNN_ENCODER_ROOT"
"""Environment variable: the folder of runs, checkpoints and the MLflow store."""
FULL_BYTES = 2**20
"""A disk with less space than this is full."""
MODELS = ("dual_encoder", "cross_encoder", "gnn_encoder")
KEPT = ("bundle", "report", "dataset", "graph", "passage_vectors", "encoding", *MODELS)
"""Outputs of a finished run that `latest/` under the root points at: what is used, and what an update needs."""
UPDATED = ("ingest", "build_graph", "encode_corpus")
"""Steps of the update pipeline."""
COMMON = STEPS[: STEPS.index("train_gnn")]
"""Steps that an ablation shares with the training pipeline."""


class Audience(Protocol):
    """Whoever is told how a run goes: the console, or a test."""

    def hear(self, events: list[Event]) -> None:
        """Take what happened since the last call, some ten times a second, also when it is nothing."""


@dataclass
class Outcome:
    """How a run ended."""

    status: str = "FINISHED"
    """FINISHED, FAILED or KILLED, in MLflow's words."""
    log: Path = Path()
    tracking_uri: str = ""
    failed_step: str = ""
    message: str = ""
    user_error: bool = False
    outputs: dict[str, Path] = field(default_factory=dict)
    """Artifact name → its folder, of the steps that finished or were reused."""

    @property
    def exit_code(self) -> int:
        """0, 2 for what the user can mend, 130 for an interruption, else 1."""
        return {"FINISHED": 0, "KILLED": 130}.get(self.status, 2 if self.user_error else 1)


def default_root() -> Path:
    """`GNN_ENCODER_ROOT`, else ./gnn-encoder-runs."""
    return Path(os.environ.get(ROOT) or "gnn-encoder-runs")


def run(preset: str, dataset: str | None, overrides: Iterable[str], root: Path, audience: Audience) -> Outcome:
    """Run a preset's training pipeline under `root` and report to `audience`.

    Raises:
        UserError: settings, data source, backbone, tracking store or root are not usable, or another
            run is going on there. No step has been started then.
    """
    settings = load_settings(preset, [*overrides, *_dataset_override(dataset)])
    root = _usable(root)
    arguments = step_arguments(settings, STEPS, registry=tracking_uri(root))
    _check_heads(settings)
    params = {"preset": preset, **_params(settings, STEPS)}
    return _run_latest("train", arguments, root, Path(preset).stem, params, audience)


def update(since: Path, dataset: str | None, overrides: Iterable[str], root: Path, audience: Audience) -> Outcome:
    """Run the update pipeline over a data set, with the models and settings of the run that `since` leads to.

    Raises:
        UserError: as `run`, or `since` is no folder of a finished run.
    """
    overrides = list(overrides)
    for override in overrides:
        if override.partition(".")[0] not in UPDATED:
            raise UserError(f"--set {override}: an update runs {', '.join(UPDATED)} alone")
    since = since.expanduser().resolve()
    models = {name: str((since / name).resolve()) for name in MODELS}
    for path in models.values():
        read_manifest(path, "model")
    made = {"ingest": "dataset", "build_graph": "graph", "encode_corpus": "bundle"}
    tree = {step: read_manifest(since / artifact).settings for step, artifact in made.items()}
    for step in ("build_graph", "encode_corpus"):
        tree[step]["previous"] = str(since)
    settings = parse_settings(tree, [*overrides, *_dataset_override(dataset)], source=str(since))
    root = _usable(root)
    arguments = step_arguments(settings, UPDATED)
    params = {"from": str(since), **_params(settings, UPDATED)}
    return _run_latest("update", arguments | models, root, "update", params, audience)


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
    settings = load_settings(preset, [*overrides, *_dataset_override(dataset)])
    tried = variants(settings, studies, own)
    settings = settings.model_copy(update={"build_graph": largest_graph(settings.build_graph, tried)})
    root = _usable(root)
    arguments: dict[str, str | list[str]] = {**step_arguments(settings, (*COMMON, *STUDY))}
    call = StepArguments.model_validate_json(str(arguments.pop("try_variant")))
    arguments["variants"] = [
        call.model_copy(update={"settings": each.model_dump(mode="json"), "label": f"{each.variant}, seed {each.seed}"})
        .model_dump_json()
        for variant in tried
        for each in with_seeds(variant, seeds)
    ]  # fmt: skip
    params = {"preset": preset, "seeds": seeds, **_params(settings, COMMON)}
    title = f"ablation-{Path(preset).stem}"
    name = f"{title}-{time.strftime('%Y%m%d-%H%M%S')}"
    return run_pipeline(launch.pipeline_file("ablation"), arguments, root, name, params, audience)


def run_pipeline(
    pipeline: Path, arguments: launch.Arguments, root: Path, name: str, params: Mapping[str, Any], audience: Audience
) -> Outcome:
    """Run a compiled pipeline under `root`, tracked under `name`.

    Raises:
        UserError: the disk is full, the tracking store is not usable, or another run is going on under the root.
    """
    log = root / "logs" / f"{name}.log"
    with lifeline.take(root):
        for pattern in ("pipeline/**/.*.partial-*", "tokens/.partial-*"):
            for leftover in root.glob(pattern):  # of a step killed with -9
                shutil.rmtree(leftover, ignore_errors=True)
        if shutil.disk_usage(root).free < FULL_BYTES:
            raise UserError(f"No space left on device: {root}; free space, or give another --root")
        parent = PipelineRun(root, name, params, {"log": str(log)})
        outcome = Outcome("KILLED", log, parent.uri)
        try:
            _follow(_Run(root, name, pipeline, arguments), parent, outcome, audience)
            if outcome.status == "FINISHED" and "report" in outcome.outputs:
                parent.results(_headline_figures(outcome.outputs["report"]))
        finally:
            parent.finish(outcome.status)
    return outcome


@dataclass(frozen=True)
class _Run:
    root: Path
    name: str
    pipeline: Path
    arguments: launch.Arguments

    @property
    def temporary(self) -> Path:
        return self.root / "tmp" / self.name

    def environment(self) -> dict[str, str]:
        """The engine's and every step's environment."""
        search = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        environment = os.environ | {
            "PATH": os.pathsep.join(filter(None, search)),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.temporary),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            CHECKPOINTS: str(self.root / "checkpoints"),
            TOKENS: str(self.root / "tokens"),
            EVENTS: str(self.root / "logs" / f"{self.name}.events.jsonl"),
            lifeline.LAUNCHER: str(os.getpid()),
            lifeline.STEPS_LOCK: str(lifeline.steps_lock(self.root)),
        }
        package = Path(__file__).parents[1]
        if package.name != "site-packages":  # steps run the code that computed their digests
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
        for injected in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
            environment.pop(injected, None)  # of another program in the user's shell
        return environment


def _follow(run: _Run, parent: PipelineRun, outcome: Outcome, audience: Audience) -> None:
    failure: Event = {}
    begun: list[str] = []

    def hear(events: list[Event]) -> None:
        for event in events:
            if event["event"] == "starting":
                begun.append(event["step"])
            outcome.outputs.update({name: Path(path) for name, path in event.get("outputs", {}).items()})
            if event["event"] == "cached":
                parent.cached_step(event["step"], read_manifest(next(iter(event["outputs"].values()))))
            elif event["event"] == "failed":
                failure.update(event)
        audience.hear(events)

    environment = run.environment() | parent.environment()
    for folder in (run.temporary, outcome.log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    job = run.temporary / "job.json"
    facts = {
        "pipeline": str(run.pipeline),
        "arguments": dict(run.arguments),
        "pipeline_root": str(run.root / "pipeline"),
    }
    job.write_text(json.dumps(facts), encoding="utf-8")
    command = [sys.executable, "-m", "gnn_encoder.launch", str(job)]
    try:
        code = supervise(command, environment, outcome.log, Path(environment[EVENTS]), hear)
        outcome.status = "FINISHED" if code == 0 else "FAILED"
    except Interrupted:
        return
    finally:
        shutil.rmtree(run.temporary, ignore_errors=True)
    if outcome.status == "FAILED":
        outcome.failed_step = begun[-1] if begun else ""
        _explain(run.root, outcome, failure)
        if begun and not failure:  # the step could not say it itself
            lost = {"step": begun[-1], "event": "failed", "time": time.time(), "kind": "lost"}
            audience.hear([lost | {"message": outcome.message.split("\n")[0]}])


def _headline_figures(report: Path) -> dict[str, float]:
    """Every system's measures on the split that the report is headed by, as `split/system/measure`."""
    metrics = Report.read(report).metrics
    split = metrics["headline_split"]
    systems = metrics["results"][split].items()
    return {f"{split}/{system}/{name}": value for system, means in systems for name, value in means.items()}


def _explain(root: Path, outcome: Outcome, failure: Event) -> None:
    """What failed, in words: the step's own, or what can be known of a process that could say nothing."""
    if failure:
        outcome.user_error = failure["kind"] == "UserError"
        kind = "" if outcome.user_error else f"{failure['kind']}: "
        outcome.message = f"{kind}{failure['message']}"
    elif shutil.disk_usage(root).free < FULL_BYTES:
        outcome.user_error = True
        outcome.message = f"No space left on device: {root}; free space, then rerun"
    else:
        lines = re.sub(r"\x1b\[\d*m", "", outcome.log.read_text("utf-8", errors="replace")).split("\n")
        told = [line.strip() for line in lines if line.strip(" -{}[],")]
        outcome.message = "\n".join(["a process ended without a word (out of memory?); the log ends with", *told[-6:]])


def _check_heads(settings: Settings) -> None:
    """Refuse before the first step what would fail in the twelfth."""
    width, heads = backbone_width(settings.train_dual_encoder.backbone), settings.train_gnn.heads
    if width and width % heads:
        raise UserError(f"train_gnn.heads = {heads}: must divide the backbone's width {width}")


def _dataset_override(dataset: str | None) -> list[str]:
    if dataset is None:
        return []
    path = Path(dataset).expanduser()
    return [f"ingest.dataset={json.dumps(str(path.resolve()) if path.exists() else dataset)}"]


def _usable(root: Path) -> Path:
    root = root.expanduser().resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / ".lock").touch()
    except OSError as error:
        raise UserError(f"cannot write to {root}: {error.strerror}; give another --root or set {ROOT}") from None
    return root


def _params(settings: Settings, steps: Iterable[str]) -> dict[str, Any]:
    """All settings of those steps, as `step.name`."""
    values = settings.model_dump(mode="json")
    return {f"{step}.{name}": value for step in steps for name, value in values[step].items()}


def _run_latest(
    pipeline: str, arguments: launch.Arguments, root: Path, title: str, params: Mapping[str, Any], audience: Audience
) -> Outcome:
    """Run the pipeline of that name; if it finishes, let `latest/bundle` and the others lead to its outputs."""
    name = f"{title}-{time.strftime('%Y%m%d-%H%M%S')}"
    outcome = run_pipeline(launch.pipeline_file(pipeline), arguments, root, name, params, audience)
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
