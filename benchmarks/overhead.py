"""The overhead of a step: the update pipeline's steps as `gnn-encoder update` runs them.

Measured from the run's events: `starting` (the engine begins the step), `started` (the step's process runs and has
imported the package), `finished`. The peer is kfp.local with components that do nothing.

    python benchmarks/overhead.py
"""

import io
import os
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

from common import documentation, show
from update import run_steps, write_models

from gnn_encoder.artifacts.finished_run import BUNDLE, graph_bundle
from gnn_encoder.engines import pipelines
from gnn_encoder.engines.supervision import Event


def empty_component_seconds(folder: Path, steps: int = 5) -> float:
    """Seconds per step of kfp.local's subprocess runner with a component that does nothing."""
    from kfp import dsl, local

    @dsl.component(base_image="python:3.11", install_kfp_package=False)  # type: ignore[untyped-decorator]
    def nothing(number: int) -> int:
        return number

    @dsl.pipeline  # type: ignore[untyped-decorator]
    def chain() -> None:
        last = nothing(number=0)
        for _ in range(steps - 1):
            last = nothing(number=last.output)

    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(folder / "kfp"))
    began = time.perf_counter()
    with redirect_stdout(io.StringIO()):
        chain()
    return (time.perf_counter() - began) / steps


class Listener:
    """Keeps the first event of each kind of each step."""

    def __init__(self) -> None:
        self.times: dict[tuple[str, str], float] = {}

    def show(self, events: list[Event]) -> None:
        """Record the time of each event."""
        for event in events:
            self.times.setdefault((event["step"], event["event"]), event["time"])


def main() -> None:
    """Run and print the table."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, models, since = documentation(folder, 200), write_models(folder / "since"), folder / "since"
        run_steps(data, models, since, "auto")
        (since / "dataset").symlink_to(data)
        (since / BUNDLE).symlink_to(graph_bundle(since))
        listener = Listener()
        outcome = pipelines.update(since, None, [], folder / "root", listener.show)
        assert outcome.status == "FINISHED", outcome.message
        empty = empty_component_seconds(folder)
    t = listener.times
    titles = [title for title, kind in t if kind == "starting"]
    rows = []
    for title, after in zip(titles, (*titles[1:], ""), strict=True):
        begin, work, end = (t[title, event] for event in ("starting", "started", "finished"))
        closing = f"{t[after, 'starting'] - end:.2f}" if after else ""
        rows.append((title, f"{work - begin:.2f}", f"{end - work:.2f}", closing))
    rows.append(("an empty component of kfp.local", f"{empty:.2f}", "", ""))
    headings = ("step", "process and imports, s", "step, s", "until the next step, s")
    show("An update of 200 unchanged passages", headings, rows)


if __name__ == "__main__":
    main()
