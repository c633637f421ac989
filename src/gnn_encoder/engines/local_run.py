"""Runs the calls of a graph on this machine in a process of their own, and watches and logs the run."""

import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Report
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.engines import lifeline
from gnn_encoder.engines.containers import Containers
from gnn_encoder.engines.local import PROMOTE, Call
from gnn_encoder.engines.supervision import Event, Show, supervise
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.report.table import columns, markdown
from gnn_encoder.tracking.context import CHECKPOINTS, TOKENS
from gnn_encoder.tracking.pipeline_run import PipelineLog
from gnn_encoder.tracking.progress import EVENTS

FULL_BYTES = 2**20
"""A disk with less free space counts as full."""


@dataclass
class Outcome:
    """How a run ended."""

    status: str = "FINISHED"
    """MLflow's status: FINISHED, FAILED or KILLED."""
    log: Path = Path()
    failed_step: str = ""
    message: str = ""
    user_error: bool = False
    rung: str = ""
    """The last rung that was reached, of a ladder."""
    is_late: bool = False
    """The run was ended at its deadline."""
    outputs: dict[str, Path] = field(default_factory=dict)
    """Artifact name → folder, of the steps that finished or were reused. Outputs of the last rung have plain names."""

    @property
    def exit_code(self) -> int:
        """0 for success, 2 for an error that the user can fix, 130 for an interruption, otherwise 1."""
        return {"FINISHED": 0, "KILLED": 130}.get(self.status, 2 if self.user_error else 1)


@dataclass(frozen=True)
class Rung:
    """A part of a run that has a result of its own."""

    name: str
    last: str
    """The title of the call with which it ends."""
    outputs: Mapping[str, str]
    """Plain name of an output → its name in `Outcome.outputs`."""


def run_calls(
    calls: Sequence[Call],
    root: Path,
    name: str,
    params: Mapping[str, Any],
    show: Show,
    containers: Containers | None = None,
    rungs: Sequence[Rung] = (),
    reached: Callable[[Outcome, bool], None] = lambda outcome, cached: None,
    deadline: float = math.inf,
) -> Outcome:
    """Runs calls under `root`, logged as `name`; steps are processes or run in `containers`.

    Args:
        reached: gets a copy of the outcome at the end of each rung, and whether all of the rung was reused.
        deadline: when a run that has reached a rung ends at the latest (`time.time()`). The lowest rung always ends.

    Raises UserError if the disk is full, the tracking store is not usable, or another run is active under the root.
    """
    log = root / "logs" / f"{name}.log"
    with lifeline.take(root):
        for pattern in ("pipeline/**/.*.partial-*", "tokens/.partial-*"):
            for leftover in root.glob(pattern):  # from a step that was killed by `kill -9`
                shutil.rmtree(leftover, ignore_errors=True)
        if shutil.disk_usage(root).free < FULL_BYTES:
            raise UserError(f"No space left on device: {root}; free space, or give another --root")
        promotions = [StepArguments.model_validate_json(call.arguments) for call in calls if call.step == PROMOTE]
        models = {str(one.settings["model_name"]) for one in promotions}
        log.parent.mkdir(exist_ok=True)
        log.touch()  # the next run of this root closes what a killed one left open if the log is here
        parent = PipelineLog(root, name, params, {"log": str(log)})
        outcome = Outcome("KILLED", log)
        job: dict[str, Any] = {
            "calls": [asdict(call) for call in calls],
            "folder": str(root / "pipeline"),
            "containers": asdict(containers) if containers else None,
        }
        try:
            job["registered"] = parent.registered(models)
            handle = _Handler(outcome, parent, show, rungs, reached)
            stages = {call.title: call.stage for call in calls}
            show([{"step": "", "event": "run", "time": time.time(), "stages": stages, "log": str(log)}])
            _execute(job, root, name, handle, deadline)
            if (outcome.status == "FINISHED" or outcome.rung) and "report" in outcome.outputs:
                _log_results(parent, outcome.outputs)
        finally:
            parent.finish(outcome.status, is_late=outcome.is_late)
    return outcome


def _log_results(parent: PipelineLog, outputs: Mapping[str, Path]) -> None:
    """Logs the figures, the picture and the table of a run's report, and its decision, on the run of the pipeline."""
    report, data = Report.read(outputs["report"]), outputs.get("dataset")
    metrics = report.metrics
    split = metrics["headline_split"]
    systems = metrics["results"][split].items()
    figures = {f"{split}/{system}/{k}": v for system, means in systems for k, v in means.items()}
    model, note, shown = "", "", dict[str, Any]()
    if report.picture.is_file():  # an ablation has none
        shown = {"picture": report.picture.read_text("utf-8"), "table": columns(metrics)}
        note = f"{markdown(metrics)}\n\n"
    if "decision" in outputs:
        decided = Decision.read(outputs["decision"])
        note, model = note + decided.card, decided.facts.get("model") or ""
    advice = metrics.get("recommendation") or {}
    dataset = read_manifest(data) if data else None
    parent.results(figures, note, advice.get("system", ""), dataset, model, **shown)


class _Handler:
    """Takes the events of a run: notes outputs, logs reused steps, and tells when a rung is reached."""

    def __init__(
        self,
        outcome: Outcome,
        log: PipelineLog,
        show: Show,
        rungs: Sequence[Rung],
        reached: Callable[[Outcome, bool], None],
    ) -> None:
        self.outcome, self.log, self.show = outcome, log, show
        self.failure: Event = {}
        """The first step that failed."""
        self.running: list[str] = []
        self._rungs, self._reached = {rung.last: rung for rung in rungs}, reached
        self._cached = True

    def __call__(self, events: list[Event]) -> None:
        """Shows some events, and handles each when it was shown."""
        for event in events:
            self.show([event])
            self._handle(event)
        if not events:
            self.show([])

    def _handle(self, event: Event) -> None:
        kind, step = event["event"], event["step"]
        call = f"{step}/" if ": " in step else ""  # one of several calls of a step
        self.outcome.outputs.update({call + name: Path(path) for name, path in event.get("outputs", {}).items()})
        if kind == "starting":
            self.running.append(step)
            self._cached = False
        elif kind == "outputs" and step in self.running:
            self.running.remove(step)
        elif kind == "cached":
            self.log.cached_step(step, read_manifest(next(iter(event["outputs"].values()))))
        elif kind in ("failed", "lost") and not self.failure:  # lost: reported by the engine, as the step could not
            self.failure.update(event)
        if kind in ("outputs", "cached") and (rung := self._rungs.get(step)):
            outcome = self.outcome
            outcome.rung = rung.name
            outcome.outputs |= {name: outcome.outputs[output] for name, output in rung.outputs.items()}
            self._reached(replace(outcome, status="FINISHED", outputs={**outcome.outputs}), self._cached)
            self._cached = True


def _execute(job: Mapping[str, Any], root: Path, name: str, handle: _Handler, deadline: float) -> None:
    """Executes a job in its own process, and records its end in the outcome."""
    outcome = handle.outcome
    environment = _environment(root, name) | handle.log.environment()
    temporary = Path(environment["TMPDIR"])
    for folder in (temporary, outcome.log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    (temporary / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-m", "gnn_encoder.engines.local", str(temporary / "job.json")]

    def ends() -> float:
        return deadline if outcome.rung else math.inf

    try:
        code = supervise(command, environment, outcome.log, Path(environment[EVENTS]), handle, ends)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if code == "late":
        outcome.is_late, outcome.failed_step, outcome.status = True, next(iter(handle.running), ""), "FINISHED"
        return
    if code is not None:
        outcome.status = "FINISHED" if code == 0 else "FAILED"
    if not code:
        return
    failure, running = handle.failure, handle.running
    outcome.failed_step = failure["step"] if failure else next(iter(running), "")
    if failure.get("event") == "failed":
        outcome.user_error = failure["kind"] == "UserError"
        outcome.message = failure["message"] if outcome.user_error else f"{failure['kind']}: {failure['message']}"
        return
    if shutil.disk_usage(root).free < FULL_BYTES:
        outcome.user_error = True
        outcome.message = f"No space left on device: {root}; free space, then rerun"
    else:
        lines = re.sub(r"\x1b\[\d*m", "", outcome.log.read_text("utf-8", errors="replace")).split("\n")
        words = [line.strip() for line in lines if line.strip(" -{}[],")]
        cause = failure.get("message", "a process ended without a word (out of memory?)")
        outcome.message = "\n".join([f"{cause}; the log ends with", *words[-6:]])
    if outcome.failed_step:
        failed = {"step": outcome.failed_step, "event": "failed", "time": time.time(), "kind": "lost"}
        handle.show([{**failed, "message": outcome.message.split("\n")[0]}])


def _environment(root: Path, name: str) -> dict[str, str]:
    """Returns the environment of the engine and of every step."""
    search = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = os.environ | {
        "PATH": os.pathsep.join(filter(None, search)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",  # of the log
        "TMPDIR": str(root / "tmp" / name),
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "true"),  # each text has the same tokens
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        CHECKPOINTS: os.environ.get(CHECKPOINTS) or str(root / "checkpoints"),
        TOKENS: str(root / "tokens"),
        EVENTS: str(root / "logs" / f"{name}.events.jsonl"),
        lifeline.LAUNCHER: str(os.getpid()),
        lifeline.STEPS_LOCK: str(root / lifeline.STEPS_FILE),
    }
    package = Path(__file__).parents[2]
    if package.name != "site-packages":  # so that steps run the code that the digests describe
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
    for injected in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        environment.pop(injected, None)  # set for another program in the user's shell
    return environment
