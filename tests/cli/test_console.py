"""The screens of a run, from a recorded run's events."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command

from gnn_encoder.cli.app import app
from gnn_encoder.cli.console import JsonLines, Lines, LiveStages, duration, following
from gnn_encoder.cli.endings import _search
from gnn_encoder.engines.supervision import Event
from gnn_encoder.errors import UserError

TRAINING = ("train_dpr", "dense_retrieve", "rank: DPR")
STAGES = {**dict.fromkeys(("ingest", "bm25_retrieve"), "prepare"), **dict.fromkeys(TRAINING, "train")}


def event(step: str, kind: str, at: float, /, **facts: Any) -> Event:
    return {"step": step, "event": kind, "time": at, **facts}


def progress(at: float, done: int) -> Event:
    facts = {"stage": "epoch 1", "done": done, "total": 1200, "unit": "examples", "note": "loss 0.31"}
    return event("train_dpr", "progress", at, **facts)


RECORDED = [
    event("", "run", 100.0, stages={**STAGES, "evaluate": "decide"}, log="the log"),
    event("ingest", "cached", 100.0, outputs={"dataset": "d"}, metrics={"headline": "9 passages", "seconds": 3}),
    event("bm25_retrieve", "note", 100.5, message="cannot reuse [its] last output"),
    event("bm25_retrieve", "starting", 101.0),
    event("bm25_retrieve", "started", 103.0, pid=1),
    event("bm25_retrieve", "finished", 105.2, metrics={"headline": "R@100 0.87"}),
    event("bm25_retrieve", "outputs", 105.3, outputs={"bm25_run": "r"}),
    event("train_dpr", "starting", 106.0),
    event("train_dpr", "started", 108.0, pid=2),
    progress(110.0, 0),
    progress(115.0, 200),
    progress(122.0, 600),
    progress(170.0, 1000),
]
FAILED = event("train_dpr", "failed", 330.0, kind="UserError", message="the disk is full")
INTERRUPTED = event("train_dpr", "failed", 330.0, kind="KeyboardInterrupt", message="KeyboardInterrupt")
ENDED = [
    event("train_dpr", "finished", 330.0, metrics={"headline": "loss 0.31"}),
    event("dense_retrieve", "cached", 330.0, metrics={"headline": "dev R@100 0.9"}),
    event("rank: DPR", "starting", 331.0),
    event("rank: DPR", "finished", 332.0, metrics={}),
]


def plain(events: list[Event], verbose: bool = False) -> list[str]:
    output = io.StringIO()
    Lines(Console(file=output, width=40), verbose).show(events)
    return [line[10:] for line in output.getvalue().splitlines()]  # without the clock


def test_stages_have_a_line_each_and_one_a_minute() -> None:
    assert plain([*RECORDED, *ENDED]) == [
        "prepare  note  bm25_retrieve: cannot reuse [its] last output",
        "prepare  started  1 step",
        "prepare  done  4.2 s  9 passages",
        "train    started  3 steps",
        "train    1/3  train_dpr 83 %  epoch 1: 1,000/1,200 examples, loss 0.31  about 12 s left",
        "train    done  3 min 46 s  dev R@100 0.9",
    ], "the step in STAGES has the figure of `prepare`; that of `train` is not there, so the last one has"
    assert plain([*RECORDED, FAILED])[-1] == "train    failed  3 min 44 s  train_dpr: the disk is full"
    assert plain([*RECORDED, INTERRUPTED])[-1].endswith("train_dpr: interrupted")


def test_verbose_lines_are_of_steps() -> None:
    assert plain([*RECORDED, FAILED], verbose=True) == [
        "ingest          cached  9 passages",
        "bm25_retrieve   note  cannot reuse [its] last output",
        "bm25_retrieve   started",
        "bm25_retrieve   done  4.2 s  R@100 0.87",
        "train_dpr       started",
        "train_dpr       50 %  epoch 1: 600/1,200 examples, loss 0.31  about 12 s left",
        "train_dpr       83 %  epoch 1: 1,000/1,200 examples, loss 0.31  about 12 s left",
        "train_dpr       failed  3 min 44 s  the disk is full",
    ]


def test_a_stage_that_is_reused_is_one_line() -> None:
    again = [event(step, "cached", 100.0, metrics={"headline": f"of {step}"}) for step in STAGES]
    assert plain([RECORDED[0], *again]) == ["prepare  cached  of ingest", "train    cached  of rank: DPR"]


def test_a_recommendation_is_what_a_stage_says() -> None:
    stages = {"ingest": "prepare", "recommend: words": "prepare", "promote: words": "prepare"}
    sentence = "Recommended: BM25 (MRR@10 0.506 on 9 dev queries), the best of 2 systems; on test it has 0.5"
    figures = dict(zip(stages, ("9 passages", sentence, "keep"), strict=True))
    ends = [event(step, "cached", 1.0, metrics={"headline": words}) for step, words in figures.items()]
    lines = plain([event("", "run", 0.0, stages=stages, log=""), *ends])
    assert lines == ["prepare  cached  BM25 (MRR@10 0.506 on 9 dev queries), the best of 2 systems"]


def live(events: list[Event], now: float, width: int = 80) -> list[str]:
    """What is shown at `now`: the lines that stay, then those that change in place."""
    output = io.StringIO()
    screen = LiveStages(Console(file=output, width=width, force_terminal=True, color_system=None))
    for one in events:  # without `Live`, whose control codes this test does not read
        for news in screen.stages.take(one):
            screen.say(news)
    screen._console.print(screen.render(now))
    return [" | ".join(re.split(r"\s{2,}", line.strip())) for line in output.getvalue().splitlines()]


@pytest.mark.parametrize("show", [plain, lambda events: live(events, now=999.0)])
def test_a_message_cannot_control_the_terminal(show: Callable[[list[Event]], list[str]]) -> None:
    failed = event("train_dpr", "failed", 330.0, kind="UserError", message="no \x1b[2Jfile\n\x9b31m here")
    lines = "\n".join(show([*RECORDED, failed]))
    assert "no [2Jfile 31m here" in lines and not {"\x1b", "\x9b"} & set(lines)


def test_a_terminal_shows_the_running_stage_its_step_and_the_time_left() -> None:
    lines = live(RECORDED, now=175.0)
    assert lines == [
        "bm25_retrieve: cannot reuse [its] last output",
        "✓ prepare | 4.2 s | 9 passages",
        "▸ train | 1 min 09 s | 1/3 | train_dpr | about 7 s left",
        "━━━━━━━━━━ | epoch 1: 1,000/1,200 examples, loss 0.31",
        "· decide",
    ]
    assert max(map(len, live(RECORDED, now=175.0, width=40))) <= 40
    assert live(RECORDED[:8], now=106.5)[-2] == "▸ train | 0.5 s | 1/3 | train_dpr", "before it has imported anything"
    assert live([*RECORDED, *ENDED], now=999.0)[-2:] == ["✓ train | 3 min 46 s | dev R@100 0.9", "· decide"]
    assert live([*RECORDED, FAILED], now=999.0)[-2] == "✗ train | 3 min 44 s | train_dpr: the disk is full"


def test_the_time_left_is_by_the_rate_and_then_by_the_plan() -> None:
    def left(*events: Event) -> float | None:
        screen = Lines(Console(file=io.StringIO()))
        screen.stages.planned = {"train_dpr": 100.0, "rank: DPR": 30.0, "evaluate": 7.0}
        screen.show([*RECORDED[:9], *events])
        seconds: float | None = screen.stages.stages["train"].progress["seconds_left"]
        return seconds

    assert left(progress(116.0, 0)) == 100.0 - 10.0 + 30.0, "without a rate by the plan; other stages do not count"
    assert left(progress(110.0, 100), progress(120.0, 200)) == 1000 / 10.0 + 30.0
    assert left(progress(110.0, 100), progress(120.0, 1200)) == 30.0
    assert RECORDED[0]["stages"]["dense_retrieve"] == "train", "control: a step that no plan knows adds nothing"


def test_a_mistake_before_the_first_step_leaves_the_screen_empty(capsys: pytest.CaptureFixture[str]) -> None:
    output = io.StringIO()
    with pytest.raises(UserError), following():
        raise UserError("no preset of that name")
    LiveStages(Console(file=output, force_terminal=True)).close()
    assert output.getvalue() == "" == capsys.readouterr().out


def test_events_for_programs_are_those_of_the_documentation() -> None:
    output = io.StringIO()
    screen = JsonLines(output)
    screen.plan("machine", "2 cores")
    screen.show([*RECORDED, FAILED, *ENDED])
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text(encoding="utf-8")
    rows = {row.split("`")[1]: row for row in page.splitlines() if row.startswith("| `")}
    for news in lines:
        for key in news.keys() - {"event", "time"}:
            assert f"`{key}`" in rows[news["event"]], f"{key} of {news['event']}"
    assert rows.keys() - {news["event"] for news in lines} == {"table", "recommendation", "paths", "error"}
    assert "`seconds_left`" not in rows["step_done"], "control"
    first, *_, last = [news for news in lines if news["event"] == "progress"]
    assert first["seconds_left"] is None and last["seconds_left"] == pytest.approx(12.0)
    assert (last["steps_done"], last["steps"], last["part"]) == (0, 3, "epoch 1")


@pytest.mark.parametrize("question", ["what is it", "-1 degrees, is it ice", "--bundle", "it's"])
def test_the_search_that_a_run_prints_asks_the_question(question: str) -> None:
    name, *words = _search(question, "a folder/bundle")
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, words) as context:
        assert (context.params["question"], context.params["bundle"]) == (question, "a folder/bundle")


def test_durations() -> None:
    assert [duration(s) for s in (None, 4.24, 59.97, 188, 7500)] == [
        "",
        "4.2 s",
        "1 min 00 s",
        "3 min 08 s",
        "2 h 05 min",
    ]
    assert [duration(s, whole=True) for s in (4.24, 59.6)] == ["4 s", "1 min 00 s"]
