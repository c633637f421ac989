"""What `gnn-encoder run` shows: a live table in a terminal, plain lines elsewhere."""

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gnn_encoder.artifacts import Dataset, Report, read_manifest
from gnn_encoder.report.ablation import ablation_table
from gnn_encoder.report.table import results_table
from gnn_encoder.runs.local_run import Outcome
from gnn_encoder.runs.supervision import Event

LINE_SECONDS = 15.0
"""Without a terminal: how often the running step's progress is worth a line."""
BAR = 12
"""Characters of the progress bar."""
MARKS = {
    "waiting": ("·", "dim"),
    "running": ("▸", "bold cyan"),
    "cached": ("=", "blue"),
    "done": ("✓", "green"),
    "failed": ("✗", "bold red"),
}
"""State → its mark and colour."""


@dataclass
class Row:
    """One step, as far as the events so far tell."""

    step: str
    state: str = "waiting"
    began: float = 0.0
    ended: float = 0.0
    headline: str = ""
    progress: Event | None = None

    def seconds(self, now: float) -> float | None:
        """Seconds it ran, or has been running at `now`; None where it did not."""
        return (self.ended or now) - self.began if self.began else None


class Board:
    """The state of all steps, built up from events."""

    def __init__(self, steps: Sequence[str]) -> None:
        self.rows = {step: Row(step) for step in steps}

    def apply(self, event: Event) -> Row:
        """Take one event; the row it changed."""
        row = self.rows.setdefault(event["step"], Row(event["step"]))
        kind = event["event"]
        if kind == "starting" or (kind == "started" and not row.began):
            row.state, row.began = "running", event["time"]
        elif kind == "progress":
            row.progress = event
        elif kind in ("finished", "cached"):
            row.state = "done" if kind == "finished" else "cached"
            row.headline = str(event["metrics"].get("headline", ""))
        elif kind == "failed":
            row.state = "failed"
            row.headline = "interrupted" if event["kind"] == "KeyboardInterrupt" else event["message"]
        if kind in ("finished", "failed"):
            row.ended = event["time"]
        return row


class PlainConsole:
    """A line when a step starts, is reused, ends or fails, and now and then between."""

    def __init__(self, steps: Sequence[str], console: Console) -> None:
        self._board = Board(steps)
        self._console = console
        self._spoke = 0.0
        self._width = max(map(len, steps))

    def __enter__(self) -> "PlainConsole":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put away."""

    def show(self, events: list[Event]) -> None:
        """Print the lines that these events are worth."""
        for event in events:
            row = self._board.apply(event)
            kind = event["event"]
            if kind == "starting":
                self._line(event, "started")
            elif kind == "cached":
                self._line(event, "cached", "", row.headline)
            elif kind == "note":
                self._line(event, "note", "", event["message"])
            elif kind in ("finished", "failed"):
                self._line(event, row.state, duration(row.seconds(event["time"])), row.headline)
            elif kind == "progress" and event["time"] - self._spoke >= LINE_SECONDS:
                self._line(event, f"{100 * event['done'] // max(event['total'], 1):.0f} %", "", describe(event))

    def _line(self, event: Event, *words: str) -> None:
        self._spoke = event["time"]
        clock = time.strftime("%H:%M:%S", time.localtime(event["time"]))
        text = f"{clock}  {event['step']:<{self._width}}  {'  '.join(filter(None, words))}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveConsole:
    """The steps as a table that changes in place, with a bar in the running one."""

    def __init__(self, steps: Sequence[str], console: Console) -> None:
        self.board = Board(steps)
        self._console = console
        self._live = Live(console=console, get_renderable=lambda: self.render(time.time()), refresh_per_second=4)

    def __enter__(self) -> "LiveConsole":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, events: list[Event]) -> None:
        """Take the events; the table refreshes by itself. It appears when the run begins: a mistake in the
        settings or the data is one line on an empty screen."""
        self._live.start()
        for event in events:
            self.board.apply(event)
            if event["event"] == "note":
                self._console.print(f"{event['step']}: {event['message']}", markup=False, style="yellow")

    def render(self, now: float) -> Table:
        """The table as it stands at `now` (seconds since the epoch)."""
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, min_width=2 + max(map(len, self.board.rows)))
        table.add_column(no_wrap=True, min_width=12, justify="right")
        table.add_column(no_wrap=True, ratio=1)
        rows = list(self.board.rows.values())
        hidden = max(len(rows) - max(self._console.height - 2, 1), 0)
        if hidden:
            table.add_row(Text(f"  {hidden} more above", "dim"), "", "")
        for row in rows[hidden:]:
            mark, style = MARKS[row.state]
            table.add_row(Text(f"{mark} {row.step}", style), duration(row.seconds(now)), _figure(row))
        return table


def _figure(row: Row) -> Text:
    """The last column: a bar while it runs, then the headline."""
    if row.state != "running":
        words = ("cached", row.headline) if row.state == "cached" else (row.headline,)
        return Text("  ".join(filter(None, words)), "red" if row.state == "failed" else "")
    if row.progress is None:
        return Text("starting", "dim")
    filled = BAR * row.progress["done"] // max(row.progress["total"], 1)
    bar = (("━" * min(filled, BAR), "cyan"), ("┄" * (BAR - filled), "bright_black"))
    return Text.assemble(*bar, " ", describe(row.progress), overflow="ellipsis", no_wrap=True)


def describe(progress: Event) -> str:
    """`epoch 2: 640/1,200 examples, loss 0.31`."""
    note = f", {progress['note']}" if progress["note"] else ""
    return f"{progress['stage']}: {progress['done']:,}/{progress['total']:,} {progress['unit']}{note}"


def duration(seconds: float | None) -> str:
    """`4.2 s`, `3 min 08 s`, `2 h 05 min`."""
    if seconds is None:
        return ""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def open_console(steps: Sequence[str], console: Console) -> LiveConsole | PlainConsole:
    """The one that fits where the output goes."""
    return LiveConsole(steps, console) if console.is_terminal else PlainConsole(steps, console)


def show_ablation(screen: Console, outcome: Outcome) -> None:
    """An ablation's table, and where its page lies."""
    report = Report.read(outcome.outputs["report"])
    screen.print()
    screen.print(ablation_table(report.metrics))
    screen.print(f"\nreport     {report.page}", markup=False, highlight=False, soft_wrap=True)


def show_update(screen: Console, outcome: Outcome) -> None:
    """What an update did, and where its bundle lies."""
    bundle = outcome.outputs["bundle"]
    screen.print(f"\n{read_manifest(bundle).metrics['headline']}\nbundle     {bundle}", soft_wrap=True)


def show_results(root: Path, screen: Console, outcome: Outcome) -> None:
    """The table of all systems, the decision, and where to look on."""
    screen.print()
    screen.print(results_table(Report.read(outcome.outputs["report"]).metrics))
    data = Dataset(outcome.outputs["dataset"])
    (question,) = data.query_texts(data.query_rows("test")[:1]) or ["your question"]
    chosen = "" if root == Path("gnn-encoder-runs") else f" --root {shlex.quote(str(root))}"
    program = shlex.quote("gnn-encoder" if shutil.which("gnn-encoder") else sys.argv[0])
    lines = {
        "decision": read_manifest(outcome.outputs["decision"]).metrics.get("headline", ""),
        "report": Report.read(outcome.outputs["report"]).page,
        "bundle": outcome.outputs["bundle"],
        "log": outcome.log,
        "dashboard": f"{program} dashboard{chosen}   (in a clone: make dashboard)",
        "search": f"{program} {shlex.join(['search', question, '--bundle', str(outcome.outputs['bundle'])])}",
    }
    screen.print()
    for name, value in lines.items():
        screen.print(f"{name:<10} {value}", markup=False, highlight=False, soft_wrap=True)


def show_failure(outcome: Outcome) -> None:
    """What failed or was interrupted, on stderr, and how to go on."""
    again = "The same command goes on from here: finished steps are reused, training resumes at its last checkpoint."
    if outcome.status == "KILLED":
        typer.echo(f"\ninterrupted. {again}\nlog: {outcome.log}", err=True)
        return
    where = f"{outcome.failed_step}: " if outcome.failed_step else ""
    typer.echo(f"\nerror: {where}{outcome.message}\nlog: {outcome.log}\n{again}", err=True)
