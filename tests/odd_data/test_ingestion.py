"""Ingestion of odd data keeps what plain loops keep, counts what they count, and ends with nothing but a UserError."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from odd_data.data_sets import SPLITS, OddData, data_sets, spoilt_data_sets, write_beir
from odd_data.plain import Ingested, form, full_text, ingested

from gnn_encoder.artifacts import Dataset, Qrels, drafting
from gnn_encoder.data import canonicalize, open_source
from gnn_encoder.data.cutting import words_in
from gnn_encoder.data.validation import DataReport
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest


def rows_of(data: Dataset) -> tuple[list[tuple], list[tuple], list[tuple]]:
    """Passages, queries and labels of a dataset."""
    passages = [row for part in data.passages.stream() for row in zip(part.ids, part.titles, part.texts, strict=True)]
    queries = [tuple(row[name] for name in ("query_id", "text", "split")) for row in data.queries.to_pylist()]
    return passages, queries, named(data.qrels, queries, [name for name, _, _ in passages])


def named(labels: Qrels, queries: list[tuple], passage_ids: list[str]) -> list[tuple]:
    """Labels with text ids."""
    columns = (labels.query.tolist(), labels.passage.tolist(), labels.relevance.tolist())
    return [(queries[query][0], passage_ids[passage], value) for query, passage, value in zip(*columns, strict=True)]


def ingest(folder: Path, **more: object) -> tuple[Dataset, DataReport]:
    """The dataset that ingestion writes beside a folder, and the report; no split is set apart from train."""
    chosen = Ingest(**{"dataset": str(folder), "dev_fraction": 0.0, "recurrence_similarity": 0.0, **more})
    target = folder.with_name(f"{folder.name}.dataset")
    with drafting(target, "dataset") as draft:
        report = canonicalize(open_source(chosen), chosen, draft=draft)
    return Dataset(target), report


def check(folder: Path, **more: object) -> DataReport:
    """The report of `data check`."""
    chosen = Ingest(**{"dataset": str(folder), "dev_fraction": 0.0, "recurrence_similarity": 0.0, **more})
    return canonicalize(open_source(chosen), chosen)


def assert_kept(data: Dataset, expected: Ingested) -> None:
    """A dataset has the expected rows, in order, and the groups of equal training queries."""
    passages, queries, labels = rows_of(data)
    assert passages == [tuple(row) for row in expected.passages]
    assert queries == [(row.id, row.text, expected.split[row.id]) for row in expected.queries]
    assert labels == [tuple(row) for row in expected.labels]
    rows = {row.id: number for number, row in enumerate(expected.queries)}
    groups = list(range(len(rows)))
    for group in expected.groups():
        for query in group:
            groups[rows[query]] = rows[group[0]]
    assert data.groups.tolist() == groups
    judged = [label for split in SPLITS for label in named(data.judged(split), queries, data.judged_ids().to_pylist())]
    assert sorted(judged) == sorted(tuple(label) for label in (*expected.labels, *expected.missed))
    same = [passages[row][0] if row >= 0 else None for row in data.identical.tolist()]
    assert same == [expected.identical.get(query.id) for query in expected.queries]
    pool = [] if data.pool is None else list(zip(*(column.tolist() for column in data.pool), strict=True))
    assert pool == sorted(set(pool))
    assert {(queries[query][0], passages[passage][0]) for query, passage in pool} == expected.pool
    texts = [form(full_text(row.title, row.text)) for row in expected.passages]
    copies = np.arange(len(texts)) if data.passage_groups is None else data.passage_groups
    assert copies.tolist() == [texts.index(text) for text in texts]


def assert_counted(report: DataReport, expected: Ingested) -> None:
    """A report has the counts of the expected rows."""
    positives, groups = expected.positives(), expected.groups()
    group_of = {query: number for number, group in enumerate(groups) for query in group}
    texts = [form(full_text(row.title, row.text)) for row in expected.passages]
    assert (report.passages, report.copies) == (len(texts), len(texts) - len(set(texts)))
    assert report.queries == {split: len(expected.of_split(split)) for split in SPLITS}
    assert report.labels == {s: sum(expected.split[label.query] == s for label in expected.labels) for s in SPLITS}
    unanswered = [query for query in expected.queries if query.id not in expected.answered()]
    assert report.without_positive == {s: sum(expected.split[q.id] == s for q in unanswered) for s in SPLITS}
    assert report.twins == sum(len(group) for group in groups if len(group) > 1)
    assert report.isolated_passages == len(texts) - len(set().union(*positives.values()))
    words = {
        "passage": [row.text or row.title for row in expected.passages],
        "query": [q.text for q in expected.queries],
    }
    for what, read in words.items():
        mean = sum(words_in(text) for text in read) / max(len(read), 1)
        assert getattr(report, f"{what}_words") == pytest.approx(mean, abs=1e-9)
    for split in SPLITS:
        for other in SPLITS:
            assert report.recurring[split][other] == sum(
                any(one != two and form(one.text) == form(two.text) for two in expected.of_split(other))
                for one in expected.of_split(split)
            )
    pairs = [(query, passage) for query, passages in positives.items() for passage in passages]
    for split in SPLITS:
        shared = {}
        for query, passage in pairs:
            if expected.split[query] == split:
                others = {group_of[q] for q, p in pairs if p == passage and expected.split[q] == "train"}
                shared[query, passage] = bool(others - {group_of.get(query)})
        warm = {query: any(value for (q, _), value in shared.items() if q == query) for query, _ in shared}
        for shares, plain in ((report.shared_labels, shared), (report.warm_queries, warm)):
            assert shares.get(split) == (np.mean(list(plain.values())) if plain else None)


@settings(max_examples=135, deadline=None, derandomize=True)
@given(data_sets())
def test_data_without_faults_are_kept_whole(data: OddData) -> None:
    expected = ingested(data)
    assert not expected.problems
    with tempfile.TemporaryDirectory() as root:
        folder = write_beir(Path(root) / "data", data)
        if lacks := expected.lacks():
            report = check(folder)
            assert {problem.kind for problem in report.problems} == lacks
        else:
            kept, report = ingest(folder)
            assert not report.problems
            assert_kept(kept, expected)
        assert_counted(report, expected)


@settings(max_examples=90, deadline=None, derandomize=True)
@given(spoilt_data_sets())
def test_bad_rows_are_counted_and_left_out(data: OddData) -> None:
    expected = ingested(data)
    with tempfile.TemporaryDirectory() as root:
        folder = write_beir(Path(root) / "data", data)
        report = check(folder)
        assert {p.kind for p in report.problems if p.fatal} == expected.lacks()
        assert {p.kind: p.count for p in report.problems if not p.fatal} == expected.problems
        for problem in report.problems:
            assert problem.fatal or problem.places[0].split(":")[0] == expected.places[problem.kind]
        assert_counted(report, expected)
        if report.problems:
            with pytest.raises(UserError, match=r"^.+$"):  # one line
                ingest(folder)
        if not report.fatal:
            kept, again = ingest(folder, on_bad_rows="drop")
            assert again == report
            assert_kept(kept, expected)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(data_sets(most=30))
def test_equal_queries_are_in_one_split_whatever_the_order_of_rows(data: OddData) -> None:
    backwards = OddData(data.corpus[::-1], data.queries[::-1], {s: rows[::-1] for s, rows in data.labels.items()})
    splits = []
    with tempfile.TemporaryDirectory() as root:
        for name, rows in (("data", data), ("same", data), ("backwards", backwards)):
            folder = write_beir(Path(root) / name, rows)
            try:
                splits.append(ingest(folder, dev_fraction=0.3)[0])
            except UserError as error:
                assert "is not usable" in str(error)
        assert len(splits) in (0, 3)
        if not splits:
            return
        first, same, other = splits
        assert first.manifest.digest == same.manifest.digest
        split_of: dict[str, str] = {}
        for _, text, split in rows_of(first)[1]:
            assert split_of.setdefault(form(text), split) == split
        for one, two in zip(rows_of(first), rows_of(other), strict=True):
            assert sorted(one) == sorted(two)
