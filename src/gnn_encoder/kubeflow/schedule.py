"""A recurring run: when its runs start, as the command line takes it, and as KFP sends it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gnn_encoder.errors import UserError, printable

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
FIELDS: tuple[tuple[str, int, int, Mapping[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of the month", 1, 31, {}),
    ("month", 1, 12, {name: number for number, name in enumerate(MONTHS, 1)}),
    ("day of the week", 0, 6, {name: number for number, name in enumerate(DAYS)}),
)
"""Fields of a cron expression: name, least and largest number, names of numbers."""
LONGEST_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True)
class Schedule:
    """A recurring run that is to be created."""

    name: str
    cron: str = ""
    """KFP's cron expression, whose first field is the second. Empty: `every_seconds` holds."""
    every_seconds: int = 0
    at_once: int = 1
    """How many of its runs may run at the same time; KFP accepts 1 to 10."""
    catch_up: bool = False
    """Whether all starts that were missed, as while too many runs were running, are made up, or one of them."""


@dataclass(frozen=True)
class Scheduled:
    """A recurring run, as the server describes it."""

    schedule_id: str
    name: str
    when: str
    state: str
    created: datetime | None
    at_once: str


def new_schedule(name: str, cron: str | None, every: str | None, at_once: int, catch_up: bool) -> Schedule:
    """Returns the recurring run of some options; exactly one of `cron` and `every` must be given."""
    if (cron is None) == (every is None):
        raise UserError("give either --cron, as '0 3 * * *', or --every, as 24h")
    if not name.strip():
        raise UserError("--name is empty: a recurring run needs a name")
    if cron is not None:
        return Schedule(name, kfp_cron(cron), 0, at_once, catch_up)
    return Schedule(name, "", _seconds(every or ""), at_once, catch_up)


def kfp_cron(text: str) -> str:
    """Returns KFP's form of a cron expression with the usual five fields.

    KFP's library (robfig/cron 1.2) has the second as its first field and takes five fields for second to month:
    `0 3 * * *` would start a run every hour. KFP's controller searches the next start of an expression that has none
    without end, so such an expression is refused.
    """
    fields = text.split()
    if len(fields) != len(FIELDS):
        names = ", ".join(name for name, *_ in FIELDS)
        raise UserError(f"--cron {text!r}: give five fields, {names}, as in '0 3 * * *'")
    allowed = [
        {value for part in field.split(",") for value in _values(text, part, *meaning)}
        for field, meaning in zip(fields, FIELDS, strict=True)
    ]
    days, months = allowed[2], allowed[3]
    every_weekday = any(part[0] in "*?" for part in fields[4].split(","))  # otherwise one of the two days is enough
    if every_weekday and min(days) > max(LONGEST_MONTH[month - 1] for month in months):
        raise UserError(f"--cron {text!r}: no such month has a day {min(days)}")
    return " ".join(["0", *fields])


def _values(text: str, part: str, field: str, least: int, largest: int, names: Mapping[str, int]) -> range:
    """Returns the numbers that one part of a field, such as `1-5` or `*/15`, stands for."""

    def number(word: str) -> int:
        value = names.get(word.lower(), int(word) if word.isdecimal() else -1)
        if not least <= value <= largest:
            raise UserError(f"--cron {text!r}: {word} is no {field}: give a number from {least} to {largest}")
        return value

    match = re.fullmatch(r"(?:[*?]|(\w+)(?:-(\w+))?)(?:/(\d+))?", part, re.ASCII)
    if not match or (match[3] and not int(match[3])):
        raise UserError(f"--cron {text!r}: cannot read {part!r} as the {field}")
    first = number(match[1]) if match[1] else least
    last = number(match[2]) if match[2] else first if match[1] and not match[3] else largest
    if first > last:
        raise UserError(f"--cron {text!r}: {part} goes backwards: write two ranges with a comma between them")
    return range(first, last + 1, int(match[3] or 1))


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(?:(\d{1,4})d)?(?:(\d{1,4})h)?(?:(\d{1,5})m)?", text.strip(), re.ASCII)
    days, hours, minutes = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    if not (seconds := ((days * 24 + hours) * 60 + minutes) * 60):
        raise UserError(f"--every {text}: write it as 30m, 24h, 7d or 1d12h, at least a minute")
    return seconds


def scheduled(answer: Any) -> Scheduled:
    """Returns what the server's answer says about a recurring run."""
    trigger = answer.trigger
    when = ""
    if trigger and trigger.cron_schedule:
        fields = str(trigger.cron_schedule.cron).split()
        when = f"cron {' '.join(fields[1:] if len(fields) > len(FIELDS) and fields[0] == '0' else fields)}"
    elif trigger and trigger.periodic_schedule:
        when = f"every {_length(int(trigger.periodic_schedule.interval_second))}"
    return Scheduled(
        schedule_id=str(answer.recurring_run_id),
        name=printable(str(answer.display_name)),
        when=printable(when),
        state=str(answer.status or "").lower(),
        created=answer.created_at,
        at_once=str(answer.max_concurrency or ""),
    )


def _length(seconds: int) -> str:
    """Returns a length of time in the form of `--every`; seconds that are no whole minute keep their unit."""
    if seconds % 60:
        return f"{seconds}s"
    days, rest = divmod(seconds, 24 * 3600)
    hours, rest = divmod(rest, 3600)
    return "".join(f"{value}{unit}" for value, unit in ((days, "d"), (hours, "h"), (rest // 60, "m")) if value)
