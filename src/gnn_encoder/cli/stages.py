"""A run as people and programs follow it: stages with their steps, from the events of a run.

`Stages.take` turns an event of the engine or of a step into *news*, which the screens of `cli.console` print. With
`run --json` each is a line on stdout, as docs/events.md describes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnn_encoder.engines.supervision import Event
from gnn_encoder.errors import printable
from gnn_encoder.settings.rungs import PREPARE, STAGES

News = dict[str, Any]
"""What a program reads: `event`, `time`, and the values of that event."""


@dataclass
class Stage:
    """A stage after the events so far."""

    name: str
    waiting: list[str] = field(default_factory=list)
    """Titles of the steps that have not ended, the running one first."""
    headlines: dict[str, str] = field(default_factory=dict)
    """Title of a step that has ended → its figures in words."""
    began: float = 0.0
    running: str = ""
    """Title of the step that runs."""
    step_began: float = 0.0
    progress: News = field(default_factory=dict)
    """The last of the running step."""
    has_failed: bool = False

    @property
    def headline(self) -> str:
        """What says the most about the stage: what it recommends, otherwise the figure of the step in `STAGES`."""
        by_step = {title.partition(": ")[0]: words for title, words in self.headlines.items() if words}
        if advice := by_step.get("recommend"):
            return advice.removeprefix("Recommended: ").partition("; ")[0]
        return by_step.get(STAGES.get(self.name, "")) or next(reversed(by_step.values()), "")


class Stages:
    """All stages of a run."""

    def __init__(self) -> None:
        self.planned: Mapping[str, float] = {}
        """Title of a step → seconds, of the steps that a plan knows."""
        self.stages: dict[str, Stage] = {}
        self.titles: dict[str, str] = {}
        """Title of a step → its stage."""
        self._part: tuple[str, float, int] = ("", 0.0, 0)
        """Of the running step's part: its name, and when it had done how much at first."""

    def take(self, event: Event) -> Iterator[News]:
        """Notes an event, and yields its news."""
        kind, title, now = event["event"], event["step"], event["time"]
        if kind == "run":
            for step, name in event["stages"].items():
                self.stages.setdefault(name, Stage(name)).waiting.append(step)
            self.titles = event["stages"]
            steps = {name: [*stage.waiting] for name, stage in self.stages.items()}
            yield {"event": "run_started", "time": now, "stages": steps, "log": event["log"]}
            return
        name = self.titles.setdefault(title, PREPARE)
        stage = self.stages.setdefault(name, Stage(name))
        about = {"time": now, "stage": name, "step": title}
        if kind == "starting" or (kind == "started" and stage.running != title):
            if not stage.began:
                stage.began = now
                yield {"event": "stage_started", "time": now, "stage": name, "steps": len(stage.waiting)}
            stage.running, stage.step_began, stage.progress = title, now, {}
            yield {"event": "step_started", **about}
        elif kind == "progress":
            figures = {key: event[key] for key in ("done", "total", "unit", "note")}
            left = self._seconds_left(stage, event)
            ended = len(stage.headlines)
            stage.progress = {"event": "progress", **about, "part": event["stage"], **figures}
            stage.progress |= {"seconds_left": left, "steps_done": ended, "steps": ended + len(stage.waiting)}
            yield stage.progress
        elif kind == "note":
            yield {"event": "note", **about, "message": printable(event["message"])}
        elif kind == "failed":
            stage.has_failed = True
            message = "interrupted" if event["kind"] == "KeyboardInterrupt" else printable(event["message"])
            seconds = {"seconds": now - (stage.step_began or now), "stage_seconds": now - (stage.began or now)}
            yield {"event": "step_failed", **about, **seconds, "message": message}
        elif kind in ("finished", "cached"):
            yield from self._ended(stage, event, about)

    def _ended(self, stage: Stage, event: Event, about: News) -> Iterator[News]:
        """Yields the end of a step, and of its stage if the step is the last one."""
        title, now = event["step"], event["time"]
        words = stage.headlines[title] = printable(str(event["metrics"].get("headline", "")))
        is_cached = event["event"] == "cached"
        seconds = 0.0 if is_cached else now - (stage.step_began or now)
        yield {"event": "step_done", **about, "cached": is_cached, "seconds": seconds, "headline": words}
        stage.running, stage.progress = "", {}
        if title in stage.waiting:
            stage.waiting.remove(title)
        if not stage.waiting:
            facts = {"cached": not stage.began, "seconds": now - (stage.began or now)}
            yield {"event": "stage_done", "time": now, "stage": stage.name, **facts, "headline": stage.headline}

    def _seconds_left(self, stage: Stage, event: Event) -> float | None:
        """Returns the seconds that the running step needs, and those of the stage that the plan knows behind it.

        The rate of the step's current part counts from its first two events on, and until then the plan.
        """
        title, now, done = event["step"], event["time"], event["done"]
        if self._part[0] != f"{title}/{event['stage']}" or done < self._part[2]:
            self._part = f"{title}/{event['stage']}", now, done
        _, since, before = self._part
        behind = sum(self.planned.get(other, 0.0) for other in stage.waiting if other != title)
        if done >= event["total"]:
            return behind or None
        if done > before:
            return float((event["total"] - done) * (now - since) / (done - before) + behind)
        if title in self.planned:
            return float(max(self.planned[title] - (now - stage.step_began), 0.0) + behind)
        return behind or None
