"""A pipeline of two steps that train nothing: what the launcher is tried with.

What the steps do is told by the environment variable GNN_ENCODER_TINY: a JSON object, step → `fail`, `bug`,
`wait`, `die`, `full`, `fill` (writes 64 MB), `exit`, `silent` (ends well without an output) or `greedy` (takes memory
without end).
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Draft
from gnn_encoder.errors import UserError
from gnn_encoder.engines.step import step
from gnn_encoder.settings.foundation import Bm25Retrieve, Ingest
from gnn_encoder.settings.pipeline import StepArguments
from gnn_encoder.tracking.context import Context


def _behave(name: str, context: Context, output: Draft) -> None:
    what = json.loads(os.environ.get("GNN_ENCODER_TINY", "{}")).get(name)
    if what == "fail":
        raise UserError("the data is wrong: mend it")
    if what == "bug":
        raise ValueError("a bug\nof two lines")
    if what == "die":
        os.kill(os.getpid(), 9)
    if what in ("exit", "silent"):
        os._exit(3 if what == "exit" else 0)
    if what == "greedy":
        print(len([bytearray(os.urandom(2**20)) for _ in range(4096)]))
    if what == "full":
        raise OSError(28, "No space left on device", "some/file")
    if what == "fill":
        (output / "large.bin").write_bytes(bytes(2**26))
    if what == "wait":
        progress = context.progress("epoch 1", 600, "examples")
        for i in range(600):
            progress.advance(1, "loss 0.5")
            context.metric("loss", 1 / (i + 1), at=i)
            time.sleep(0.1)


@step(dataset="dataset")
def ingest(context: Context, settings: Ingest, dataset: Draft) -> dict[str, Any]:
    _behave("ingest", context, dataset)
    (dataset / "words.txt").write_text(settings.dataset)
    return {"passages": 3, "headline": "3 passages"}


@step(bm25_run="run")
def bm25_retrieve(context: Context, settings: Bm25Retrieve, dataset: Path, bm25_run: Draft) -> dict[str, Any]:
    _behave("bm25_retrieve", context, bm25_run)
    (bm25_run / "run.txt").write_text((dataset / "words.txt").read_text().upper())
    return {"R@100": 0.5, "headline": "R@100 0.50"}


def compile_pipeline(target: Path, image: str = "python:3.11") -> Path:
    from kfp import compiler, dsl
    from kfp.dsl import Artifact, Dataset, Input, Output

    @dsl.component(base_image=image, install_kfp_package=False)
    def ingest(arguments: str, dataset: Output[Dataset]) -> None:
        from tiny_pipeline import ingest

        ingest(arguments, dataset=dataset.path)

    @dsl.component(base_image=image, install_kfp_package=False)
    def bm25_retrieve(arguments: str, dataset: Input[Dataset], bm25_run: Output[Artifact]) -> None:
        from tiny_pipeline import bm25_retrieve

        bm25_retrieve(arguments, dataset=dataset.path, bm25_run=bm25_run.path)

    @dsl.pipeline(name="tiny")
    def tiny(first: str, second: str) -> None:
        dataset = ingest(arguments=first).output
        bm25_retrieve(arguments=second, dataset=dataset)

    compiler.Compiler().compile(tiny, str(target))
    return target


def arguments(code_digest: str = "1", **settings: Any) -> dict[str, str]:
    first = StepArguments(settings=settings, code_digest=code_digest)
    return {"first": first.model_dump_json(), "second": StepArguments(code_digest="1").model_dump_json()}


def main(root: Path, pipeline: Path, *settings: str, docker: bool = False) -> int:
    """A launcher in a process of its own, to be interrupted and killed."""
    from rich.console import Console

    from gnn_encoder.cli.console import open_console
    from gnn_encoder.engines.containers import Containers
    from gnn_encoder.engines.local_run import run_pipeline

    with open_console(["ingest", "bm25_retrieve"], Console()) as console:
        values = dict(setting.split("=") for setting in settings)
        containers = Containers(str(root)) if docker else None
        outcome = run_pipeline(pipeline, arguments(**values), root, f"tiny-{os.getpid()}", {}, console.show, containers)
    print(outcome)
    return outcome.exit_code


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--docker"]
    raise SystemExit(main(Path(given[0]), Path(given[1]), *given[2:], docker="--docker" in sys.argv))
