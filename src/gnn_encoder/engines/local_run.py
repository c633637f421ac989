"""Runs the calls of a graph on this machine in a process of their own, and watches and logs the run."""

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Report
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.engines import lifeline
from gnn_encoder.engines.containers import Containers
from gnn_encoder.engines.local import Call
from gnn_encoder.engines.supervision import Event, Show, supervise
from gnn_encoder.errors import UserError
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
    outputs: dict[str, Path] = field(default_factory=dict)
    """Artifact name → folder, of the steps that finished or were reused."""

    @property
    def exit_code(self) -> int:
        """0 for success, 2 for an error that the user can fix, 130 for an interruption, otherwise 1."""
        return {"FINISHED": 0, "KILLED": 130}.get(self.status, 2 if self.user_error else 1)


def run_calls(
    calls: Sequence[Call],
    root: Path,
    name: str,
    params: Mapping[str, Any],
    show: Show,
    containers: Containers | None = None,
) -> Outcome:
    """Runs calls under `root`, logged as `name`; steps are processes or run in `containers`.

    Raises UserError if the disk is full, the tracking store is not usable, or another run is active under the root.
    """
    log = root / "logs" / f"{name}.log"
    with lifeline.take(root):
        for pattern in ("pipeline/**/.*.partial-*", "tokens/.partial-*"):
            for leftover in root.glob(pattern):  # from a step that was killed by `kill -9`
                shutil.rmtree(leftover, ignore_errors=True)
        if shutil.disk_usage(root).free < FULL_BYTES:
            raise UserError(f"No space left on device: {root}; free space, or give another --root")
        parent = PipelineLog(root, name, params, {"log": str(log)})
        outcome = Outcome("KILLED", log)
        job = {
            "calls": [asdict(call) for call in calls],
            "folder": str(root / "pipeline"),
            "containers": asdict(containers) if containers else None,
        }
        try:
            _execute(job, root, name, parent, outcome, show)
            if outcome.status == "FINISHED" and "report" in outcome.outputs:
                metrics, decision = Report.read(outcome.outputs["report"]).metrics, outcome.outputs.get("decision")
                split = metrics["headline_split"]
                systems = metrics["results"][split].items()
                figures = {f"{split}/{system}/{k}": v for system, means in systems for k, v in means.items()}
                advice = metrics.get("recommendation") or {}
                card, model = "", ""
                if decision:
                    decided = Decision.read(decision)
                    card, model = decided.card, decided.facts.get("model") or ""
                data = outcome.outputs.get("dataset")
                dataset = read_manifest(data) if data else None
                parent.results(figures, card, advice.get("system", ""), dataset, model)
        finally:
            parent.finish(outcome.status)
    return outcome


def _execute(job: Mapping[str, Any], root: Path, name: str, parent: PipelineLog, outcome: Outcome, show: Show) -> None:
    """Executes a job in its own process, and records its end in `outcome`."""
    failure: Event = {}
    running: list[str] = []

    def handle(events: list[Event]) -> None:
        for event in events:
            kind, step = event["event"], event["step"]
            call = f"{step}/" if ": " in step else ""  # one of several calls of a step
            outcome.outputs.update({call + name: Path(path) for name, path in event.get("outputs", {}).items()})
            if kind == "starting":
                running.append(step)
            elif kind == "outputs" and step in running:
                running.remove(step)
            elif kind == "cached":
                parent.cached_step(step, read_manifest(next(iter(event["outputs"].values()))))
            elif kind in ("failed", "lost") and not failure:  # lost: reported by the engine, as the step could not
                failure.update(event)
        show(events)

    environment = _environment(root, name) | parent.environment()
    temporary = Path(environment["TMPDIR"])
    for folder in (temporary, outcome.log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    (temporary / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-m", "gnn_encoder.engines.local", str(temporary / "job.json")]
    try:
        code = supervise(command, environment, outcome.log, Path(environment[EVENTS]), handle)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if code is not None:
        outcome.status = "FINISHED" if code == 0 else "FAILED"
    if not code:
        return
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
        show([{**failed, "message": outcome.message.split("\n")[0]}])


def _environment(root: Path, name: str) -> dict[str, str]:
    """Returns the environment of the engine and of every step."""
    search = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = os.environ | {
        "PATH": os.pathsep.join(filter(None, search)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",  # of the log
        "TMPDIR": str(root / "tmp" / name),
        "TOKENIZERS_PARALLELISM": "false",
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
