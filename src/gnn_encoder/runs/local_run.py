"""A compiled pipeline on this machine: executed in a process of its own, watched, and accounted for."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gnn_encoder.artifacts import Report
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.errors import UserError
from gnn_encoder.runs import launch, lifeline
from gnn_encoder.runs.containers import Containers
from gnn_encoder.runs.supervision import Event, Interrupted, supervise
from gnn_encoder.tracking.context import CHECKPOINTS, TOKENS
from gnn_encoder.tracking.pipeline_run import PipelineRun
from gnn_encoder.tracking.progress import EVENTS

FULL_BYTES = 2**20
"""A disk with less space than this is full."""


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


def run_pipeline(
    pipeline: Path,
    arguments: launch.Arguments,
    root: Path,
    name: str,
    params: Mapping[str, Any],
    audience: Audience,
    containers: Containers | None = None,
) -> Outcome:
    """Run a compiled pipeline under `root`, tracked under `name`, its steps as processes or in `containers`.

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
            _follow(_Run(root, name, pipeline, arguments, containers), parent, outcome, audience)
            if outcome.status == "FINISHED" and "report" in outcome.outputs:
                decision = outcome.outputs.get("decision")
                note = Decision.read(decision).card if decision else ""
                parent.results(_headline_figures(outcome.outputs["report"]), note)
        finally:
            parent.finish(outcome.status)
    return outcome


@dataclass(frozen=True)
class _Run:
    root: Path
    name: str
    pipeline: Path
    arguments: launch.Arguments
    containers: Containers | None

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
            CHECKPOINTS: os.environ.get(CHECKPOINTS) or str(self.root / "checkpoints"),
            TOKENS: str(self.root / "tokens"),
            EVENTS: str(self.root / "logs" / f"{self.name}.events.jsonl"),
            lifeline.LAUNCHER: str(os.getpid()),
            lifeline.STEPS_LOCK: str(lifeline.steps_lock(self.root)),
        }
        package = Path(__file__).parents[2]
        if package.name != "site-packages":  # steps run the code that computed their digests
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
        for injected in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
            environment.pop(injected, None)  # of another program in the user's shell
        return environment


def _follow(run: _Run, parent: PipelineRun, outcome: Outcome, audience: Audience) -> None:
    failure: Event = {}
    lost = "a process ended without a word (out of memory?)"
    begun: list[str] = []

    def hear(events: list[Event]) -> None:
        nonlocal lost
        for event in events:
            if event["event"] == "starting":
                begun.append(event["step"])
            call = f"{event['step']}/" if ": " in event["step"] else ""  # of several calls of one step
            outcome.outputs.update({call + name: Path(path) for name, path in event.get("outputs", {}).items()})
            if event["event"] == "cached":
                parent.cached_step(event["step"], read_manifest(next(iter(event["outputs"].values()))))
            elif event["event"] == "failed":
                failure.update(event)
            elif event["event"] == "lost":  # the step could not say it, but what ran it could
                lost = event["message"]
        audience.hear(events)

    environment = run.environment() | parent.environment()
    for folder in (run.temporary, outcome.log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    job = run.temporary / "job.json"
    facts = {
        "pipeline": str(run.pipeline),
        "arguments": dict(run.arguments),
        "pipeline_root": str(run.root / "pipeline"),
        "containers": asdict(run.containers) if run.containers else None,
    }
    job.write_text(json.dumps(facts), encoding="utf-8")
    command = [sys.executable, "-m", "gnn_encoder.runs.launch", str(job)]
    try:
        code = supervise(command, environment, outcome.log, Path(environment[EVENTS]), hear)
        outcome.status = "FINISHED" if code == 0 else "FAILED"
    except Interrupted:
        return
    finally:
        shutil.rmtree(run.temporary, ignore_errors=True)
    if outcome.status == "FAILED":
        outcome.failed_step = begun[-1] if begun else ""
        _explain(run.root, outcome, failure, lost)
        if begun and not failure:
            told = {"step": begun[-1], "event": "failed", "time": time.time(), "kind": "lost"}
            audience.hear([told | {"message": outcome.message.split("\n")[0]}])


def _headline_figures(report: Path) -> dict[str, float]:
    """Every system's measures on the split that the report is headed by, as `split/system/measure`."""
    metrics = Report.read(report).metrics
    split = metrics["headline_split"]
    systems = metrics["results"][split].items()
    return {f"{split}/{system}/{name}": value for system, means in systems for name, value in means.items()}


def _explain(root: Path, outcome: Outcome, failure: Event, lost: str) -> None:
    """What failed, in words: the step's own, or what is known of a process that could say nothing, and its log's."""
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
        outcome.message = "\n".join([f"{lost}; the log ends with", *told[-6:]])
