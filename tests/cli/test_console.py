"""The console, from a recorded run's events."""

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from gnn_encoder.cli.console import LiveConsole, PlainConsole, duration, open_console
from gnn_encoder.engines.supervision import Event
from gnn_encoder.errors import UserError

STEPS = ("ingest", "bm25_retrieve", "train_dpr", "dense_retrieve")


def event(step: str, kind: str, at: float, /, **facts: Any) -> Event:
    return {"step": step, "event": kind, "time": at, **facts}


def progress(at: float, done: int) -> Event:
    facts = {"stage": "epoch 1", "done": done, "total": 1200, "unit": "examples", "note": "loss 0.31"}
    return event("train_dpr", "progress", at, **facts)


RECORDED = [
    event("ingest", "cached", 100.0, outputs={"dataset": "d"}, metrics={"headline": "9 passages", "seconds": 3}),
    event("bm25_retrieve", "note", 100.5, message="cannot reuse [its] last output"),
    event("bm25_retrieve", "starting", 101.0),
    event("bm25_retrieve", "started", 103.0, pid=1),
    event("bm25_retrieve", "finished", 105.2, metrics={"headline": "R@100 0.87"}),
    event("bm25_retrieve", "outputs", 105.3, outputs={"bm25_run": "r"}),
    event("train_dpr", "starting", 106.0),
    event("train_dpr", "started", 108.0, pid=2),
    progress(110.0, 10),
    progress(115.0, 200),
    progress(122.0, 600),
]
FAILED = event("train_dpr", "failed", 330.0, kind="UserError", message="the disk is full")


def plain(events: list[Event]) -> list[str]:
    output = io.StringIO()
    with open_console(STEPS, Console(file=output, width=40)) as console:
        assert isinstance(console, PlainConsole)
        console.show(events)
    return [line[10:] for line in output.getvalue().splitlines()]  # without the clock


def test_plain_lines() -> None:
    assert plain([*RECORDED, FAILED]) == [
        "ingest          cached  9 passages",
        "bm25_retrieve   note  cannot reuse [its] last output",
        "bm25_retrieve   started",
        "bm25_retrieve   done  4.2 s  R@100 0.87",
        "train_dpr       started",
        "train_dpr       50 %  epoch 1: 600/1,200 examples, loss 0.31",
        "train_dpr       failed  3 min 44 s  the disk is full",
    ]


def live(events: list[Event], now: float, width: int = 80) -> list[str]:
    output = io.StringIO()
    screen = Console(file=output, width=width, force_terminal=True, color_system=None)
    console = open_console(STEPS, screen)
    assert isinstance(console, LiveConsole)
    with console:
        console.show(events)
    output.truncate(0)
    output.seek(0)
    screen.print(console.render(now))
    return [" | ".join(re.split(r"\s{2,}", line.rstrip())) for line in output.getvalue().splitlines()]


@pytest.mark.parametrize("show", [plain, lambda events: live(events, now=999.0)])
def test_a_message_cannot_control_the_terminal(show: Callable[[list[Event]], list[str]]) -> None:
    failed = event("train_dpr", "failed", 330.0, kind="UserError", message="no \x1b[2Jfile\n\x9b31m here")
    lines = "\n".join(show([*RECORDED, failed]))
    assert "no [2Jfile 31m here" in lines and not {"\x1b", "\x9b"} & set(lines)


def test_table_shows_state_time_bar_and_headline_of_every_step() -> None:
    lines = live(RECORDED, now=170.0)
    assert lines[0] == "= ingest | cached | 9 passages"
    assert lines[1] == "✓ bm25_retrieve | 4.2 s | R@100 0.87"
    assert lines[2] == "▸ train_dpr | 1 min 04 s | ━━━━━━┄┄┄┄┄┄ epoch 1: 600/1,200 examples, loss …"
    assert lines[3] == "· dense_retrieve"
    assert len(lines) == len(STEPS)


def test_table_shows_what_stopped_the_run_in_one_line() -> None:
    lines = live([*RECORDED, FAILED], now=999.0)
    assert lines[2] == "✗ train_dpr | 3 min 44 s | the disk is full"
    interrupted = event("train_dpr", "failed", 330.0, kind="KeyboardInterrupt", message="KeyboardInterrupt")
    assert live([*RECORDED, interrupted], now=999.0)[2].endswith("interrupted")
    assert len(live([*RECORDED, FAILED], now=999.0, width=30)) == len(STEPS)


def test_a_step_is_seen_before_it_has_imported_anything() -> None:
    (line,) = (line for line in live(RECORDED[:3], now=101.5) if "bm25" in line)
    assert line == "▸ bm25_retrieve | 0.5 s | starting"


def test_live_screen_ends_with_the_final_state() -> None:
    output = io.StringIO()
    with LiveConsole(STEPS, Console(file=output, width=80, force_terminal=True, color_system=None)) as console:
        console.show(RECORDED)
    assert "cannot reuse [its] last output" in output.getvalue()
    assert "✓ bm25_retrieve" in output.getvalue()


def test_a_mistake_before_the_first_step_leaves_the_screen_empty() -> None:
    output = io.StringIO()
    with (
        pytest.raises(UserError),
        open_console(STEPS, Console(file=output, force_terminal=True, color_system=None)) as console,
    ):
        assert isinstance(console, LiveConsole)
        raise UserError("no preset of that name")
    assert output.getvalue() == ""


def test_more_rows_than_the_screen_has_lines() -> None:
    screen = Console(file=io.StringIO(), width=80, height=12, force_terminal=True, color_system=None)
    console = LiveConsole(STEPS, screen)
    for number in range(30):
        console.apply(event(f"try_variant: {number}", "starting", 1.0))
    screen.print(console.render(2.0))
    lines = screen.file.getvalue().splitlines()
    assert len(lines) == 11 and "24 more above" in lines[0] and "try_variant: 29" in lines[-1]


def test_durations() -> None:
    assert [duration(s) for s in (None, 4.24, 59.97, 188, 7500)] == [
        "",
        "4.2 s",
        "1 min 00 s",
        "3 min 08 s",
        "2 h 05 min",
    ]
