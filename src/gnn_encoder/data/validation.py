"""Problems of a data set: counts every problem by kind, and keeps the first few with file and line."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from gnn_encoder.artifacts.dataset import HIGHEST_RELEVANCE
from gnn_encoder.errors import printable

SHOWN = 3
"""Places kept per kind of problem."""
FEWEST_TRAINING = 2
"""Training queries of different text with a relevant passage: masked training masks a query with its twins, and needs
another query in the graph."""


class Kind(StrEnum):
    """The kinds of problems, in the words that the user reads."""

    MISSING_FILE = "missing file"
    UNREADABLE = "unreadable file"
    EMPTY_CORPUS = "empty corpus"
    NO_TRAINING = f"fewer than {FEWEST_TRAINING} different training queries with a relevant passage"
    NO_NEGATIVE = "no passage that is irrelevant to a training query, so there is nothing to tell apart"
    NO_EVALUATION = (
        "no dev or test query with a relevant passage, so nothing can be measured; without qrels of dev and test, "
        f"label at least {FEWEST_TRAINING + 2} queries"
    )
    ENCODING = "not UTF-8"
    BAD_JSON = "bad JSON"
    BAD_ROW = "wrong columns or fields"
    BAD_RELEVANCE = f"relevance that is not an integer from -{HIGHEST_RELEVANCE:,} to {HIGHEST_RELEVANCE:,}"
    EMPTY_PASSAGE = "passage without title and text"
    EMPTY_QUERY = "empty query text"
    DUPLICATE_PASSAGE = "duplicate passage id"
    DUPLICATE_QUERY = "duplicate query id"
    UNKNOWN_QUERY = "label of an unknown query"
    UNKNOWN_PASSAGE = "label of an unknown passage"
    CONTRADICTION = "label with another relevance than an earlier one of the same query and passage"
    SHARED_QUERY = "query in two splits"
    DUPLICATE_SECTION = "duplicate id of a section"
    DANGLING_PARENT = "parent that is no node"
    FOREIGN_PARENT = "parent in another document"
    PARENT_CYCLE = "node that is part of itself"
    UNKNOWN_CITATION = "citation of an unknown id"
    POOL_QUERY = "candidate of an unknown query"
    POOL_PASSAGE = "candidate that is an unknown passage"


FATAL = frozenset(
    {
        Kind.MISSING_FILE,
        Kind.UNREADABLE,
        Kind.EMPTY_CORPUS,
        Kind.NO_TRAINING,
        Kind.NO_NEGATIVE,
        Kind.NO_EVALUATION,
    }
)
"""Problems that remain if rows are left out."""


@dataclass
class Problem:
    """All problems of one kind."""

    kind: Kind
    count: int = 0
    places: list[str] = field(default_factory=list)
    """The first few places, such as `corpus.jsonl line 7: 'd1'`."""

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
        self._by_kind: dict[Kind, Problem] = {}

    def add(self, kind: Kind, file: str, line: int | None = None, detail: str = "") -> None:
        """Count a problem at a line (from 1) of a file, or of the whole file."""
        problem = self._by_kind.setdefault(kind, Problem(kind))
        problem.count += 1
        if len(problem.places) < SHOWN:
            location = file if line is None else f"{file} line {line}"
            # A user's line may hold anything; the message must stay one printable line of readable length.
            short = printable(detail)[:80]
            problem.places.append(f"{location}: {short}" if short else location)

    def add_rows(self, kind: Kind, rows: np.ndarray, describe: Callable[[int], tuple[str, int, str]]) -> None:
        """Count a problem at each of the rows; `describe` gives the file, line and detail of the few that are kept."""
        for row in rows[:SHOWN].tolist():
            self.add(kind, *describe(row))
        if len(rows) > SHOWN:
            self._by_kind[kind].count += len(rows) - SHOWN

    def all(self) -> list[Problem]:
        """Every kind that occurred: fatal kinds first, then in the order of `Kind`."""
        in_order = [self._by_kind[kind] for kind in Kind if kind in self._by_kind]
        return sorted(in_order, key=lambda problem: not problem.fatal)

    def count(self, kind: Kind) -> int:
        """Number of problems of a kind."""
        return self._by_kind[kind].count if kind in self._by_kind else 0


class WithoutMissing(Problems):
    """Adds to other problems all but missing files: of data whose queries and labels may come from elsewhere."""

    def __init__(self, problems: Problems) -> None:
        super().__init__()
        self._others = problems

    def add(self, kind: Kind, file: str, line: int | None = None, detail: str = "") -> None:
        """As of `Problems`."""
        if kind is not Kind.MISSING_FILE:
            self._others.add(kind, file, line, detail)


@dataclass
class StructureCounts:
    """What the documents of a data set hold."""

    documents: int
    """After the cut at `ingest.document_depth`."""
    documents_before_cut: int
    nodes: int
    """Passages and sections."""
    sections_without_text: int
    edges: dict[str, int]
    """Per type: order (a document's next passage), structural (a part and its whole), internal and external citations
    (within a document, and between two), and the inverse of each."""
    outside_citations: int
    """Citations of works that are not in the data; they are no edges."""
    unlinked_passages: int
    """Passages whose edges, if they have any, are all of order: no whole, no part, no citation in or out."""
    tree_depth: int
    """Nodes on the longest path from a top section to one of its parts, both counted."""

    def metrics(self) -> dict[str, int]:
        """The counts as flat metrics."""
        facts = asdict(self)
        edges: dict[str, int] = facts.pop("edges")
        return {**facts, **{f"edges_{kind}": count for kind, count in edges.items()}}

    def lines(self) -> dict[str, str]:
        """The counts in words, for a reader."""
        cut = f", cut from {self.documents_before_cut:,}" if self.documents != self.documents_before_cut else ""
        kinds = [kind for kind in self.edges if not kind.endswith("_inverse")]
        return {
            "documents": f"{self.documents:,}{cut}; {self.tree_depth} levels of sections and passages",
            "nodes": f"{self.nodes:,}, {self.sections_without_text:,} of them sections without text",
            "edges": ", ".join(f"{kind} {self.edges[kind]:,}" for kind in kinds) + "; as many inverse ones",
            "outside": f"{self.outside_citations:,} citations of works that are not in the data",
            "unlinked": f"{self.unlinked_passages:,} passages without an edge other than order",
        }


@dataclass
class DataReport:
    """Contents and problems of a data set. The counts are without bad rows."""

    source: str
    format: str
    passages: int
    queries: dict[str, int]
    """Per split."""
    labels: dict[str, int]
    """Per split, labels of relevance 0 included."""
    without_positive: dict[str, int]
    """Queries per split without a label of at least 1."""
    findable: dict[str, int]
    """Queries per split with a label of at least 1 of a passage in the corpus."""
    shared_labels: dict[str, float]
    """Per split, the share of the labels of at least 1 on passages with such a label of another training query that is
    no twin."""
    warm_queries: dict[str, float]
    """Per split, the share of the queries with such a label among those with a label of at least 1."""
    twins: int
    """Training queries that have a twin."""
    recurring: dict[str, dict[str, int]]
    """Split → split → the queries of the first that nearly equal another query of the second, by
    `ingest.recurrence_similarity`."""
    train_before_draw: int
    """Training queries that `ingest.max_train_queries` drew from."""
    trained: int
    """Training queries that models are trained on (`ingest.max_trained_queries`)."""
    dev_before_draw: int
    """Dev queries that `ingest.max_dev_queries` drew from."""
    isolated_passages: int
    """Passages without a label of at least 1."""
    passage_words: float
    """Mean number of words in a passage's text, or title without text, over the first `corpus.WORD_SAMPLE` passages."""
    query_words: float
    copies: int = 0
    """Passages that are a copy of an earlier passage, by `ingest.copy_similarity`."""
    structure: StructureCounts | None = None
    """None: the data have no documents."""
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def fatal(self) -> bool:
        """Whether the data set is unusable even with `on_bad_rows: drop`."""
        return any(problem.fatal for problem in self.problems)

    @property
    def labelled(self) -> dict[str, int]:
        """Queries per split with a label of at least 1."""
        return {split: count - self.without_positive[split] for split, count in self.queries.items()}

    @property
    def headline(self) -> str:
        """Such as `2,512 passages · 812/101/99 queries` (train, dev, test), and the size of a split before a draw."""
        queries = f"{'/'.join(f'{n:,}' for n in self.queries.values())} queries" * any(self.queries.values())
        counts = f"{self.passages:,} passages · {queries or 'no queries yet'}"
        before = {"train": self.train_before_draw, "dev": self.dev_before_draw}
        draws = [
            f"{self.queries[split]:,} of {n:,} for {split}" for split, n in before.items() if n > self.queries[split]
        ]
        counts += f", drawn {' and '.join(draws)}" if draws else ""
        counts += f", {self.trained:,} of them trained on" if self.trained < self.queries["train"] else ""
        return counts + (f" · remarks in the log: {len(self.remarks):,}" if self.remarks else "")

    def metrics(self) -> dict[str, Any]:
        """The counts and the dropped rows per kind of problem as flat metrics; the facts as text."""
        by_split: dict[str, Mapping[str, float]] = {
            "queries": self.queries,
            "labels": self.labels,
            "queries_without_positive": self.without_positive,
            "shared_labels": self.shared_labels,
            "warm_queries": self.warm_queries,
            "recurring": {split: others["train"] for split, others in self.recurring.items()},
        }
        return {
            "passages": self.passages,
            **{f"{fact}_{split}": count for fact, counts in by_split.items() for split, count in counts.items()},
            "twins": self.twins,
            "queries_train_before_draw": self.train_before_draw,
            "queries_dev_before_draw": self.dev_before_draw,
            **({"queries_trained": self.trained} if self.trained < self.queries["train"] else {}),
            "isolated_passages": self.isolated_passages,
            "copied_passages": self.copies,
            "mean_passage_words": self.passage_words,
            "mean_query_words": self.query_words,
            **(self.structure.metrics() if self.structure else {}),
            **{f"dropped_{problem.kind.name.lower()}": problem.count for problem in self.problems},
            **self.facts,
        }


def refusal(source: str, problems: list[Problem]) -> str:
    """The error line for an unusable data set: what is wrong, where, and what to do."""
    advice = "mend these and run again"
    if not any(problem.fatal for problem in problems):
        advice = "mend them, or set ingest.on_bad_rows=drop to leave those rows out"
    return f"{source} is not usable: {'; '.join(map(str, problems))}: {advice}"
