"""What a run says about its end, from the events of its engine and steps."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnn_encoder.engines import local_run
from gnn_encoder.engines.local_run import Outcome, Rung

FIRST, SECOND = "try_variant: 1", "try_variant: 2"


@pytest.mark.parametrize(
    ("events", "failed", "message"),
    [
        ([(FIRST, "starting"), (FIRST, "outputs"), (SECOND, "starting"), (SECOND, "failed")], SECOND, "it is wrong"),
        ([(FIRST, "starting"), (FIRST, "lost")], FIRST, "it is wrong; the log"),
        ([(FIRST, "starting"), (FIRST, "failed"), (FIRST, "lost")], FIRST, "it is wrong"),
        ([(FIRST, "starting"), (FIRST, "outputs"), (SECOND, "starting")], SECOND, "a process ended without a word"),
        ([(FIRST, "starting")], FIRST, "a process ended without a word"),
    ],
)
def test_the_step_that_failed_is_named_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[tuple[str, str]], failed: str, message: str
) -> None:
    def supervise(
        command: object, environment: object, log: Path, path: object, show: Callable[..., None], deadline: float
    ) -> int:
        log.write_text("the last line")
        show([{"step": s, "event": e, "kind": "UserError", "message": "it is wrong"} for s, e in events])
        return 1

    monkeypatch.setattr(local_run, "supervise", supervise)
    outcome, shown = Outcome("KILLED", tmp_path / "logs" / "x.log"), []
    log: Any = SimpleNamespace(environment=dict)
    handle = local_run._Handler(outcome, log, shown.extend, (), lambda outcome, cached: None)
    local_run._execute({}, tmp_path, "x", handle, math.inf)
    assert (outcome.status, outcome.failed_step) == ("FAILED", failed)
    assert outcome.message.startswith(message)
    assert "failed" in [event["event"] for event in shown if event["step"] == failed]


def test_a_rung_has_the_outputs_so_far_under_plain_names() -> None:
    outcome, reached = Outcome("KILLED"), []
    log: Any = SimpleNamespace()
    rungs = [Rung("low", "report: low", {"report": "report: low/report"}), Rung("high", "b", {"report": "page"})]
    handle = local_run._Handler(outcome, log, lambda events: None, rungs, lambda *arguments: reached.append(arguments))
    handle([{"step": "report: low", "event": "starting"}])
    handle([{"step": "report: low", "event": "outputs", "outputs": {"report": "/low"}}])
    handle([{"step": "b", "event": "outputs", "outputs": {"page": "/high"}}])
    (low, was_cached), (high, is_cached) = reached
    assert (low.rung, low.status, low.outputs["report"], was_cached) == ("low", "FINISHED", Path("/low"), False)
    assert "page" not in low.outputs, "a copy, which the steps that follow do not change"
    assert (high.rung, high.outputs["report"], is_cached) == ("high", Path("/high"), True)
    assert (outcome.status, outcome.rung) == ("KILLED", "high")
