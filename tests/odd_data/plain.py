"""What ingestion should make of a data set, by plain loops over its rows and without code of the package."""

import unicodedata
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

import regex
from odd_data.data_sets import SPLITS, Broken, Label, OddData, Passage, Question

from gnn_encoder.data.validation import Kind

_UNSEEN = regex.compile(r"[\p{Default_Ignorable_Code_Point}\p{Cc}\uFFF9-\uFFFB]")


@lru_cache(2**14)
def form(text: str) -> str:
    """The form in which texts are equal: NFKC, case folded, without unseen characters, single spaces."""
    before = None
    while text != before:
        before = text
        text = "".join(c for c in text if c.isspace() or not _UNSEEN.match(c))
        text = unicodedata.normalize("NFKC", text.casefold())
    return " ".join(text.split())


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen; a Braille cell without a dot cannot."""
    return not form(text).replace("\u2800", "").strip()


def full_text(title: str, text: str) -> str:
    """A passage as models read it: title and text, or the one of both that can be seen."""
    return " ".join(part for part in (title, text) if not is_blank(part))


@dataclass
class Ingested:
    """The rows to be kept, and the problems."""

    passages: list[Passage] = field(default_factory=list)
    queries: list[Question] = field(default_factory=list)
    split: dict[str, str] = field(default_factory=dict)
    """Query id → split."""
    labels: list[Label] = field(default_factory=list)
    problems: Counter[Kind] = field(default_factory=Counter)
    places: dict[Kind, str] = field(default_factory=dict)
    """File and line of the first problem of each kind."""

    def problem(self, kind: Kind, file: str, line: int) -> None:
        """Counts a problem."""
        self.problems[kind] += 1
        self.places.setdefault(kind, f"{file} line {line}")

    def groups(self) -> list[list[str]]:
        """Ids of the training queries of each text."""
        by_text = defaultdict(list)
        for query in self.queries:
            if self.split[query.id] == "train":
                by_text[form(query.text)].append(query.id)
        return list(by_text.values())

    def positives(self) -> dict[str, set[str]]:
        """Query id → ids of the passages with a label of at least 1, for queries that have any."""
        found = defaultdict(set)
        for label in self.labels:
            if label.relevance >= 1:
                found[label.query].add(label.passage)
        return dict(found)


def ingested(data: OddData) -> Ingested:
    """What is kept of a data set if bad rows are left out, before splits that are missing are set apart."""
    out = Ingested()
    passages: dict[str, Passage] = {}
    for line, row in enumerate(data.corpus, 1):
        if isinstance(row, Broken):
            out.problem(row.kind, "corpus.jsonl", line)
        elif is_blank(row.title) and is_blank(row.text):
            out.problem(Kind.EMPTY_PASSAGE, "corpus.jsonl", line)
        elif row.id in passages:
            out.problem(Kind.DUPLICATE_PASSAGE, "corpus.jsonl", line)
        else:
            passages[row.id] = row
    queries: dict[str, Question] = {}
    for line, row in enumerate(data.queries, 1):
        if isinstance(row, Broken):
            out.problem(row.kind, "queries.jsonl", line)
        elif is_blank(row.text):
            out.problem(Kind.EMPTY_QUERY, "queries.jsonl", line)
        elif row.id in queries:
            out.problem(Kind.DUPLICATE_QUERY, "queries.jsonl", line)
        else:
            queries[row.id] = row
    known: list[tuple[str, int, Label]] = []
    for split in SPLITS:
        for line, row in enumerate(data.labels.get(split, ()), 2):
            file = f"qrels/{split}.tsv"
            if isinstance(row, Broken):
                out.problem(row.kind, file, line)
                continue
            if row.query not in queries:
                out.problem(Kind.UNKNOWN_QUERY, file, line)
            if row.passage not in passages:
                out.problem(Kind.UNKNOWN_PASSAGE, file, line)
            if row.query in queries and row.passage in passages:
                known.append((split, line, row))
    split_of = {row.query: split for split, _, row in known}  # of several splits the last
    told = set()
    labels: dict[tuple[str, str], Label] = {}
    for split, line, row in known:
        if split == split_of[row.query]:
            labels.setdefault(row[:2], row)
        elif row.query not in told:
            told.add(row.query)
            out.problem(Kind.SHARED_QUERY, f"qrels/{split}.tsv", line)
    out.passages = list(passages.values())
    out.queries = [query for query in queries.values() if query.id in split_of]
    out.split = split_of
    out.labels = list(labels.values())
    return out


def without_leaks(data: Ingested) -> Ingested:
    """Leaves out the queries with the text of a query in a later split."""
    latest: dict[str, int] = {}
    for query in data.queries:
        number = SPLITS.index(data.split[query.id])
        latest[form(query.text)] = max(number, latest.get(form(query.text), 0))
    kept = [q for q in data.queries if SPLITS.index(data.split[q.id]) == latest[form(q.text)]]
    ids = {query.id for query in kept}
    labels = [label for label in data.labels if label.query in ids]
    return Ingested(data.passages, kept, {i: data.split[i] for i in ids}, labels, data.problems, data.places)
