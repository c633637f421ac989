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
from gnn_encoder.engines.local import Call
from gnn_encoder.engines.step import step
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.settings.foundation import Bm25Retrieve, Ingest
from gnn_encoder.tracking.context import Context
from gnn_encoder.tracking.mlflow_runs import SHORT_SECONDS


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
    time.sleep(SHORT_SECONDS)  # a shorter step has no run in MLflow
    (bm25_run / "run.txt").write_text((dataset / "words.txt").read_text().upper())
    return {"R@100": 0.5, "headline": "R@100 0.50"}


def calls(code_digest: str = "1", **settings: Any) -> list[Call]:
    first = StepArguments(settings=settings, code_digest=code_digest)
    second = StepArguments(code_digest="1")
    return [
        Call("tiny_pipeline:ingest", "ingest", first.model_dump_json(), {}, ("dataset",)),
        Call(
            "tiny_pipeline:bm25_retrieve",
            "bm25_retrieve",
            second.model_dump_json(),
            {"dataset": [("ingest", "dataset")]},
            ("bm25_run",),
        ),
    ]


def main(root: Path, *settings: str, docker: bool = False) -> int:
    """A launcher in a process of its own, to be interrupted and killed."""
    from gnn_encoder.cli.console import following
    from gnn_encoder.engines.containers import Containers
    from gnn_encoder.engines.local_run import run_calls

    with following(verbose=True) as screen:
        values = dict(setting.split("=") for setting in settings)
        containers = Containers(str(root), image="gnn-encoder-python-tiny:1") if docker else None
        outcome = run_calls(calls(**values), root, f"tiny-{os.getpid()}", {}, screen.show, containers)
    print(outcome)
    return outcome.exit_code


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--docker"]
    raise SystemExit(main(Path(arguments[0]), *arguments[1:], docker="--docker" in sys.argv))
