"""Output of a run: stages that change in place in a terminal, otherwise lines; events for programs."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gnn_encoder.artifacts import Report
from gnn_encoder.cli.endings import figure_of
from gnn_encoder.cli.stages import News, Stages
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.engines.supervision import Event, Show
from gnn_encoder.errors import CONTROL, UserError
from gnn_encoder.report.table import distinct, recommended, run_table

STEP_SECONDS, STAGE_SECONDS = 15.0, 60.0
"""Seconds between two progress lines of a step with --verbose, and of a stage, without a terminal."""
BAR = 12
"""Width of the progress bar in characters."""


class Lines:
    """Prints a line when a stage starts and ends, and one a minute; `verbose`: when a step does, and more often."""

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self.stages, self._console, self._verbose, self._printed = Stages(), console, verbose, 0.0
        self._rung: str | None = None
        """The last rung with a table."""
        self._remarks = set[str]()
        """On the data, below the tables so far."""

    def show(self, events: list[Event]) -> None:
        """Prints what there is to say about these events."""
        for event in events:
            for news in self.stages.take(event):
                self.say(news)

    def say(self, news: News) -> None:
        """Prints the line of some news, if they have one."""
        seconds = STEP_SECONDS if self._verbose else STAGE_SECONDS
        words = (_of_step if self._verbose else _of_stage)(news)
        if words and (news["event"] != "progress" or news["time"] - self._printed >= seconds):
            self._printed = news["time"]
            clock, key = time.strftime("%H:%M:%S", time.localtime(news["time"])), "step" if self._verbose else "stage"
            width = max(map(len, self.stages.titles if self._verbose else self.stages.stages))
            self._line(f"{clock}  {news[key]:<{width}}  {'  '.join(filter(None, words))}")

    def plan(self, name: str, text: str, aside: bool = False) -> None:
        """Prints a line about what the run will do; `aside`: on stderr."""
        typer.echo(f"{name:<10} {text}", err=aside)

    def table(self, outcome: Outcome, seconds: float) -> None:
        """Prints the table of a rung that was reached after some seconds."""
        self._rung = outcome.rung
        title = f"\n{outcome.rung}, after {duration(seconds)}"
        self._print(Text(title, "bold"), self._with_new_remarks(Report.read(outcome.outputs["report"]).metrics), "")

    def end(self, metrics: dict[str, Any], outcome: Outcome, lines: dict[str, str]) -> None:
        """Prints the end of a run, with the table of all systems if that was not printed."""
        if outcome.rung != self._rung:
            self._print("", self._with_new_remarks(metrics))
        self._print("")
        for name, text in lines.items():
            self._line(f"{name:<10} {text}")

    def fail(self, message: str, outcome: Outcome | None = None, exit_code: int = 1) -> None:
        """Prints why a run failed. An error without an outcome is printed by `main`; `exit_code`: of the command."""
        if outcome:
            show_failure(outcome)

    def close(self) -> None:
        """Leaves what was printed."""

    def _with_new_remarks(self, metrics: dict[str, Any]) -> RenderableType:
        """The table of a rung, with the remarks that no rung below had."""
        new = [remark for remark in metrics.get("remarks", ()) if remark not in self._remarks]
        self._remarks.update(new)
        return run_table({**metrics, "remarks": new})

    def _print(self, *content: RenderableType) -> None:
        self._console.print(*content, sep="\n", highlight=False)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _of_step(news: News) -> tuple[str, ...]:
    match news["event"]:
        case "step_started":
            return ("started",)
        case "progress":
            return _percent(news), describe(news), _left(news, news["time"])
        case "note":
            return "note", news["message"]
        case "step_failed":
            return "failed", duration(news["seconds"]), news["message"]
        case "step_done":
            return ("cached", news["headline"]) if news["cached"] else _done(news)
    return ()


def _of_stage(news: News) -> tuple[str, ...]:
    match news["event"]:
        case "stage_started":
            return "started", f"{news['steps']} step{'s' * (news['steps'] > 1)}"
        case "progress":
            step = f"{news['step']} {_percent(news)}"
            return f"{news['steps_done'] + 1}/{news['steps']}", step, describe(news), _left(news, news["time"])
        case "note":
            return "note", f"{news['step']}: {news['message']}"
        case "step_failed":
            return "failed", duration(news["stage_seconds"]), f"{news['step']}: {news['message']}"
        case "stage_done":
            return ("cached", news["headline"]) if news["cached"] else _done(news)
    return ()


def _done(news: News) -> tuple[str, ...]:
    return "done", duration(news["seconds"]), news["headline"]


def _percent(news: News) -> str:
    return f"{100 * news['done'] // max(news['total'], 1):.0f} %"


class LiveStages(Lines):
    """Shows the running stage and those that wait in place, below a line for each stage that has ended."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(
            console=console, get_renderable=lambda: self.render(time.time()), refresh_per_second=4, transient=True
        )

    def show(self, events: list[Event]) -> None:
        """Shows the events.

        The stages appear when the run begins, so that an error in the settings or the data is one line alone.
        """
        self._live.start()
        super().show(events)

    def say(self, news: News) -> None:
        """Prints a line that stays when a stage ends, and notes."""
        words, mark, style = _of_stage(news), "", ""
        match news["event"]:
            case "note":
                self._print(Text(words[1], "yellow"))
            case "stage_done":
                mark, style = ("=", "blue") if news["cached"] else ("✓", "green")
            case "step_failed":
                mark, style = "✗", "bold red"
        if mark:
            table = self._grid()
            table.add_row(Text(f"{mark} {news['stage']}", style), *map(Text, words[-2:]))
            self._print(table)

    def close(self) -> None:
        """Removes the stages that have not ended."""
        self._live.stop()

    def _grid(self) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, min_width=2 + max(map(len, self.stages.stages), default=0))
        table.add_column(no_wrap=True, min_width=10, justify="right")
        table.add_column(ratio=1)
        return table

    def render(self, now: float) -> Table:
        """Returns the stages that have not ended at `now` (seconds since the epoch)."""
        table = self._grid()
        for stage in self.stages.stages.values():
            if not stage.waiting or stage.has_failed:
                continue
            if not stage.began:
                table.add_row(Text(f"· {stage.name}", "dim"), "", "")
                continue
            ended, row = len(stage.headlines), Table.grid(padding=(0, 1), expand=True)
            row.add_column(width=BAR)
            row.add_column(ratio=1, no_wrap=True)
            bar = _bar(ended, ended + len(stage.waiting))
            news, count = stage.progress, f"{ended + 1}/{ended + len(stage.waiting)}"
            words = "  ".join(filter(None, (count, stage.running, _left(news, now))))
            row.add_row(bar, Text(words, overflow="ellipsis"))
            if news:
                row.add_row(_bar(news["done"], news["total"]), Text(describe(news), overflow="ellipsis"))
            table.add_row(Text(f"▸ {stage.name}", "bold cyan"), duration(now - stage.began), row)
        return table


def _bar(done: float, total: float) -> ProgressBar:
    return ProgressBar(max(total, 1), done, BAR, style="bright_black", complete_style="cyan", finished_style="cyan")


class JsonLines(Lines):
    """Prints each piece of news as a line of JSON, and nothing else (docs/events.md)."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(Console(file=stream))
        self._stream = stream

    def say(self, news: News) -> None:
        """Prints some news."""
        self._stream.write(f"{json.dumps(news, default=str)}\n")
        self._stream.flush()

    def plan(self, name: str, text: str, aside: bool = False) -> None:
        """Prints a line about what the run will do."""
        self._new("plan", name=name, text=text)

    def table(self, outcome: Outcome, seconds: float) -> None:
        """Prints all figures of a rung."""
        self._rung = outcome.rung
        self._table(Report.read(outcome.outputs["report"]).metrics, rung=outcome.rung, seconds=seconds)

    def end(self, metrics: dict[str, Any], outcome: Outcome, lines: dict[str, str]) -> None:
        """Prints what the run recommends, and where its results are."""
        if outcome.rung != self._rung:
            self._table(metrics, **({"rung": outcome.rung} if outcome.rung else {}))
        if advice := metrics.get("recommendation"):
            facts = {name: advice[name] for name in ("system", "measure", "sentence")}
            self._new("recommendation", **facts, **figure_of(metrics))
        self._new("paths", **{name: text for name, text in lines.items() if name != "use"})

    def fail(self, message: str, outcome: Outcome | None = None, exit_code: int = 1) -> None:
        """Prints why a run failed, for people also on stderr."""
        step, log = (outcome.failed_step, str(outcome.log)) if outcome else ("", "")
        code = outcome.exit_code if outcome else exit_code
        self._new("error", step=step, message=message, log=log, exit_code=code)
        super().fail(message, outcome)

    def _table(self, metrics: dict[str, Any], **of_rung: Any) -> None:
        split = metrics["headline_split"]
        facts = {"split": split, "queries": metrics["queries"][split], "measures": metrics["measures"]}
        systems = [
            {"system": system, "equal": equal, "figures": metrics["results"][split][system]}
            for system, equal in distinct(metrics).items()
        ]
        self._new("table", **of_rung, **facts, recommended=recommended(metrics), systems=systems)

    def _new(self, event: str, **facts: Any) -> None:
        self.say({"event": event, "time": time.time(), **facts})


@contextlib.contextmanager
def following(verbose: bool = False, as_json: bool = False) -> Iterator[Lines]:
    """Gives the screen of a run: live in a terminal, otherwise lines; `as_json`, nothing else is printed on stdout."""
    console, screen = Console(), Lines(Console(), verbose)
    if as_json:
        screen = JsonLines(sys.stdout)
    elif console.is_terminal and not verbose:
        screen = LiveStages(console)
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            yield screen
    except (typer.Exit, BrokenPipeError):  # it was said, or nobody reads
        raise
    except KeyboardInterrupt:
        screen.fail("interrupted", exit_code=130)
        raise
    except Exception as error:
        of_user = isinstance(error, UserError) or (isinstance(error, OSError) and error.errno is not None)  # as `main`
        screen.fail(str(error) or type(error).__name__, exit_code=2 if of_user else 1)
        raise
    finally:
        screen.close()


def follow(screen: Lines, job: Callable[[Show], Outcome]) -> Outcome:
    """Runs a job and shows its stages. If the job fails, shows the cause and exits with the job's code."""
    outcome = job(screen.show)
    screen.close()
    if outcome.status != "FINISHED":
        screen.fail(outcome.message or "interrupted", outcome)
        raise typer.Exit(outcome.exit_code)
    return outcome


def followed(job: Callable[[Show], Outcome], verbose: bool = False) -> Outcome:
    """As `follow`, on a screen for people."""
    with following(verbose) as screen:
        return follow(screen, job)


def describe(progress: News) -> str:
    """Returns a text such as `epoch 2: 640/1,200 examples, loss 0.31`."""
    note = f", {progress['note']}" if progress["note"] else ""
    return f"{progress['part']}: {progress['done']:,}/{progress['total']:,} {progress['unit']}{note}"


def _left(progress: News, now: float) -> str:
    """Returns the time left at `now` in words; empty if it is not known."""
    left = progress.get("seconds_left")
    return "" if left is None else f"about {duration(max(left - now + progress['time'], 0.0), whole=True)} left"


def duration(seconds: float | None, whole: bool = False) -> str:
    """Returns `4.2 s` (`whole`: `4 s`), `3 min 08 s` or `2 h 05 min`; empty for None."""
    if seconds is None:
        return ""
    if seconds < (59.5 if whole else 59.95):
        return f"{seconds:.{0 if whole else 1}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def show_failure(outcome: Outcome) -> None:
    """Prints to stderr what failed or was interrupted, without control characters, and how to continue."""
    hint = "The same command goes on from here: finished steps are reused, training resumes at its last checkpoint."
    where = f"{outcome.failed_step}: " if outcome.failed_step else ""
    text = f"error: {where}{outcome.message}\nlog: {outcome.log}\n{hint}"
    if outcome.status == "KILLED":
        text = f"interrupted. {hint}\nlog: {outcome.log}"
    if outcome.rung:
        text += f"\nThe rung {outcome.rung} was reached; latest/ has the highest one."
    typer.echo("\n" + "\n".join(line.translate(CONTROL) for line in text.split("\n")), err=True)
