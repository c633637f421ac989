"""The decorator of all steps: validated settings, atomic outputs, a tracked run, metrics at the end.

A step is a plain function `(context, settings, **inputs, **outputs) -> metrics`. The annotation of `settings` is its
settings class. Inputs are folders to read, or lists of folders; an optional input has the default None. Outputs are
drafts to fill. `flow.declared` reads all this for graphs and engines.

`@step` makes a function that an engine calls with paths: `(arguments, **paths) -> None`. An engine may also pass
`addresses`: the addresses of inputs for other machines; and `tags` of the MLflow run, on which no result depends.
"""

import inspect
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any, get_type_hints

from gnn_encoder.artifacts.folder import digest_of, drafting, read_manifest
from gnn_encoder.artifacts.history import Record, joined, write_history
from gnn_encoder.engines import lifeline
from gnn_encoder.errors import UserError, one_line, print_any_text
from gnn_encoder.flow.arguments import StepArguments, title_of
from gnn_encoder.machine.memory import peak_gib, reuse_freed
from gnn_encoder.settings.values import StepSettings
from gnn_encoder.tracking.context import Context
from gnn_encoder.tracking.mlflow_runs import step_log
from gnn_encoder.tracking.progress import emit

__all__ = ["Context", "Metrics", "step"]

PRIMITIVES, MOST_PRIMITIVES = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128"
"""Environment variable, which oneDNN reads at its first operation: how many compiled operations it keeps. Each is for
one shape and takes up to 0.7 MB, and the texts of each batch have other lengths, so its own 1,024 held 0.6 GB."""
OF_INPUT = ""
"""Schema of an output that has the schema of the step's first input."""
Metrics = dict[str, Any]
Paths = str | Path | Sequence[str | Path]


def step(**outputs: str) -> Callable[[Callable[..., Metrics]], Callable[..., None]]:
    """Makes a step from a function; `outputs` maps the name of each output to its artifact schema."""

    def decorate(function: Callable[..., Metrics]) -> Callable[..., None]:
        name = function.__name__
        parameters = inspect.signature(function).parameters
        inputs = [p for p in parameters if p not in ("context", "settings", *outputs)]
        optional = {p for p in inputs if parameters[p].default is None}

        @wraps(function)
        def run_step(
            arguments: str | StepSettings,
            addresses: Mapping[str, str] = {},
            tags: Mapping[str, str] = {},
            **paths: Paths,
        ) -> None:
            if not {*inputs, *outputs} - optional <= set(paths) <= {*inputs, *outputs}:
                raise TypeError(f"{name} takes {[*inputs, *outputs]}, got {sorted(paths)}")
            if isinstance(arguments, str):  # called by an engine, so this process is the step
                lifeline.attach()
                print_any_text()
                reuse_freed()
                os.environ.setdefault(PRIMITIVES, MOST_PRIMITIVES)
                call = StepArguments.model_validate_json(arguments)
                settings = get_type_hints(function)["settings"].model_validate(call.settings)
            else:
                call, settings = StepArguments(settings=arguments.model_dump()), arguments
            folders = {i: _folders(paths[i]) for i in inputs if i in paths}
            targets = {o: (Path(str(paths[o])), schema) for o, schema in outputs.items()}
            emit(title_of(name, call.label), "started", pid=os.getpid())
            try:
                _run(run_step, call, settings, folders, targets, addresses, tags)
            except BaseException as error:
                emit(title_of(name, call.label), "failed", message=one_line(error), kind=type(error).__name__)
                if not isinstance(error, UserError) or isinstance(arguments, StepSettings):
                    raise  # in a library call the caller handles the UserError
                print(f"{name}: {error}", file=sys.stderr)
                raise SystemExit(2) from None

        return run_step

    return decorate


def _folders(paths: Paths) -> Path | list[Path]:
    return Path(paths) if isinstance(paths, str | Path) else [Path(path) for path in paths]


def _run(
    run_step: Any,
    call: StepArguments,
    settings: StepSettings,
    inputs: dict[str, Path | list[Path]],
    outputs: dict[str, tuple[Path, str]],
    addresses: Mapping[str, str],
    own_tags: Mapping[str, str],
) -> None:
    began = time.monotonic()
    name, title, values = run_step.__name__, title_of(run_step.__name__, call.label), settings.model_dump()
    folders: dict[str, Path] = {}  # the folders of a list are `figures.0`, `figures.1`
    for key, paths in inputs.items():
        folders |= {key: paths} if isinstance(paths, Path) else {f"{key}.{i}": path for i, path in enumerate(paths)}
    digests = {key: read_manifest(path).digest for key, path in folders.items()}
    history = joined(folders.values())
    key = digest_of({"arguments": call.model_dump(), "inputs": digests})
    tags = {f"input.{k}": v for k, v in digests.items()} | {"code_digest": call.code_digest, "key": key, **own_tags}
    try:
        with step_log(title, params=values, tags=tags) as log, ExitStack() as stack:
            if "dataset" in folders:
                log.dataset(read_manifest(folders["dataset"]))
            context = Context(name, log, key, title, call.source_digests, addresses, history=history)
            read = tuple(folders.values())
            schemas = {o: schema or read_manifest(read[0]).schema for o, (_, schema) in outputs.items()}
            drafts = {o: stack.enter_context(drafting(path, schemas[o], read)) for o, (path, _) in outputs.items()}
            metrics: Metrics
            size, count = _processes(settings), getattr(settings, "nodes", 1)
            if count > 1:
                from gnn_encoder.engines.elastic import train_on_nodes  # imports torch

                metrics = train_on_nodes(run_step, size, count, context, settings, drafts)
            elif size > 1:
                from gnn_encoder.engines.elastic import train_in_processes

                metrics = train_in_processes(run_step, size, context, settings, folders, drafts)
            else:
                metrics = run_step.__wrapped__(context, settings, **inputs, **drafts)
            seconds = round(time.monotonic() - began, 2)
            peak = max(peak_gib(), metrics.get("peak_memory_gib", 0.0))  # of a training in other processes or pods
            metrics = {**metrics, "seconds": seconds, "peak_memory_gib": round(peak, 3)}
            history.pop(title, None)  # from an earlier run whose models are used: the new record comes last
            history[title] = Record(values, digests, metrics, call.code_digest, context.curves)
            for draft in drafts.values():
                write_history(draft.path, history)
                manifest = draft.manifest
                if not manifest.step:  # the copy of an artifact keeps its origin
                    manifest.step, manifest.settings, manifest.inputs = name, values, digests
                    manifest.metrics = metrics
            log.metrics(metrics)
    except UserError:
        raise
    except Exception as error:
        written = [Path(tempfile.gettempdir()), *(path.parent for path, _ in outputs.values())]
        if trouble := _disk_trouble(error, written):
            raise UserError(f"{trouble}; free space or fix the disk, then rerun") from error
        raise
    context.checkpoints().drop()  # the outputs are complete, so nothing will be resumed
    emit(title, "finished", metrics=metrics)


def _processes(settings: StepSettings) -> int:
    """Returns how many processes share the step's work."""
    wanted: int | str = getattr(settings, "processes", 1)
    if wanted != "auto":
        return int(wanted)
    from gnn_encoder.engines.elastic import fitting_size

    return fitting_size(getattr(settings, "in_documents", False), getattr(settings, "nodes", 1))


def _disk_trouble(error: Exception, written: list[Path]) -> str:
    """Returns the operating system's error with the file or the fullest written folder, or an empty text."""
    where = min((folder for folder in written if folder.is_dir()), key=lambda folder: shutil.disk_usage(folder).free)
    if not isinstance(error, OSError):  # safetensors' errors name it in their text only
        return f"{error}: {where}" if "(os error " in str(error) else ""
    if error.errno is None:  # an incomplete write of NumPy
        return f"No space left on device: {where}" if "requested and" in str(error) else ""
    return f"{error.strerror}: {error.filename or where}"
