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
    """Labels of passages of the corpus."""
    missed: list[Label] = field(default_factory=list)
    """Labels of dev and test queries for passages that no ranking can have."""
    identical: dict[str, str] = field(default_factory=dict)
    """Query id → id of the passage that is the query itself, and is left out of its hits."""
    pool: set[tuple[str, str]] = field(default_factory=set)
    """Ids of queries and their candidates."""
    problems: Counter[Kind] = field(default_factory=Counter)
    places: dict[Kind, str] = field(default_factory=dict)
    """File and line of the first problem of each kind."""

    def problem(self, kind: Kind, file: str, line: int) -> None:
        """Counts a problem."""
        self.problems[kind] += 1
        self.places.setdefault(kind, f"{file} line {line}")

    def of_split(self, split: str) -> list[Question]:
        """The queries of a split."""
        return [query for query in self.queries if self.split[query.id] == split]

    def groups(self) -> list[list[str]]:
        """Ids of the training queries of each text."""
        by_text = defaultdict(list)
        for query in self.of_split("train"):
            by_text[form(query.text)].append(query.id)
        return list(by_text.values())

    def positives(self) -> dict[str, set[str]]:
        """Query id → ids of the passages of the corpus with a label of at least 1, for queries that have any."""
        passages_of = defaultdict(set)
        for label in self.labels:
            if label.relevance >= 1:
                passages_of[label.query].add(label.passage)
        return dict(passages_of)

    def answered(self) -> set[str]:
        """Queries with a label of at least 1, also for a passage that is missing."""
        return {label.query for label in (*self.labels, *self.missed) if label.relevance >= 1}

    def lacks(self) -> set[Kind]:
        """What is fatal: no corpus, nothing to train on, or nothing to measure."""
        positives = self.positives()
        groups = [group for group in self.groups() if any(query in positives for query in group)]
        lacking = set()
        if not self.passages:
            lacking.add(Kind.EMPTY_CORPUS)
        if len(groups) < 2:
            lacking.add(Kind.NO_TRAINING)
        if not any(self.split[query] != "train" for query in positives):
            lacking.add(Kind.NO_EVALUATION)
        text_of = {row.id: form(full_text(row.title, row.text)) for row in self.passages}
        itself = {query: {passage} for query, passage in self.identical.items()}
        relevant = [
            set().union(*(known.get(q, ()) for q in group for known in (positives, itself))) for group in groups
        ]
        if Kind.NO_TRAINING not in lacking:
            none = all(len(passages) == len(text_of) for passages in relevant)
            by_text = all({text_of[passage] for passage in passages} == {*text_of.values()} for passages in relevant)
            if none or (by_text and not lacking):  # copies are looked for where nothing else is wrong
                lacking.add(Kind.NO_NEGATIVE)
        return lacking


def ingested(data: OddData) -> Ingested:
    """What is kept of a data set if bad rows are left out and no split is set apart from train."""
    out = Ingested()
    passages = _passages(data, out)
    queries = _queries(data, out)
    known = _known_labels(data, out, queries, passages)
    split_of = {label.query: split for split, _, label in known}  # of several splits the last
    first: dict[tuple[str, str], int] = {}
    several: set[tuple[str, str]] = set()
    shared: set[str] = set()
    for split, line, label in known:
        if first.setdefault(label[:2], label.relevance) != label.relevance:
            several.add(label[:2])
            out.problem(Kind.CONTRADICTION, f"qrels/{split}.tsv", line)
        if split != split_of[label.query] and label.query not in shared:
            shared.add(label.query)
            out.problem(Kind.SHARED_QUERY, f"qrels/{split}.tsv", line)
    if "test" not in split_of.values():
        split_of = {query: "test" if split == "dev" else split for query, split in split_of.items()}
        moved = {"dev": "test"}
    else:
        moved = {}
    latest: dict[str, int] = {}
    for query in queries.values():
        if query.id in split_of:
            text = form(query.text)
            latest[text] = max(SPLITS.index(split_of[query.id]), latest.get(text, 0))
    out.passages = list(passages.values())
    for query in queries.values():
        if query.id in split_of and SPLITS.index(split_of[query.id]) == latest[form(query.text)]:
            out.queries.append(query)
            out.split[query.id] = split_of[query.id]
    labels: dict[tuple[str, str], Label] = {}
    for split, _, label in known:
        if label[:2] not in several and out.split.get(label.query) == moved.get(split, split):
            labels.setdefault(label[:2], label)
    _settle_identical(out, passages, labels)
    for line, (query_id, passage_id) in enumerate(data.candidates, 1):
        if query_id not in queries:
            out.problem(Kind.POOL_QUERY, "candidates/train.tsv", line)
        if passage_id not in passages:
            out.problem(Kind.POOL_PASSAGE, "candidates/train.tsv", line)
        if query_id in out.split and passage_id in passages:
            out.pool.add((query_id, passage_id))
    return out


def _passages(data: OddData, out: Ingested) -> dict[str, Passage]:
    kept: dict[str, Passage] = {}
    for line, row in enumerate(data.corpus, 1):
        if isinstance(row, Broken):
            out.problem(row.kind, "corpus.jsonl", line)
            continue
        title, text = ("" if is_blank(part) else part for part in (row.title, row.text))
        if not title and not text:
            out.problem(Kind.EMPTY_PASSAGE, "corpus.jsonl", line)
        elif row.id in kept:
            out.problem(Kind.DUPLICATE_PASSAGE, "corpus.jsonl", line)
        else:
            kept[row.id] = Passage(row.id, title, text)
    return kept


def _queries(data: OddData, out: Ingested) -> dict[str, Question]:
    kept: dict[str, Question] = {}
    for line, row in enumerate(data.queries, 1):
        if isinstance(row, Broken):
            out.problem(row.kind, "queries.jsonl", line)
        elif is_blank(row.text):
            out.problem(Kind.EMPTY_QUERY, "queries.jsonl", line)
        elif row.id in kept:
            out.problem(Kind.DUPLICATE_QUERY, "queries.jsonl", line)
        else:
            kept[row.id] = row
    return kept


def _known_labels(
    data: OddData, out: Ingested, queries: dict[str, Question], passages: dict[str, Passage]
) -> list[tuple[str, int, Label]]:
    """Split, line and label of all labels that may be used."""
    rows = []
    for split in SPLITS:
        for line, row in enumerate(data.labels.get(split, ()), 2):
            file = f"qrels/{split}.tsv"
            if isinstance(row, Broken):
                out.problem(row.kind, file, line)
                continue
            if queries and row.query not in queries:
                out.problem(Kind.UNKNOWN_QUERY, file, line)
            if passages and row.passage not in passages:
                out.problem(Kind.UNKNOWN_PASSAGE, file, line)
            if row.query in queries:
                rows.append((split, line, row))
    there = {row.query for _, _, row in rows if row.passage in passages}
    # A label of train for a passage that the corpus lacks is of no use, unless its query becomes one of dev or test.
    return [(s, line, row) for s, line, row in rows if row.passage in passages or s != "train" or row.query in there]


def _settle_identical(out: Ingested, passages: dict[str, Passage], labels: dict[tuple[str, str], Label]) -> None:
    """Fills labels, those that are missed, and the passages that are queries."""
    for query in out.queries:
        if query.id in passages:
            passage = passages[query.id]
            label = labels.get((query.id, query.id))
            is_same = form(query.text) in (form(passage.text), form(full_text(passage.title, passage.text)))
            if not label or label.relevance < 1 or is_same:
                out.identical[query.id] = query.id
    for label in labels.values():
        in_train = out.split[label.query] == "train"
        is_itself = label.relevance >= 1 and out.identical.get(label.query) == label.passage
        if label.passage in passages and not is_itself:
            out.labels.append(label)
        elif not in_train:
            out.missed.append(label)
