"""PRES, MAP(D), PREC(D) and measures of documents: cases by hand, plain loops on random rankings, and controls."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts import Qrels, Run
from gnn_encoder.evaluation.documents import Documents
from gnn_encoder.evaluation.measures import per_query

PASSAGES, DOCUMENTS, QUERIES = 30, 7, 6
IDS = [f"p{i}" for i in range(PASSAGES)]
"""Their string order is not their row order: p10 < p2. So it is with the documents' ids."""
DOCUMENT_IDS = [f"d{i * 3}" for i in range(DOCUMENTS)]
NAMES = (
    "PRES@5", "PRES@100", "PRES(rel=2)@10", "PRES(doc)@3", "PRES(doc)@100", "PRES(doc,rel=2)@4",
    "MAP(D)", "PREC(D)", "MAP(D)@6", "PREC(D)@6", "MAP(D,rel=2)", "PREC(D,rel=2)@9",
    "R(doc)@3", "AP(doc)@4", "AP(doc)", "nDCG(doc)@3", "RR(doc)@2", "P(doc,rel=2)@2", "Rprec(doc)",
)  # fmt: skip


class Case:
    """A random ranking: ties, queries without hits or labels, graded labels, passages of the same document."""

    def __init__(self, seed: int, levels: int) -> None:
        generator = np.random.default_rng(seed)
        self.document = generator.integers(0, DOCUMENTS, PASSAGES).astype(np.int32)
        self.scores: dict[int, dict[int, float]] = {}
        self.labels: dict[int, dict[int, int]] = {}
        for query in range(QUERIES):
            judged = generator.choice(PASSAGES, generator.integers(0, 9), replace=False)
            self.labels[query] = {int(p): int(generator.integers(-1, 4)) for p in judged}
            hit_rows = generator.choice(PASSAGES, generator.integers(0, PASSAGES), replace=False)
            self.scores[query] = {int(p): float(generator.integers(0, levels)) for p in hit_rows}

    def run(self) -> Run:
        hits = [(q, p, s) for q, of in self.scores.items() for p, s in of.items()]
        query, passage, score = (np.array([hit[i] for hit in hits]) for i in range(3))
        return Run.by_score(query.astype(np.int32), passage.astype(np.int32), score.astype(np.float32))

    def qrels(self) -> Qrels:
        rows = [(q, p, label) for q, of in self.labels.items() for p, label in of.items()]
        return Qrels(*np.array(rows, dtype=np.int32).reshape(-1, 3).T)

    def documents(self) -> Documents:
        return Documents(self.document, pa.chunked_array([DOCUMENT_IDS[:2], DOCUMENT_IDS[2:]]))

    def ranked(self, query: int, by_document: bool) -> list[int]:
        """Passages or documents of a query, best first, ties by descending text id."""
        if not by_document:
            return sorted(self.scores[query], key=lambda p: (self.scores[query][p], IDS[p]), reverse=True)
        best: dict[int, float] = {}
        for passage, score in self.scores[query].items():
            of = int(self.document[passage])
            best[of] = max(score, best.get(of, score))
        return sorted(best, key=lambda d: (best[d], DOCUMENT_IDS[d]), reverse=True)

    def of_documents(self, query: int) -> dict[int, int]:
        """Labels of documents."""
        hit_rows: dict[int, int] = {}
        for passage, label in self.labels[query].items():
            of = int(self.document[passage])
            hit_rows[of] = max(label, hit_rows.get(of, label))
        return hit_rows


def pres_by_hand(ranked: list[int], labels: dict[int, int], k: int, level: int) -> float:
    """Magdy and Jones: what is not among the first k gets the ranks k + i, i counting all relevant ones."""
    relevant = {entry for entry, label in labels.items() if label >= level}
    if not relevant:
        return 0.0
    ranks = [rank for rank, entry in enumerate(ranked[:k], start=1) if entry in relevant]
    ranks += [k + i for i in range(len(ranks) + 1, len(relevant) + 1)]
    n = len(relevant)
    return 1 - (sum(ranks) / n - (n + 1) / 2) / k


def within_by_hand(case: Case, query: int, k: int, level: int) -> tuple[float, float]:
    relevant = {p for p, label in case.labels[query].items() if label >= level}
    of_documents = sorted({int(case.document[p]) for p in relevant})
    ranked = case.ranked(query, by_document=False)[: k or None]
    average, precision = [], []
    for document in of_documents:
        listed = [p for p in ranked if case.document[p] == document]
        wanted = {p for p in relevant if case.document[p] == document}
        total, right = 0.0, 0
        for position, passage in enumerate(listed, start=1):
            if passage in wanted:
                right += 1
                total += right / position
        average.append(total / len(wanted))
        precision.append(right / len(listed) if listed else 0.0)
    if not of_documents:
        return 0.0, 0.0
    return sum(average) / len(of_documents), sum(precision) / len(of_documents)


def of_trec_eval(case: Case, query: int, measure: str, level: int = 1, first: int | None = None) -> float:
    """trec_eval on the ranking of documents, which is written by hand; scores fall by one per rank."""
    ranked = case.ranked(query, by_document=True)[:first]
    scores = {DOCUMENT_IDS[d]: float(-rank) for rank, d in enumerate(ranked)}
    labels = {DOCUMENT_IDS[d]: label for d, label in case.of_documents(query).items()}
    if not scores or not labels:
        return 0.0
    (values,) = (
        pytrec_eval.RelevanceEvaluator({"q": labels}, {measure}, relevance_level=level).evaluate({"q": scores}).values()
    )
    return float(next(iter(values.values())))


def by_hand(case: Case, query: int) -> list[float]:
    def pres(k: int, level: int = 1, by_document: bool = False) -> float:
        labels = case.of_documents(query) if by_document else case.labels[query]
        return pres_by_hand(case.ranked(query, by_document), labels, k, level)

    trec: Callable[..., float] = lambda *rest: of_trec_eval(case, query, *rest)  # noqa: E731
    return [
        pres(5), pres(100), pres(10, 2), pres(3, 1, True), pres(100, 1, True), pres(4, 2, True),
        *within_by_hand(case, query, 0, 1), *within_by_hand(case, query, 6, 1),
        within_by_hand(case, query, 0, 2)[0], within_by_hand(case, query, 9, 2)[1],
        trec("recall.3"), trec("map_cut.4"), trec("map"), trec("ndcg_cut.3"), trec("recip_rank", 1, 2),
        trec("P.2", 2), trec("Rprec"),
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.permutations(range(QUERIES)))
def test_every_measure_equals_the_plain_loop(seed: int, levels: int, order: list[int]) -> None:
    case = Case(seed, levels)
    ids = pa.chunked_array([IDS[:11], IDS[11:]])
    ours = per_query(case.run(), case.qrels(), np.array(order), ids, NAMES, case.documents())
    np.testing.assert_allclose(ours, [by_hand(case, query) for query in order], rtol=0, atol=1e-12)


def test_the_loop_sees_wrong_documents_and_wrong_ties() -> None:
    """The control: each measure that depends on documents, or on the order of ties, differs somewhere."""
    ids, queries = pa.chunked_array([IDS]), np.arange(QUERIES)
    of_documents, of_ties = np.zeros(len(NAMES)), np.zeros(len(NAMES))
    for seed in range(20):
        case = Case(seed, 3)
        expected = np.array([by_hand(case, query) for query in queries])
        run, qrels, documents = case.run(), case.qrels(), case.documents()
        moved = Documents(np.roll(case.document, 1), documents.ids)
        renamed = Documents(case.document, pa.chunked_array([DOCUMENT_IDS[::-1]]))
        of_documents += np.abs(per_query(run, qrels, queries, ids, NAMES, moved) - expected).max(axis=0)
        of_ties += np.abs(per_query(run, qrels, queries, pa.chunked_array([IDS[::-1]]), NAMES, renamed) - expected).max(
            axis=0
        )
    assert [name for name, off in zip(NAMES, of_documents, strict=True) if off < 1e-3] == list(NAMES[:3])
    # Without a cut-off, what a document lists does not depend on the order.
    assert [name for name, off in zip(NAMES, of_ties, strict=True) if off < 1e-3] == ["PREC(D)"]


def one(
    ranked: list[int], relevant: dict[int, int], names: tuple[str, ...], document: list[int] | None = None
) -> list[float]:
    """Measures of one query; passages are ranked in the order of the list."""
    scores = -np.arange(len(ranked), dtype=np.float32)[None]
    run = Run.from_hits(np.array([0]), np.array([ranked]), scores)
    qrels = Qrels(*(np.array(c, dtype=np.int32) for c in ([0] * len(relevant), [*relevant], [*relevant.values()])))
    documents = document or list(range(PASSAGES))
    held = Documents(np.array(documents, dtype=np.int32), pa.chunked_array([[f"d{i}" for i in range(PASSAGES)]]))
    return per_query(run, qrels, np.array([0]), pa.chunked_array([IDS]), names, held)[0].tolist()


def test_limits_of_pres() -> None:
    names = ("PRES@10", "PRES(doc)@10")
    assert one([3, 4, 5, 0, 1], {3: 1, 4: 1, 5: 2}, names) == pytest.approx([1.0, 1.0])
    assert one(list(range(20)), {12: 1, 19: 1, 25: 1}, names) == pytest.approx([0.0, 0.0], abs=1e-12)
    assert one([0, 1], {25: 1}, names) == pytest.approx([0.0, 0.0], abs=1e-12)  # a run shorter than N_max
    assert one([0, 1, 2], {0: 0}, names) == [0.0, 0.0]  # no relevant passage
    # More relevant entries than N_max, all of the first N_max relevant: the recall.
    assert one(list(range(20)), dict.fromkeys(range(20), 1), names) == pytest.approx([0.5, 0.5])


def test_pres_by_hand() -> None:
    # Two of n = 3 are found, at ranks 2 and 4 of N_max = 10; the third counts as at rank 10 + 3.
    expected = 1 - ((2 + 4 + 13) / 3 - 2) / 10
    assert one([9, 0, 8, 1, 7], {0: 1, 1: 1, 2: 1}, ("PRES@10",)) == pytest.approx([expected])
    assert expected == pytest.approx(0.5667, abs=1e-4)


@pytest.mark.parametrize("relevant_hits", [1, 2, 5])
def test_pres_lies_between_its_bounds_for_a_recall(relevant_hits: int) -> None:
    """Magdy and Jones: from n R² / N_max to R, at both ends exactly."""
    n, k = 5, 12
    relevant, others = dict.fromkeys(range(n), 1), list(range(10, 10 + k))
    best = list(range(relevant_hits)) + others[relevant_hits:]
    worst = others[: k - relevant_hits] + list(range(relevant_hits))
    recall = relevant_hits / n
    assert one(best, relevant, (f"PRES@{k}", f"R@{k}")) == pytest.approx([recall, recall])
    assert one(worst, relevant, (f"PRES@{k}", f"R@{k}")) == pytest.approx([n * recall**2 / k, recall])


def test_within_documents_by_hand() -> None:
    # Documents: 0–3, 4–7, 8–11 …; the ranking has three passages of document 0, two of document 1, none of document 2.
    document = [i // 4 for i in range(PASSAGES)]
    ranked = [1, 20, 0, 4, 2, 5, 21]
    relevant = {0: 1, 2: 1, 4: 2, 9: 1, 20: 0}
    first = (1 / 2 + 2 / 3) / 2, 2 / 3  # passage 1, then 0 and 2
    second = 1.0, 1 / 2  # passage 4, then 5
    expected = [(a + b + 0.0) / 3 for a, b in zip(first, second, strict=True)]
    assert one(ranked, relevant, ("MAP(D)", "PREC(D)"), document) == pytest.approx(expected)
    # Of the first four hits, document 0 has passages 1 and 0, document 1 has passage 4.
    cut = [(1 / 2 / 2 + 1.0) / 3, (1 / 2 + 1.0) / 3]
    assert one(ranked, relevant, ("MAP(D)@4", "PREC(D)@4"), document) == pytest.approx(cut)
    assert one(ranked, {20: 0}, ("MAP(D)", "PREC(D)"), document) == [0.0, 0.0]
    # Passages of other documents between them change nothing.
    dense = [1, 0, 4, 2, 5]
    assert one(dense, relevant, ("MAP(D)", "PREC(D)"), document) == pytest.approx(expected)


def test_a_document_is_as_good_as_its_best_passage() -> None:
    document = [0, 0, 1, 1, 2, 2, *range(3, PASSAGES - 3)]
    names = ("RR(doc)", "R(doc)@1", "R(doc)@2", "AP(doc)@100", "RR")
    # Passage 3 alone is relevant; passage 2 of the same document is second.
    assert one([0, 2, 1, 4, 3], {3: 1, 2: 0}, names, document) == pytest.approx([1 / 2, 0.0, 1.0, 1 / 2, 1 / 5])


def test_an_empty_run_counts_nothing() -> None:
    empty = Run(*(np.empty(0, dtype) for dtype in (np.int32, np.int32, np.int32, np.float32)))
    case = Case(1, 3)
    figures = per_query(empty, case.qrels(), np.arange(QUERIES), pa.chunked_array([IDS]), NAMES, case.documents())
    np.testing.assert_allclose(figures, 0.0, atol=1e-12)


def test_hits_of_other_queries_count_nothing() -> None:
    case, ids = Case(8, 4), pa.chunked_array([IDS])
    whole = per_query(case.run(), case.qrels(), np.arange(QUERIES), ids, NAMES, case.documents())
    some = per_query(case.run(), case.qrels(), np.array([4, 1]), ids, NAMES, case.documents())
    np.testing.assert_array_equal(some, whole[[4, 1]])
