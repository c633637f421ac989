"""What can be wrong with a data set: every problem counted by kind, the first few kept with file and line."""

from dataclasses import dataclass, field
from enum import StrEnum

from gnn_encoder.artifacts.dataset import HIGHEST_RELEVANCE

SHOWN = 3
"""Places kept of each kind."""
FEWEST_TRAINING = 2
"""Training queries with a relevant passage: masked training takes a query out of the graph and needs another in it."""


class Kind(StrEnum):
    """The kinds of problems, in the words that the user reads."""

    MISSING_FILE = "missing file"
    UNREADABLE = "unreadable file"
    EMPTY_CORPUS = "empty corpus"
    NO_TRAINING = f"fewer than {FEWEST_TRAINING} training queries with a relevant passage"
    ENCODING = "not UTF-8"
    BAD_JSON = "bad JSON"
    BAD_ROW = "wrong columns or fields"
    BAD_RELEVANCE = f"relevance that is not an integer from -{HIGHEST_RELEVANCE:,} to {HIGHEST_RELEVANCE:,}"
    EMPTY_PASSAGE = "empty passage text"
    EMPTY_QUERY = "empty query text"
    DUPLICATE_PASSAGE = "duplicate passage id"
    DUPLICATE_QUERY = "duplicate query id"
    UNKNOWN_QUERY = "label of an unknown query"
    UNKNOWN_PASSAGE = "label of an unknown passage"
    SHARED_QUERY = "query in two splits"


FATAL = frozenset({Kind.MISSING_FILE, Kind.UNREADABLE, Kind.EMPTY_CORPUS, Kind.NO_TRAINING})
"""Problems that leaving rows out does not mend."""


@dataclass
class Problem:
    """All problems of one kind."""

    kind: Kind
    count: int = 0
    places: list[str] = field(default_factory=list)
    """The first few, as in `corpus.jsonl line 7: 'd1'`."""

    @property
    def fatal(self) -> bool:
        """Whether `on_bad_rows: drop` does not help."""
        return self.kind in FATAL

    def __str__(self) -> str:
        more = ", …" if self.count > len(self.places) else ""
        return f"{self.count:,} × {self.kind} ({', '.join(self.places)}{more})"


class Problems:
    """Collects problems while a data set is read."""

    def __init__(self) -> None:
        self._found: dict[Kind, Problem] = {}

    def add(self, kind: Kind, file: str, line: int | None = None, detail: str = "") -> None:
        """Count a problem at a line (from 1) of a file, or of the whole file."""
        problem = self._found.setdefault(kind, Problem(kind))
        problem.count += 1
        if len(problem.places) < SHOWN:
            place = file if line is None else f"{file} line {line}"
            # A user's line may hold anything; the message must stay one line of readable length.
            short = " ".join(detail.split())[:80]
            problem.places.append(f"{place}: {short}" if short else place)

    def all(self) -> list[Problem]:
        """Every kind that occurred, the fatal ones first, else in the order of `Kind`."""
        order = list(Kind)
        return sorted(self._found.values(), key=lambda p: (not p.fatal, order.index(p.kind)))

    def count(self, kind: Kind) -> int:
        """How many of a kind."""
        return self._found[kind].count if kind in self._found else 0


def refusal(source: str, problems: list[Problem]) -> str:
    """The one line that refuses a data set: what is wrong, where, and what to do."""
    advice = "mend these and run again"
    if not any(problem.fatal for problem in problems):
        advice = "mend them, or set ingest.on_bad_rows=drop to leave those rows out"
    return f"{source} is not usable: {'; '.join(map(str, problems))}: {advice}"
