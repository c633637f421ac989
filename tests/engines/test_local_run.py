"""What a run says about its end, from the events of its engine and steps."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gnn_encoder.engines import local_run
from gnn_encoder.engines.local_run import Outcome

FIRST, SECOND = "try_variant: 1", "try_variant: 2"


@pytest.mark.parametrize(
    ("events", "failed", "message"),
    [
        (
            [(FIRST, "starting"), (FIRST, "outputs"), (SECOND, "starting"), (SECOND, "failed")],
            SECOND,
            "it is wrong",
        ),
        ([(FIRST, "starting"), (FIRST, "lost")], FIRST, "it is wrong; the log"),
        ([(FIRST, "starting"), (FIRST, "failed"), (FIRST, "lost")], FIRST, "it is wrong"),
        ([(FIRST, "starting"), (FIRST, "outputs"), (SECOND, "starting")], SECOND, "a process ended without a word"),
        ([(FIRST, "starting")], FIRST, "a process ended without a word"),
    ],
)
def test_the_step_that_failed_is_named_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[tuple[str, str]], failed: str, message: str
) -> None:
    def supervise(command: object, environment: object, log: Path, path: object, show: Callable[..., None]) -> int:
        log.write_text("the last line")
        show([{"step": s, "event": e, "kind": "UserError", "message": "it is wrong"} for s, e in events])
        return 1

    monkeypatch.setattr(local_run, "supervise", supervise)
    outcome, shown = Outcome("KILLED", tmp_path / "logs" / "x.log"), []
    local_run._execute({}, tmp_path, "x", SimpleNamespace(environment=dict), outcome, shown.extend)
    assert (outcome.status, outcome.failed_step) == ("FAILED", failed)
    assert outcome.message.startswith(message)
    assert "failed" in [event["event"] for event in shown if event["step"] == failed]
