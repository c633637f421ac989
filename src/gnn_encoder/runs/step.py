"""What every step shares: validated settings, atomic outputs, a tracked run, figures at the end.

A step is a plain function `(context, settings, **inputs, **outputs) -> metrics`, where inputs are
folders to read, or lists of them (one that may be missing has None for its default), and outputs are
drafts to fill.
`@step` turns it into what a component calls: `(arguments, **paths) -> None`, with paths only. A component may also say
by `addresses` where an input lies for other machines.
"""

import functools
import inspect
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import digest_of, drafting, read_manifest
from gnn_encoder.artifacts.history import Record, joined, write_history
from gnn_encoder.errors import UserError
from gnn_encoder.runs import lifeline
from gnn_encoder.settings.pipeline import STEP_SETTINGS, StepArguments
from gnn_encoder.settings.values import StepSettings
from gnn_encoder.tracking import mlflow_runs, progress
from gnn_encoder.tracking.context import Context

Metrics = dict[str, Any]
StepFunction = Callable[..., Metrics]
Given = str | Path | Sequence[str | Path]
Input = Path | list[Path]


def step(**outputs: str) -> Callable[[StepFunction], Callable[..., None]]:
    """Make a step of a function; `outputs` maps each output's name to its artifact schema."""

    def decorate(function: StepFunction) -> Callable[..., None]:
        name = function.__name__
        parameters = inspect.signature(function).parameters
        inputs = [p for p in parameters if p not in ("context", "settings", *outputs)]
        optional = {p for p in inputs if parameters[p].default is None}

        @functools.wraps(function)
        def run_step(arguments: str | StepSettings, addresses: Mapping[str, str] = {}, **paths: Given) -> None:
            if not {*inputs, *outputs} - optional <= set(paths) <= {*inputs, *outputs}:
                raise TypeError(f"{name} takes {[*inputs, *outputs]}, got {sorted(paths)}")
            if isinstance(arguments, str):  # called by a component: this process is the step
                lifeline.attach()
                call = StepArguments.model_validate_json(arguments)
                settings = STEP_SETTINGS[name].model_validate(call.settings)
            else:
                call, settings = StepArguments(settings=arguments.model_dump()), arguments
            found = {i: _folders(paths[i]) for i in inputs if i in paths}
            targets = {o: Path(str(paths[o])) for o in outputs}
            try:
                with progress.reporting(call.title(name)):
                    _run(name, function, call, settings, found, outputs, targets, addresses)
            except UserError as error:
                if isinstance(arguments, StepSettings):
                    raise  # called as a library: the caller's own error
                print(f"{name}: {error}", file=sys.stderr)
                raise SystemExit(2) from None

        return run_step

    return decorate


def _folders(given: Given) -> Input:
    return Path(given) if isinstance(given, str | Path) else [Path(path) for path in given]


def _by_name(inputs: dict[str, Input]) -> dict[str, Path]:
    """Every folder under a name of its own: `figures.0`, `figures.1` of a list."""
    named: dict[str, Path] = {}
    for name, given in inputs.items():
        several = given if isinstance(given, list) else [given]
        named |= {f"{name}.{i}" if isinstance(given, list) else name: path for i, path in enumerate(several)}
    return named


def _disk_trouble(error: Exception, folders: Iterable[Path]) -> str:
    """What the operating system would not do, empty where it is not that.

    Args:
        folders: where the step writes; where the error names no file, the one with the least room is.
    """
    where = min((folder for folder in folders if folder.is_dir()), key=lambda folder: shutil.disk_usage(folder).free)
    if not isinstance(error, OSError):  # safetensors' errors name it in their text alone
        return f"{error}: {where}" if "(os error " in str(error) else ""
    if error.errno is None:  # NumPy's short write
        return f"No space left on device: {where}" if "requested and" in str(error) else ""
    return f"{error.strerror}: {error.filename or where}"


def peak_gib() -> float:
    """The largest resident memory of this process, or of one that it started and that has ended, in GiB."""
    counted = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return counted / 2 ** (30 if sys.platform == "darwin" else 20)  # macOS counts bytes, Linux KiB


def _run(
    name: str,
    function: StepFunction,
    call: StepArguments,
    settings: StepSettings,
    inputs: dict[str, Input],
    outputs: dict[str, str],
    targets: dict[str, Path],
    addresses: Mapping[str, str],
) -> None:
    began = time.monotonic()
    folders = _by_name(inputs)
    digests = {key: read_manifest(path).digest for key, path in folders.items()}
    history = joined(folders.values())
    key = digest_of({"arguments": call.model_dump(), "inputs": digests})
    tags = {f"input.{k}": v for k, v in digests.items()} | {"code_digest": call.code_digest, "key": key}
    try:
        with (
            mlflow_runs.step_run(call.title(name), params=settings.model_dump(), tags=tags) as run,
            ExitStack() as stack,
        ):
            context = Context(name, run, key, call.title(name), call.source_digests, addresses)
            drafts = {key: stack.enter_context(drafting(targets[key], schema)) for key, schema in outputs.items()}
            if (size := getattr(settings, "processes", 1)) > 1:
                from gnn_encoder.runs.team import train_together  # imports torch

                metrics = train_together(function, size, context, settings, inputs, drafts)
            else:
                metrics = function(context, settings, **inputs, **drafts)
            seconds = round(time.monotonic() - began, 2)
            metrics = {**metrics, "seconds": seconds, "peak_memory_gib": round(peak_gib(), 3)}
            record = Record(settings.model_dump(), digests, metrics, call.code_digest, context.curves)
            history.pop(call.title(name), None)  # of an earlier run, whose models are used: this one comes last
            history[call.title(name)] = record
            for draft in drafts.values():
                write_history(draft.path, history)
                draft.manifest.step = name
                draft.manifest.settings = settings.model_dump()
                draft.manifest.inputs = digests
                draft.manifest.metrics = metrics
            run.metrics({k: float(v) for k, v in metrics.items() if isinstance(v, int | float)})
    except UserError:
        raise
    except Exception as error:
        if trouble := _disk_trouble(error, [Path(tempfile.gettempdir()), *(path.parent for path in targets.values())]):
            raise UserError(f"{trouble}; free space or mend it, then rerun") from error
        raise
    context.checkpoints().drop()  # the outputs stand: nothing to resume
    progress.emit(call.title(name), "finished", metrics=metrics)
