"""Strata of queries and labels against plain loops, with controls that show what a wrong reading would give."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gnn_encoder.artifacts import Dataset, Qrels, Run, drafting
from gnn_encoder.artifacts.extended_dataset import extend_queries
from gnn_encoder.evaluation.measures import per_query
from gnn_encoder.evaluation.results import shares
from gnn_encoder.evaluation.strata import Strata, old_strata, warm_strata

PASSAGES, QUERIES, DEPTH = 16, 30, 12
NAMES = ("RR@10", "nDCG@10", "AP", "R@5")
IDS = pa.chunked_array([[f"p{i:03}" for i in range(PASSAGES)]])
FIRST = 100
"""Row of the first test query."""


def labels(generator: np.random.Generator, queries: range) -> dict[int, dict[int, int]]:
    """Query → {passage: relevance}: one to four labels each, some of them 0 or graded."""
    return {
        query: {
            int(p): int(generator.integers(0, 3))
            for p in generator.choice(PASSAGES, int(generator.integers(1, 5)), replace=False)
        }
        for query in queries
    }


def qrels_of(labels: dict[int, dict[int, int]]) -> Qrels:
    rows = [(query, passage, relevance) for query, of in labels.items() for passage, relevance in of.items()]
    return Qrels(*(np.array(column, np.int32) for column in zip(*rows, strict=True)))


def ranking(generator: np.random.Generator) -> dict[int, list[int]]:
    return {q: generator.permutation(PASSAGES)[:DEPTH].tolist() for q in range(FIRST, FIRST + QUERIES)}


def run_of(hits: dict[int, list[int]]) -> Run:
    scores = np.tile(-np.arange(DEPTH, dtype=np.float32), (len(hits), 1))
    return Run.from_hits(np.array(list(hits)), np.array(list(hits.values())), scores)


def expected(hits: list[int], relevance: dict[int, int]) -> list[float]:
    """The four measures of one ranking, from their definitions."""
    relevant = {p for p, grade in relevance.items() if grade >= 1}
    at = [i + 1 for i, p in enumerate(hits) if p in relevant]
    gains = sum(relevance.get(p, 0) / np.log2(i + 2) for i, p in enumerate(hits[:10]))
    ideal = sum(g / np.log2(i + 2) for i, g in enumerate(sorted(relevance.values(), reverse=True)[:10]))
    precision = sum((n + 1) / rank for n, rank in enumerate(at)) / len(relevant)
    return [1 / at[0] if at and at[0] <= 10 else 0.0, gains / ideal, precision, sum(r <= 5 for r in at) / len(relevant)]


def test_a_measure_that_reads_ranks_counts_them_without_the_other_labels() -> None:
    """Hits: a warm label, a cold one, and no label. Without the warm one the cold one is first."""
    run, short = (
        Run.from_hits(np.array([FIRST]), np.array([hits]), -np.arange(len(hits), dtype=np.float32)[None])
        for hits in ([0, 5, 1], [5, 1])
    )
    qrels = qrels_of({FIRST: {0: 1, 5: 1}})
    names = ("PRES@2", "RR@10")
    rows = np.array([FIRST])
    values = per_query(run, qrels, rows, IDS, names)
    by_stratum = warm_strata(qrels, qrels_of({1: {0: 1}})).measured(values, run, IDS, names)
    alone = per_query(short, qrels_of({FIRST: {5: 1}}), rows, IDS, names)
    assert by_stratum["cold_labels"].tolist() == alone.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("seed", [0, 1])
def test_strata_are_those_of_plain_loops(seed: int) -> None:
    generator = np.random.default_rng(seed)
    train, test = labels(generator, range(6)), labels(generator, range(FIRST, FIRST + QUERIES))
    hits = ranking(generator)
    qrels, run = qrels_of(test), run_of(hits)
    warm_passages = {p for of in train.values() for p, grade in of.items() if grade >= 1}
    assert warm_passages != {p for of in train.values() for p in of}, "a label of 0 makes no passage warm"
    kinds: dict[str, dict[int, dict[int, int]]] = {"warm": {}, "cold": {}, "warm_labels": {}, "cold_labels": {}}
    for query, of in test.items():
        relevant = {p for p, grade in of.items() if grade >= 1}
        if not relevant:
            continue
        kinds["warm" if relevant & warm_passages else "cold"][query] = of
        for name, part in (("warm_labels", relevant & warm_passages), ("cold_labels", relevant - warm_passages)):
            if part:
                kinds[name][query] = {p: grade for p, grade in of.items() if p in part or grade < 1}
    strata = warm_strata(qrels, qrels_of(train))
    values = per_query(run, qrels, strata.queries, IDS, NAMES)
    measured = strata.measured(values, run, IDS, NAMES)
    assert list(measured) == list(kinds)
    for name, of_queries in kinds.items():
        np.testing.assert_array_equal(strata.queries[strata.rows(name)], list(of_queries))
        assert strata.labels[name] == sum(g >= 1 for of in of_queries.values() for g in of.values())
        removed = {q: {p for p, g in test[q].items() if g >= 1 and p not in of} for q, of in of_queries.items()}
        loop = [expected([p for p in hits[q] if p not in removed[q]], of) for q, of in of_queries.items()]
        np.testing.assert_allclose(measured[name], loop, atol=1e-6)
        if name.endswith("labels"):
            kept = [expected(hits[q], of) for q, of in of_queries.items()]
            assert np.abs(measured[name] - kept).max() > 0.001, "the control: other relevant passages are not errors"


def test_a_query_is_new_if_one_of_its_passages_is() -> None:
    qrels = qrels_of({FIRST: {0: 1, 1: 1}, FIRST + 1: {0: 1}, FIRST + 2: {1: 1, 0: 0}})
    strata = old_strata(qrels, np.array([0, 7]))
    rows = {name: of.tolist() for name, of in strata.inside.items()}
    assert rows == {
        "old": [False, True, False], "new": [True, False, True],
        "old_labels": [True, True, False], "new_labels": [True, False, True],
    }  # fmt: skip
    assert strata.labels == {"old": 1, "new": 3, "old_labels": 2, "new_labels": 2}
    warm = warm_strata(qrels, qrels_of({0: {0: 1}}))
    assert warm.rows("warm").tolist() == [True, True, False], "warm is either, old is all"


def test_without_a_query_of_both_kinds_labels_have_no_strata() -> None:
    strata = Strata(qrels_of({FIRST: {0: 1}, FIRST + 1: {2: 1}}), np.array([0]), ("warm", "cold"), "warm")
    assert list(strata.inside) == ["warm", "cold"]
    cold = warm_strata(qrels_of({FIRST: {0: 1}}), qrels_of({0: {1: 1}}))
    assert list(cold.inside) == ["cold"] and not cold.rows("warm").any()


def test_shares_of_better_and_worse_queries() -> None:
    base = np.array([[0.1, 0.0], [0.2, 0.0], [0.3, 0.5], [0.1 + 0.2, 1.0]])
    values = {"plain": base, "other": np.array([[0.2, 0.0], [0.1, 0.0], [0.4, 0.25], [0.3, 1.0]])}
    assert shares(values, ("RR@10", "AP"), baseline="plain") == {
        "better": {"other": {"RR@10": 0.5, "AP": 0.0}},
        "worse": {"other": {"RR@10": 0.25, "AP": 0.25}},
    }
    assert shares({"plain": base}, ("RR@10", "AP"), baseline="plain") == {"better": {}, "worse": {}}


def test_queries_that_a_generator_wrote_beside_peoples_warm_no_passage(tiny_dataset: Dataset, tmp_path: Path) -> None:
    test, people = tiny_dataset.judged("test"), tiny_dataset.split_qrels("train")
    of_people = warm_strata(test, people).rows("warm")
    everything = [[row] for row in range(len(tiny_dataset.passages))]
    texts = [f"written for {row}" for row in range(len(everything))]

    def extended(data: Dataset, name: str) -> Dataset:
        splits, none = ["train"] * len(texts), [-1] * len(texts)
        with drafting(tmp_path / name, "dataset") as draft:
            extend_queries(draft, data, texts, splits, everything, none, np.zeros(0, np.int32), False)
        return Dataset(tmp_path / name)

    both = extended(tiny_dataset, "both")
    assert len(both.written_rows("train")) == len(texts) and not len(both.written_rows("test"))
    assert not of_people.all()
    np.testing.assert_array_equal(warm_strata(test, both.seen_labels).rows("warm"), of_people)
    assert warm_strata(test, both.split_qrels("train")).rows("warm").all(), "the control: all passages have a query"
