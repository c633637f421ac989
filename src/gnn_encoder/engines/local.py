"""The engine of this machine: runs a graph's calls in order, and reuses results of equal calls.

`python -m gnn_encoder.engines.local JOB` is a process of its own, so that a run can be interrupted and killed with all
its steps (`supervision`). A job is a JSON file: `calls` (each a `Call`), `folder` for the outputs, `containers`, and
`registered`, the versions of the models that calls promote to.

The result of a call is reused for equal arguments and equal contents of the inputs, wherever they lie. A file of the
cache has the addresses of the outputs; outputs that are gone or damaged are made again.
"""

import json
import signal
import sys
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts.folder import MANIFEST, digest_of, read_manifest
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.artifacts.replacing import replace_content
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.engines import lifeline
from gnn_encoder.engines.containers import Containers, ContainerSteps
from gnn_encoder.engines.processes import StepProcesses
from gnn_encoder.errors import UserError, print_any_text
from gnn_encoder.flow.arguments import StepArguments, task_name
from gnn_encoder.flow.declared import declared
from gnn_encoder.flow.graph import Artifact, Given, Graph
from gnn_encoder.tracking.progress import emit

CACHE = ".cache"
"""Folder below the outputs, with a file for each call that can be reused."""
INGEST, PROMOTE = "ingest", "promote"
OF_ORIGIN = (
    "merge", "choose_graph", "fuse_parts", "rank", "fuse", "evaluate", "recommend", "choose_bundle", "measure_latency",
    "report", "try_variant", "compare_variants", "choose_reranker", "compare_rerankers", "bundle_reranker",
    "select_queries",
)  # fmt: skip
"""Steps that read how their inputs were made, or pass it on: the history, or the settings and inputs in the manifest.
Two indexes with the same hits make the same run, but the page, the README and the check of `choose_bundle` name one of
them. So the cache distinguishes equal inputs of these steps by their origin. Trainings and encodings read the contents
of their inputs alone, and are reused for equal contents of any origin."""
Source = str | tuple[str, str]
"""Where an input is: an address, or (title of the call, its output)."""


@dataclass(frozen=True)
class Call:
    """A node of a graph, as the engine's process reads it."""

    step: str
    title: str
    arguments: str
    inputs: Mapping[str, Sequence[Source]]
    """Name → the source, or the sources of a list."""
    outputs: tuple[str, ...]
    stage: str = ""
    """Of the run, for people who follow it."""


def calls_of(graph: Graph, arguments: Mapping[str, StepArguments]) -> list[Call]:
    """Returns the calls of a graph with the arguments of each, by title."""

    def source_of(artifact: Artifact) -> Source:
        return artifact.address if isinstance(artifact, Given) else (artifact.node.title, artifact.name)

    return [
        Call(
            node.step,
            node.title,
            arguments[node.title].model_dump_json(),
            {
                name: [source_of(artifact) for artifact in (value if isinstance(value, tuple) else (value,))]
                for name, value in node.inputs.items()
            },
            tuple(declared(node.step).outputs),
            node.stage,
        )
        for node in graph.nodes
    ]


class Failed(Exception):
    """A step failed; its process has said why."""


class Cache:
    """The results of earlier calls under a folder."""

    def __init__(self, folder: Path, registered: Container[tuple[str, str]] | None = None) -> None:
        """`registered`: (model, number) of the registered versions; a `promote` whose version is gone is not reused."""
        self.folder, self._registered = folder, registered
        self.outputs: dict[str, dict[str, str]] = {}
        """Title → output → folder."""

    def reuse(self, calls: Iterable[Call]) -> None:
        """Adds to `outputs` what a run of the calls would reuse. What follows a call that has to run is not known."""
        for call in calls:
            sources = (source for of_input in call.inputs.values() for source in of_input)
            if all(isinstance(source, str) or source[0] in self.outputs for source in sources):
                key = self._key(call, self._addresses(call))
                if outputs := self._cached(call, key):
                    self.outputs[call.title] = outputs

    def _addresses(self, call: Call) -> dict[str, list[str]]:
        return {
            name: [source if isinstance(source, str) else self.outputs[source[0]][source[1]] for source in sources]
            for name, sources in call.inputs.items()
        }

    def _key(self, call: Call, inputs: Mapping[str, Sequence[str]]) -> str:
        """Returns what the call's result depends on. Two calls with the same key share their result."""
        contents = {name: [_content(address) for address in addresses] for name, addresses in inputs.items()}
        facts: dict[str, Any] = {"step": call.step, "arguments": call.arguments, "inputs": contents}
        if call.step in OF_ORIGIN:
            facts["origins"] = {name: [_origin(address) for address in addresses] for name, addresses in inputs.items()}
        return digest_of(facts)

    def _cached(self, call: Call, key: str) -> dict[str, str] | None:
        """Returns the outputs of an equal call, None if there was none or its outputs cannot be reused."""
        entry = self.folder / CACHE / f"{key}.json"
        if not entry.is_file():
            return None
        try:
            kept = json.loads(entry.read_text("utf-8"))
            outputs: dict[str, str] = {name: kept[name] for name in call.outputs}
            if not all(Path(path).exists() for path in outputs.values()):
                return None  # deleted, or in a root that was moved
            manifests = [read_manifest(path) for path in outputs.values()]
            if call.step == PROMOTE and self._is_gone(Path(outputs["decision"])):
                return None
        except UserError as error:
            emit(call.title, "note", message=f"cannot reuse its last output: {error}")
        except (ValueError, TypeError, KeyError, RecursionError):
            emit(call.title, "note", message=f"cannot reuse its last output: {entry} is corrupt")
        else:
            emit(call.title, "cached", outputs=outputs, metrics=manifests[0].metrics)
            return outputs
        return None

    def _is_gone(self, decision: Path) -> bool:
        """Whether the store of models lacks the version of a decision: it was lost, or restored from a backup."""
        facts = Decision.read(decision).facts
        if facts["version"] is None or self._registered is None:
            return False
        return (facts["model_name"], str(facts["version"])) not in self._registered

    def _keep(self, key: str, outputs: Mapping[str, str]) -> None:
        entry = self.folder / CACHE / f"{key}.json"
        entry.parent.mkdir(parents=True, exist_ok=True)
        replace_content(entry, json.dumps(outputs).encode())


class Engine(Cache):
    """Runs calls one after the other. `steps` runs one: from a command to its exit code."""

    def __init__(
        self, folder: Path, steps: StepProcesses | ContainerSteps, registered: Container[tuple[str, str]] | None = None
    ) -> None:
        super().__init__(folder, registered)
        self.steps = steps
        self.interrupted = False
        self._run = folder / time.strftime("%Y%m%d-%H%M%S")

    def execute(self, calls: Iterable[Call]) -> None:
        """Runs the calls, or reuses their results. Raises `Failed` for the first call that fails."""
        for call in calls:
            inputs = self._addresses(call)
            key = self._key(call, inputs)
            if self.interrupted:
                raise KeyboardInterrupt
            outputs = self._cached(call, key)
            if outputs is None:
                outputs = self._started(call, inputs)
                self._keep(key, outputs)
                emit(call.title, "outputs", outputs=outputs)
            self.outputs[call.title] = outputs

    def interrupt(self, *_: object) -> None:
        """Lets the running step end, and starts no other."""
        self.interrupted = True
        self.steps.interrupt()

    def _started(self, call: Call, inputs: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Runs the call's step, and returns its outputs."""
        emit(call.title, "starting")
        folder = self._folder(call.title)
        outputs = {name: str(folder / name) for name in call.outputs}
        if code := self.steps.run(call.step, executor_input(call, inputs, outputs)):
            if cause := getattr(self.steps, "cause", ""):
                emit(call.title, "lost", message=cause)
            raise Failed(f"{call.title} ended with exit code {code}")
        if not all((Path(path) / MANIFEST).is_file() for path in outputs.values()):
            emit(call.title, "lost", message="ended well, but wrote no output")
            raise Failed(f"{call.title} wrote no output")
        return outputs

    def _folder(self, title: str) -> Path:
        """Returns a new folder for a call's outputs.

        Titles may differ in signs, or in letters that the name lacks, and two runs may begin in one second.
        """
        name = task_name(title)
        names = chain([name], (f"{name}--{number}" for number in count(2)))
        return next(folder for folder in map(self._run.joinpath, names) if not folder.exists())


def executor_input(call: Call, inputs: Mapping[str, Sequence[str]], outputs: Mapping[str, str]) -> str:
    """Returns a call's artifacts and arguments as KFP's launcher gives them to a container (`ExecutorInput`)."""

    def artifacts(addresses: Iterable[str]) -> dict[str, Any]:
        return {"artifacts": [{"uri": address} for address in addresses]}

    input_artifacts = {name: artifacts(addresses) for name, addresses in inputs.items()}
    output_artifacts = {name: artifacts([address]) for name, address in outputs.items()}
    return json.dumps(
        {
            "inputs": {"parameterValues": {"arguments": call.arguments}, "artifacts": input_artifacts},
            "outputs": {"artifacts": output_artifacts},
        }
    )


def _content(address: str) -> dict[str, str]:
    manifest = read_manifest(address)
    return {"schema": manifest.schema, "digest": manifest.digest}


def _origin(address: str) -> str:
    """Returns the digest of the settings and inputs of all steps that led to an artifact.

    Code, figures and times of the steps are left out, and so is `ingest`: what it reads is in the digest of its output,
    and a moved data set is the same data.
    """
    manifest = read_manifest(address)
    try:
        records = {title: (record.settings, record.inputs) for title, record in read_history(Path(address)).items()}
    except UserError as error:  # the step will say so
        return str(error)
    records.pop(INGEST, None)
    origin = (manifest.settings, manifest.inputs) if manifest.step != INGEST else ()
    return digest_of({"steps": records, "made": origin})


def main(job_file: str) -> int:
    """Executes a job; returns the exit code."""
    lifeline.attach()
    print_any_text()
    job = json.loads(Path(job_file).read_text("utf-8"))
    containers = job["containers"]
    steps = ContainerSteps(Containers(**containers)) if containers else StepProcesses()
    engine = Engine(Path(job["folder"]), steps, {(name, number) for name, number in job["registered"]})
    # A handler, not SIG_IGN, because steps would inherit SIG_IGN. The running step ends by itself, then the engine.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, engine.interrupt)
    try:
        engine.execute(Call(**call) for call in job["calls"])
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
