"""Compiles the pipelines with KFP, and executes them.

`execute` runs in its own process (`python -m gnn_encoder.runs.launch JOB`), because kfp.local prints each step's whole
input and ignores Ctrl-C. `gnn_encoder.runs.local_run` starts this process and reads its events.
"""

import json
import re
import runpy
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gnn_encoder.artifacts.folder import MANIFEST, Manifest, digest_of, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.errors import UserError, print_any_text
from gnn_encoder.runs import lifeline
from gnn_encoder.runs.containers import ContainerRun, Containers, settings_of
from gnn_encoder.runs.forked_steps import ForkedSteps
from gnn_encoder.settings.pipeline import StepArguments
from gnn_encoder.settings.presets import SOURCE_TREE, pipelines_folder
from gnn_encoder.tracking.progress import emit

Arguments = Mapping[str, str | list[str] | list[dict[str, str]]]
"""Pipeline parameter → arguments of a step as JSON; for a loop a list of them, or of {name: such arguments}."""
INGEST = "ingest"
OF_ORIGIN = (
    "merge", "choose_graph", "rank", "fuse", "evaluate", "recommend", "choose_bundle", "measure_latency", "report",
    "compare_variants", "compare_rerankers", "bundle_reranker",
)  # fmt: skip
"""Steps that read how their inputs were made, or pass it on: the history, or the settings and inputs in the manifest.
Two indexes with the same hits make the same run, but the page, the README and the check of `choose_bundle` name one of
them. So the cache distinguishes equal inputs of these steps by their origin. Trainings and encodings read the contents
of their inputs alone, and are reused for equal contents of any origin."""


def pipeline_file(name: str) -> Path:
    """Returns the file of a compiled pipeline."""
    return pipelines_folder() / f"{name}.yaml"


def step_of(task: str) -> str:
    """Returns the step of a task. KFP names the second task of a step STEP-2."""
    return re.sub(r"-\d+$", "", task).replace("-", "_")


def image_of(name: str) -> str:
    """Returns the image of a compiled pipeline's steps."""
    spec = next(yaml.safe_load_all(pipeline_file(name).read_text("utf-8")))
    (image,) = {each["container"]["image"] for each in spec["deploymentSpec"]["executors"].values()}
    return str(image)


def compile_pipeline(name: str, target: Path) -> None:
    """Compiles pipelines/NAME.py to KFP's intermediate representation; a UserError without the source tree."""
    source = SOURCE_TREE / "pipelines" / f"{name}.py"
    if not source.is_file():
        raise UserError("compile needs the project's source tree: run it in a clone installed with pip install -e")
    from kfp import compiler

    sys.path.insert(0, str(SOURCE_TREE))  # the folder of `components`
    try:
        compiler.Compiler().compile(runpy.run_path(str(source))[name], str(target))
    finally:
        sys.path.remove(str(SOURCE_TREE))


def is_compiled(name: str) -> bool:
    """Returns whether the committed NAME.yaml is what pipelines/NAME.py compiles to."""
    committed = pipeline_file(name)
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "fresh.yaml"
        compile_pipeline(name, fresh)
        return committed.is_file() and committed.read_text("utf-8") == fresh.read_text("utf-8")


def execute(pipeline: Path, arguments: Arguments, pipeline_root: Path, containers: Containers | None = None) -> None:
    """Runs a compiled pipeline on this machine, one step at a time, and reuses earlier outputs.

    Steps are processes, or run in `containers`. Raises RuntimeError if a step fails.
    """
    # kfp replaces "python3" in a command by sys.executable, even inside paths in the arguments, and without quotes.
    # If sys.executable is "python3", nothing changes, provided that PATH leads to the same interpreter.
    python = shutil.which("python3")
    if python and Path(python).samefile(sys.executable):
        sys.executable = "python3"
    from kfp import components, local
    from kfp.local import cache, docker_task_handler, subprocess_task_handler

    runner: Any = local.SubprocessRunner(use_venv=False)
    if containers:
        global _container_run
        _container_run = docker_task_handler.run_docker_container = ContainerRun(containers, _lost)
        runner = local.DockerRunner(**settings_of(containers))
    else:
        subprocess_task_handler.run_local_subprocess = ForkedSteps(
            subprocess_task_handler.run_local_subprocess, lambda: bool(_interrupted)
        )
    cache.LocalCache = _content_cache(cache.LocalCache)
    local.init(
        runner,
        pipeline_root=str(pipeline_root),
        workspace_root=tempfile.mkdtemp(prefix="workspace-"),
        enable_caching=True,
    )
    spec, *more = yaml.safe_load_all(pipeline.read_text("utf-8"))
    for task in spec["root"]["dag"]["tasks"].values():
        if "parameterIterator" in task:  # a loop; parallel iterations would compete for this machine's cores
            task["iteratorPolicy"] = {"parallelismLimit": 1}
    components.load_component_from_text(yaml.safe_dump_all([spec, *more]))(**arguments)
    _check_outputs()


def _content_cache(base: type) -> type:
    """Returns kfp.local's cache with keys from contents of artifacts, not from paths; the cache emits events.

    The key of a step in `OF_ORIGIN` also covers the origin of each artifact.
    """

    class ContentCache(base):  # type: ignore[misc]
        def __init__(self, cache_root: str) -> None:
            super().__init__(cache_root)
            self._steps: dict[str, str] = {}

        @staticmethod
        def _serialize_value_for_key(value: Any) -> Any:
            if hasattr(value, "uri"):
                manifest = read_manifest(value.uri)
                return {"schema": manifest.schema, "digest": manifest.digest}
            return base._serialize_value_for_key(value)  # type: ignore[attr-defined]

        def compute_key(self, component_name: str, **facts: Any) -> str:
            _check_outputs()
            step = step_of(component_name.removeprefix("comp-"))
            if step in OF_ORIGIN:
                origins = {name: _origins(value) for name, value in facts["arguments"].items()}
                facts["arguments"] = {**facts["arguments"], "origins": origins}
            key = str(super().compute_key(step, **facts))  # two calls of a step share their results
            call = StepArguments.model_validate_json(facts["arguments"].get("arguments") or "{}")
            self._steps[key] = call.title(step)
            return key

        def get(self, key: str) -> dict[str, Any] | None:
            step = self._steps[key]
            if _interrupted:
                raise KeyboardInterrupt
            outputs: dict[str, Any] = {}
            manifests: list[Manifest] = []
            try:
                outputs = super().get(key) or {}
                manifests = [read_manifest(artifact.uri) for artifact in outputs.values()]
            except UserError as error:
                emit(step, "note", message=f"cannot reuse its last output: {error}")
            except (AttributeError, TypeError, ValueError, KeyError, RecursionError):  # errors of kfp for wrong JSON
                emit(step, "note", message=f"cannot reuse its last output: {self._entry_path(key)} is corrupt")
            if manifests:
                emit(step, "cached", outputs=_uris(outputs), metrics=manifests[0].metrics)
                return outputs
            _begun.append(step)  # one step runs at a time
            emit(step, "starting")
            return None

        def put(self, key: str, outputs: dict[str, Any]) -> None:
            step = self._steps[key]
            if not (outputs and all((Path(uri) / MANIFEST).is_file() for uri in _uris(outputs).values())):
                _without_output.append(step)  # raised later, because kfp ignores exceptions of the cache
                emit(step, "lost", message="ended well, but wrote no output")
                return
            super().put(key, outputs)
            emit(step, "outputs", outputs=_uris(outputs))

    return ContentCache


def _origins(value: Any) -> list[str]:
    """Returns the digests of the origins of an argument's artifacts; of another argument, an empty list."""
    if isinstance(value, list):
        return [origin for each in value for origin in _origins(each)]
    return [_origin(value.uri)] if hasattr(value, "uri") else []


def _origin(artifact: str) -> str:
    """Returns the digest of the settings and inputs of all steps that led to an artifact.

    Code, figures and times of the steps are left out, and so is `ingest`: what it reads is in the digest of its output,
    and a moved data set is the same data.
    """
    manifest = read_manifest(artifact)
    try:
        records = {title: (record.settings, record.inputs) for title, record in read_history(Path(artifact)).items()}
    except UserError as error:  # the step will say so
        return str(error)
    records.pop(INGEST, None)
    made = (manifest.settings, manifest.inputs) if manifest.step != INGEST else ()
    return digest_of({"steps": records, "made": made})


def _uris(outputs: Mapping[str, Any]) -> dict[str, str]:
    return {name: artifact.uri for name, artifact in outputs.items()}


_interrupted: list[int] = []
_begun: list[str] = []
_without_output: list[str] = []
_container_run: ContainerRun | None = None


def _lost(cause: str) -> None:
    emit(_begun[-1], "lost", message=cause)


def _check_outputs() -> None:
    if _without_output:
        raise RuntimeError(f"{_without_output[-1]} wrote no output")


def _interrupt(signum: int, frame: object) -> None:
    _interrupted.append(signum)
    if _container_run:  # a step that is a process receives the signal directly
        _container_run.interrupt()


def main(job_file: str) -> int:
    """Executes a job (JSON file: `pipeline`, `arguments`, `pipeline_root`, `containers`); returns the exit code."""
    lifeline.attach()
    print_any_text()
    # A handler, not SIG_IGN, because steps would inherit SIG_IGN. The running step ends by itself, then kfp returns.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    job = json.loads(Path(job_file).read_text("utf-8"))
    containers = Containers(**job["containers"]) if job["containers"] else None
    try:
        execute(Path(job["pipeline"]), job["arguments"], Path(job["pipeline_root"]), containers)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
