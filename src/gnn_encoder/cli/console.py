"""Output of `gnn-encoder run`: a live table in a terminal, otherwise plain lines; then the end of the run."""

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gnn_encoder.artifacts import Bundle, Dataset, Report, read_manifest
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.engines.supervision import Event, Show
from gnn_encoder.errors import CONTROL, printable
from gnn_encoder.report.table import run_tables

LINE_SECONDS = 15.0
"""Seconds between two progress lines of the running step, without a terminal."""
BAR = 12
"""Width of the progress bar in characters."""
MARKS = {
    "waiting": ("·", "dim"),
    "running": ("▸", "bold cyan"),
    "cached": ("=", "blue"),
    "done": ("✓", "green"),
    "failed": ("✗", "bold red"),
}
"""State → mark and colour."""


@dataclass
class Row:
    """The state of one step after the events so far."""

    step: str
    state: str = "waiting"
    began: float = 0.0
    ended: float = 0.0
    headline: str = ""
    progress: Event | None = None

    def duration(self, now: float) -> str:
        """Returns how long the step has run at `now`, or ran in all; empty before its start."""
        return duration((self.ended or now) - self.began if self.began else None)


class PlainConsole:
    """Prints a line when a step starts, is reused, ends or fails, and progress lines at intervals."""

    def __init__(self, steps: Sequence[str], console: Console) -> None:
        self.rows, self._console = {step: Row(step) for step in steps}, console
        self._last_line = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: printed lines stay."""

    def apply(self, event: Event) -> tuple[str, ...]:
        """Changes the row of the event's step; returns the words of the event's line, none if it has no line."""
        row, kind, now = self.rows.setdefault(event["step"], Row(event["step"])), event["event"], event["time"]
        if kind == "starting" or (kind == "started" and not row.began):
            row.state, row.began = "running", now
            return ("started",) if kind == "starting" else ()
        if kind == "progress":
            row.progress = event
            return f"{100 * event['done'] // max(event['total'], 1):.0f} %", describe(event)
        if kind == "note":
            return "note", printable(event["message"])
        if kind == "failed":
            row.state = "failed"
            row.headline = "interrupted" if event["kind"] == "KeyboardInterrupt" else printable(event["message"])
        elif kind in ("finished", "cached"):
            row.state = "done" if kind == "finished" else "cached"
            row.headline = printable(str(event["metrics"].get("headline", "")))
        else:
            return ()
        row.ended = now
        return row.state, row.duration(now), row.headline

    def show(self, events: list[Event]) -> None:
        """Prints the lines for these events."""
        for event in events:
            words = self.apply(event)
            if words and (event["event"] != "progress" or event["time"] - self._last_line >= LINE_SECONDS):
                self._line(event, *words)

    def print(self, *content: RenderableType) -> None:
        """Prints something that stays."""
        self._console.print(*content, sep="\n", highlight=False)

    def _line(self, event: Event, *words: str) -> None:
        self._last_line = event["time"]
        clock, width = time.strftime("%H:%M:%S", time.localtime(event["time"])), max(map(len, self.rows))
        text = f"{clock}  {event['step']:<{width}}  {'  '.join(filter(None, words))}"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveConsole(PlainConsole):
    """Shows the steps as a table that changes in place, with a progress bar for the running step."""

    def __init__(self, steps: Sequence[str], console: Console) -> None:
        super().__init__(steps, console)
        self._live = Live(console=console, get_renderable=lambda: self.render(time.time()), refresh_per_second=4)

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, events: list[Event]) -> None:
        """Applies the events; the table refreshes by itself.

        The table appears when the run begins, so that an error in the settings or the data is one line without a table.
        """
        self._live.start()
        for event in events:
            self.apply(event)
            if event["event"] == "note":
                self._console.print(f"{event['step']}: {printable(event['message'])}", markup=False, style="yellow")

    def render(self, now: float) -> Table:
        """Returns the table at `now` (seconds since the epoch)."""
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, min_width=2 + max(map(len, self.rows)))
        table.add_column(no_wrap=True, min_width=12, justify="right")
        table.add_column(no_wrap=True, ratio=1)
        rows = list(self.rows.values())
        hidden = max(len(rows) - max(self._console.height - 2, 1), 0)
        if hidden:
            table.add_row(Text(f"  {hidden} more above", "dim"), "", "")
        for row in rows[hidden:]:
            mark, style = MARKS[row.state]
            table.add_row(Text(f"{mark} {row.step}", style), row.duration(now), _last_column(row))
        return table


def _last_column(row: Row) -> Text:
    """Returns a progress bar while the step runs, then the step's headline."""
    if row.state != "running":
        words = ("cached", row.headline) if row.state == "cached" else (row.headline,)
        return Text("  ".join(filter(None, words)), "red" if row.state == "failed" else "")
    if row.progress is None:
        return Text("starting", "dim")
    filled = min(BAR * row.progress["done"] // max(row.progress["total"], 1), BAR)
    bar = (("━" * filled, "cyan"), ("┄" * (BAR - filled), "bright_black"))
    return Text.assemble(*bar, " ", describe(row.progress), overflow="ellipsis", no_wrap=True)


def describe(progress: Event) -> str:
    """Returns a text such as `epoch 2: 640/1,200 examples, loss 0.31`."""
    note = f", {progress['note']}" if progress["note"] else ""
    return f"{progress['stage']}: {progress['done']:,}/{progress['total']:,} {progress['unit']}{note}"


def duration(seconds: float | None) -> str:
    """Returns `4.2 s`, `3 min 08 s` or `2 h 05 min`; empty for None."""
    if seconds is None:
        return ""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def open_console(steps: Sequence[str], console: Console) -> PlainConsole:
    """Returns a live table in a terminal, otherwise plain lines."""
    return (LiveConsole if console.is_terminal else PlainConsole)(steps, console)


def follow(steps: Sequence[str], job: Callable[[Show], Outcome]) -> Outcome:
    """Runs a job and shows its steps. If the job fails, shows the cause and exits with the job's code."""
    with open_console(steps, Console()) as console:
        outcome = job(console.show)
    if outcome.status != "FINISHED":
        show_failure(outcome)
        raise typer.Exit(outcome.exit_code)
    return outcome


def show_table(tables: Callable[[dict[str, Any]], RenderableType], outcome: Outcome, output: str = "report") -> None:
    """Shows the tables of a report's figures, and the path of its page. `output` names the report among the outputs."""
    report = Report.read(outcome.outputs[output])
    screen = Console()
    screen.print()
    screen.print(tables(report.metrics))
    screen.print(f"\nreport     {report.page}", markup=False, highlight=False, soft_wrap=True)
    if bundle := outcome.outputs.get("bundle"):
        command = f"gnn-encoder search --rerank --bundle {shlex.quote(str(bundle))} QUESTION"
        screen.print(f"bundle     {bundle}\nsearch     {command}", markup=False, highlight=False, soft_wrap=True)


def show_update(outcome: Outcome, former: Path) -> None:
    """Shows the result of an update, the path of its bundle, and how to compare it with the earlier bundle."""
    bundle = outcome.outputs["bundle"]
    screen, words = Console(), ["evaluate", "--bundle", str(former), "--bundle", str(bundle)]
    words += ["--dataset", str(outcome.outputs["dataset"])]
    system, headline = Bundle.read(bundle).serving.system, read_manifest(bundle).metrics["headline"]
    screen.print(f"\n{headline}\nbundle     {bundle}\nsystem     {system}", soft_wrap=True)
    screen.print(f"forgotten or gained: gnn-encoder {shlex.join(words)}", markup=False, highlight=False, soft_wrap=True)


def show_results(root: Path, outcome: Outcome, table: bool = True) -> None:
    """Shows the table of all systems, the decision, and the paths of the run's results."""
    screen, report, data = Console(), Report.read(outcome.outputs["report"]), Dataset(outcome.outputs["dataset"])
    if table:
        screen.print()
        screen.print(run_tables(report.metrics))
    (question,) = data.query_texts(data.query_rows("test")[:1]) or ["your question"]
    chosen = "" if root == Path("gnn-encoder-runs") else f" --root {shlex.quote(str(root))}"
    program = shlex.quote("gnn-encoder" if shutil.which("gnn-encoder") else sys.argv[0])
    advice = report.metrics.get("recommendation")
    lines = {
        **({"recommends": advice["sentence"].partition(": ")[2]} if advice else {}),
        "decision": read_manifest(outcome.outputs["decision"]).metrics.get("headline", ""),
        "report": report.page,
        "bundle": outcome.outputs["bundle"],
        "log": outcome.log,
        "dashboard": f"{program} dashboard{chosen}   (in a clone: make dashboard)",
        "search": f"{program} {shlex.join(['search', question, '--bundle', str(outcome.outputs['bundle'])])}",
    }
    screen.print()
    for name, value in lines.items():
        screen.print(f"{name:<10} {value}", markup=False, highlight=False, soft_wrap=True)


def follow_climb(
    steps: Sequence[str], began: float, climb: Callable[[Show, Callable[[Outcome], None]], Outcome]
) -> tuple[Outcome, bool]:
    """As `follow`, with the table of each rung above the steps that go on, and whether the last one's was shown.

    `began`: when the run did.
    """
    shown = ""

    def show_rung(outcome: Outcome) -> None:
        nonlocal shown
        shown = outcome.rung
        report = Report.read(outcome.outputs["report"])
        advice = report.metrics["recommendation"]["sentence"].partition(": ")[2]
        title = f"\n{outcome.rung}, after {duration(time.time() - began)}"
        console.print(Text(title, "bold"), run_tables(report.metrics), Text(f"recommends {advice}\n"))

    with open_console(steps, Console()) as console:
        outcome = climb(console.show, show_rung)
    if outcome.status != "FINISHED":
        show_failure(outcome)
        raise typer.Exit(outcome.exit_code)
    return outcome, shown == outcome.rung


def show_climb(root: Path, outcome: Outcome, is_shown: bool, missing: str) -> None:
    """Shows the end of a climb as `show_results`, and what more time would try: the rungs that are `missing`."""
    show_results(root, outcome, table=not is_shown)
    figures = Report.read(outcome.outputs["report"]).metrics
    split, chosen = figures["headline_split"], (figures["recommendation"] or {}).get("system", "")
    shown = figures["detectable"].get(split, {}).get(chosen)
    seen = f"; the {split} queries show gains from {min(shown.values()):.3f}" if shown else ""
    line = missing or "a preset that trains longer, or a larger encoder (--encoder)"
    if outcome.is_late:
        line = f"the time was up during {outcome.failed_step or 'the next step'}: the same command goes on from there"
    Console().print(f"more time  {line}{seen}", markup=False, highlight=False, soft_wrap=True)


def show_failure(outcome: Outcome) -> None:
    """Prints to stderr what failed or was interrupted, without control characters, and how to continue."""
    again = "The same command goes on from here: finished steps are reused, training resumes at its last checkpoint."
    where = f"{outcome.failed_step}: " if outcome.failed_step else ""
    text = f"error: {where}{outcome.message}\nlog: {outcome.log}\n{again}"
    if outcome.status == "KILLED":
        text = f"interrupted. {again}\nlog: {outcome.log}"
    if outcome.rung:
        text += f"\nThe rung {outcome.rung} was reached; latest/ has the highest one."
    typer.echo("\n" + "\n".join(line.translate(CONTROL) for line in text.split("\n")), err=True)
