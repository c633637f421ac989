"""The only door to KFP: compiles the pipelines, and executes what was compiled.

`execute` runs in a process of its own (`python -m gnn_encoder.runs.launch JOB`), because kfp.local prints
each step's whole input and swallows Ctrl-C; `gnn_encoder.runs.local_run` starts it and listens.
"""

import importlib.util
import json
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from gnn_encoder.artifacts.folder import MANIFEST, Manifest, read_manifest
from gnn_encoder.errors import UserError
from gnn_encoder.runs import lifeline
from gnn_encoder.runs.containers import ContainerRun, Containers, settings_of
from gnn_encoder.settings.pipeline import StepArguments
from gnn_encoder.tracking.progress import emit

SOURCE_TREE = Path(__file__).parents[3]
Arguments = Mapping[str, str | list[str]]
"""Pipeline parameter → a step's arguments as JSON, or those of each turn of a loop."""


def pipeline_file(name: str) -> Path:
    """A compiled pipeline: in the wheel, or in the source tree it was installed from."""
    packaged = Path(str(resources.files("gnn_encoder"))) / "pipelines" / f"{name}.yaml"
    return packaged if packaged.is_file() else SOURCE_TREE / "pipelines" / f"{name}.yaml"


def step_of(task: str) -> str:
    """The step of a task: KFP calls a step's second task STEP-2."""
    return re.sub(r"-\d+$", "", task).replace("-", "_")


def image_of(name: str) -> str:
    """The image that a compiled pipeline's steps run in."""
    spec = next(yaml.safe_load_all(pipeline_file(name).read_text("utf-8")))
    (image,) = {each["container"]["image"] for each in spec["deploymentSpec"]["executors"].values()}
    return str(image)


def compile_pipeline(name: str, target: Path) -> None:
    """Compile pipelines/NAME.py to KFP's intermediate representation.

    Raises:
        UserError: this is an installed package without the pipelines' sources.
    """
    source = SOURCE_TREE / "pipelines" / f"{name}.py"
    if not source.is_file():
        raise UserError("compile needs the project's source tree: run it in a clone installed with pip install -e")
    from kfp import compiler

    sys.path.insert(0, str(SOURCE_TREE))  # where `components` lies
    try:
        spec = importlib.util.spec_from_file_location(f"{name}_pipeline", source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        compiler.Compiler().compile(getattr(module, name), str(target))
    finally:
        sys.path.remove(str(SOURCE_TREE))


def is_compiled(name: str) -> bool:
    """Whether the committed NAME.yaml is what pipelines/NAME.py compiles to."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "fresh.yaml"
        compile_pipeline(name, fresh)
        committed = pipeline_file(name)
        return committed.is_file() and committed.read_text("utf-8") == fresh.read_text("utf-8")


def execute(pipeline: Path, arguments: Arguments, pipeline_root: Path, containers: Containers | None = None) -> None:
    """Run a compiled pipeline on this machine, step after step, reusing what is done already.

    Args:
        containers: how steps are put into containers; without it each is a process here.

    Raises:
        RuntimeError: a step failed.
    """
    # kfp puts sys.executable wherever a command says "python3": into paths among the arguments too,
    # and unquoted. As "python3" it changes nothing, if that is the interpreter which PATH finds.
    found = shutil.which("python3")
    if found and Path(found).samefile(sys.executable):
        sys.executable = "python3"
    from kfp import components, local
    from kfp.local import cache

    cache.LocalCache = _content_cache(cache.LocalCache)
    local.init(
        _runner(containers),
        pipeline_root=str(pipeline_root),
        workspace_root=tempfile.mkdtemp(prefix="workspace-"),
        enable_caching=True,
    )
    components.load_component_from_text(_one_at_a_time(pipeline.read_text("utf-8")))(**arguments)
    _check_outputs()


def _runner(containers: Containers | None) -> Any:
    from kfp import local

    if containers is None:
        return local.SubprocessRunner(use_venv=False)
    from kfp.local import docker_task_handler

    global _container_run
    _container_run = docker_task_handler.run_docker_container = ContainerRun(containers)
    return local.DockerRunner(**settings_of(containers))


def _one_at_a_time(pipeline: str) -> str:
    """The pipeline with its loops' turns one after another: on one machine they would share the cores."""
    spec, *more = yaml.safe_load_all(pipeline)
    for task in spec["root"]["dag"]["tasks"].values():
        if "parameterIterator" in task:
            task["iteratorPolicy"] = {"parallelismLimit": 1}
    return yaml.safe_dump_all([spec, *more])


def _content_cache(base: type) -> type:
    """kfp.local's cache, keyed on what artifacts hold, not on where they lie; tells the launcher."""

    class ContentCache(base):  # type: ignore[misc]
        def __init__(self, cache_root: str) -> None:
            super().__init__(cache_root)
            self._steps: dict[str, str] = {}

        @staticmethod
        def _serialize_value_for_key(value: Any) -> Any:
            if hasattr(value, "uri"):
                return {"schema": read_manifest(value.uri).schema, "digest": read_manifest(value.uri).digest}
            return base._serialize_value_for_key(value)  # type: ignore[attr-defined]

        def compute_key(self, component_name: str, **facts: Any) -> str:
            _check_outputs()
            key = str(super().compute_key(component_name, **facts))
            step = step_of(component_name.removeprefix("comp-"))
            call = StepArguments.model_validate_json(facts["arguments"].get("arguments") or "{}")
            self._steps[key] = call.title(step)
            return key

        def get(self, key: str) -> dict[str, Any] | None:
            step = self._steps[key]
            if _interrupted:
                raise KeyboardInterrupt
            outputs: dict[str, Any] | None = None
            manifests: list[Manifest] = []
            try:
                outputs = super().get(key)
                manifests = [read_manifest(artifact.uri) for artifact in (outputs or {}).values()]
            except UserError as error:
                emit(step, "note", message=f"cannot reuse its last output: {error}")
            except (AttributeError, TypeError, ValueError, KeyError, RecursionError):  # what kfp says of wrong JSON
                emit(step, "note", message=f"cannot reuse its last output: {self._entry_path(key)} is corrupt")
            if not manifests:
                _begun.append(step)
                emit(step, "starting")
            else:
                emit(step, "cached", outputs=_uris(outputs or {}), metrics=manifests[0].metrics)
            return outputs if manifests else None

        def put(self, key: str, outputs: dict[str, Any]) -> None:
            step = self._steps[key]
            if not (outputs and all((Path(uri) / MANIFEST).is_file() for uri in _uris(outputs).values())):
                _empty_handed.append(step)  # raised later: kfp would take an exception here for the cache's own
                emit(step, "lost", message="ended well, but wrote no output")
                return
            super().put(key, outputs)
            emit(step, "outputs", outputs=_uris(outputs))

    return ContentCache


def _uris(outputs: Mapping[str, Any]) -> dict[str, str]:
    return {name: artifact.uri for name, artifact in outputs.items()}


_interrupted: list[int] = []
_begun: list[str] = []
_empty_handed: list[str] = []
_container_run: ContainerRun | None = None


def _check_outputs() -> None:
    if _empty_handed:
        raise RuntimeError(f"{_empty_handed[-1]} wrote no output")


def _interrupt(signum: int, frame: object) -> None:
    _interrupted.append(signum)
    if _container_run:  # a step that is a process here has had the signal itself
        _container_run.interrupt()


def main(job_file: str) -> int:
    """The engine's process: execute a job (`pipeline`, `arguments`, `pipeline_root`, `containers` as JSON)."""
    lifeline.attach()
    # A handler, not SIG_IGN, which steps would inherit. The step in progress ends by itself and kfp returns.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    job = json.loads(Path(job_file).read_text("utf-8"))
    containers = Containers(**job["containers"]) if job["containers"] else None
    try:
        execute(Path(job["pipeline"]), job["arguments"], Path(job["pipeline_root"]), containers)
    except RuntimeError as error:
        if _container_run and _container_run.cause:
            emit(_begun[-1], "lost", message=_container_run.cause)
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
