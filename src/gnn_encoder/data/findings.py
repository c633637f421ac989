"""What a data set holds, and what is wrong with it."""

from dataclasses import dataclass, field
from typing import Any

from gnn_encoder.data.validation import Problem


@dataclass
class DataReport:
    """What a data set holds and what is wrong with it. Counts are of what is left without the bad rows."""

    source: str
    format: str
    passages: int
    queries: dict[str, int]
    """Per split."""
    labels: dict[str, int]
    """Per split, those of relevance 0 included."""
    without_positive: dict[str, int]
    """Queries per split without a label of at least 1."""
    train_before_draw: int
    """Training queries that `ingest.max_train_queries` drew from."""
    isolated_passages: int
    """Passages that no label of at least 1 names."""
    passage_words: float
    """Mean words of a passage's text, over the first `corpus.WORD_SAMPLE`."""
    query_words: float
    problems: list[Problem] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def fatal(self) -> bool:
        """Whether even `on_bad_rows: drop` cannot use it."""
        return any(problem.fatal for problem in self.problems)

    @property
    def headline(self) -> str:
        """As in `2,512 passages · 812/101/99 queries` (train, dev, test), and from how many train was drawn."""
        counts = f"{self.passages:,} passages · {'/'.join(f'{n:,}' for n in self.queries.values())} queries"
        train, before = self.queries["train"], self.train_before_draw
        return counts if train == before else f"{counts}, drawn {train:,} of {before:,} for training"

    def metrics(self) -> dict[str, Any]:
        """The counts as flat figures; rows dropped by kind of problem; the facts as text."""
        dropped = {f"dropped_{problem.kind.name.lower()}": problem.count for problem in self.problems}
        splits = {
            f"{what}_{split}": count
            for what, counts in (
                ("queries", self.queries),
                ("labels", self.labels),
                ("queries_without_positive", self.without_positive),
            )
            for split, count in counts.items()
        }
        means = {"mean_passage_words": self.passage_words, "mean_query_words": self.query_words}
        drawn = {"queries_train_before_draw": self.train_before_draw}
        isolated = {"isolated_passages": self.isolated_passages}
        return {"passages": self.passages, **splits, **drawn, **isolated, **means, **dropped, **self.facts}
