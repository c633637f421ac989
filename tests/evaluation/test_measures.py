import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts import Qrels, Run
from gnn_encoder.evaluation import measures
from gnn_encoder.evaluation.measures import NAMES, labelled_queries, mean_name, per_query

PASSAGES = 40
IDS = [f"p{i}" for i in range(PASSAGES)]
"""Their string order is not their row order: p10 < p2."""
TREC_EVAL = {
    "nDCG@10": "ndcg_cut_10",
    "AP": "map",
    "R@5": "recall_5",
    "R@20": "recall_20",
    "R@50": "recall_50",
    "R@100": "recall_100",
    "R@1000": "recall_1000",
}


@st.composite
def rankings(draw: st.DrawFn) -> tuple[Run, Qrels]:
    """8 queries: some without hits, scores of five values (many ties), graded and zero labels, many unjudged."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    levels = draw(st.integers(1, 5))
    rows: list[list[np.ndarray]] = []
    labels: list[list[np.ndarray]] = []
    for query in range(8):
        judged = generator.choice(PASSAGES, generator.integers(1, 8), replace=False)
        labels.append([np.full(len(judged), query), judged, generator.integers(0, 4, len(judged))])
        if generator.random() < 0.25:
            continue
        hits = generator.choice(PASSAGES, generator.integers(1, PASSAGES), replace=False)
        scores = -np.sort(-generator.integers(0, levels, len(hits)).astype(np.float32))
        rows.append([np.full(len(hits), query), hits, np.arange(1, len(hits) + 1), scores])
    columns = [np.concatenate(c) for c in zip(*rows, strict=True)] if rows else [np.empty(0)] * 4
    run = Run(*(c.astype(t) for c, t in zip(columns, (np.int32, np.int32, np.int32, np.float32), strict=True)))
    return run, Qrels(*(np.concatenate(c).astype(np.int32) for c in zip(*labels, strict=True)))


def dictionaries(run: Run, qrels: Qrels, ids: list[str]) -> tuple[dict, dict]:
    """Labels and scores as pytrec_eval takes them."""
    judged: dict[str, dict[str, int]] = {}
    for q, p, relevance in zip(qrels.query, qrels.passage, qrels.relevance, strict=True):
        judged.setdefault(str(q), {})[ids[p]] = int(relevance)
    scored: dict[str, dict[str, float]] = {}
    for q, p, score in zip(run.query, run.passage, run.score, strict=True):
        scored.setdefault(str(q), {})[ids[p]] = float(score)
    return judged, scored


def trec_eval(run: Run, qrels: Qrels, queries: np.ndarray, ids: list[str]) -> np.ndarray:
    """pytrec_eval called by hand, RR@10 as recip_rank over each query's first ten in trec_eval's own order."""
    judged, scored = dictionaries(run, qrels, ids)
    first_ten = {q: dict(sorted(hits.items(), key=lambda h: (h[1], h[0]))[-10:]) for q, hits in scored.items()}
    rest = pytrec_eval.RelevanceEvaluator(judged, set(TREC_EVAL.values())).evaluate(scored)
    reciprocal = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"}).evaluate(first_ten)
    out = np.zeros((len(queries), len(NAMES)))
    for i, q in enumerate(map(str, queries)):
        if q in rest:
            out[i] = [reciprocal[q]["recip_rank"] if name == "RR@10" else rest[q][TREC_EVAL[name]] for name in NAMES]
    return out


@settings(max_examples=60, deadline=None)
@given(rankings())
def test_measures_equal_trec_eval(case: tuple[Run, Qrels]) -> None:
    run, qrels = case
    queries = np.arange(8)
    ours = per_query(run, qrels, queries, pa.chunked_array([IDS[:13], IDS[13:]]))
    np.testing.assert_allclose(ours, trec_eval(run, qrels, queries, IDS), rtol=0, atol=1e-12)


MORE = ("RR", "RR(rel=2)@5", "nDCG", "nDCG@3", "AP@5", "AP(rel=2)", "P@5", "R(rel=2)@20", "Success@1", "Rprec")


@settings(max_examples=40, deadline=None)
@given(rankings())
def test_other_measures_equal_trec_eval(case: tuple[Run, Qrels]) -> None:
    run, qrels = case
    ids = pa.chunked_array([IDS])
    ours = per_query(run, qrels, np.arange(8), ids, MORE)
    labels, scores = dictionaries(run, qrels, IDS)

    def theirs(measure: str, level: int = 1, first: int | None = None) -> list[float]:
        cut = {
            q: dict(sorted(h.items(), key=lambda x: (x[1], x[0]))[-first:]) if first else h for q, h in scores.items()
        }
        values = pytrec_eval.RelevanceEvaluator(labels, {measure}, relevance_level=level).evaluate(cut)
        (name,) = {name for value in values.values() for name in value} or {""}
        return [values[str(q)][name] if str(q) in values else 0.0 for q in range(8)]

    expected = [
        theirs("recip_rank"), theirs("recip_rank", 2, 5), theirs("ndcg"), theirs("ndcg_cut.3"), theirs("map_cut.5"),
        theirs("map", 2), theirs("P.5"), theirs("recall.20", 2), theirs("success.1"), theirs("Rprec"),
    ]  # fmt: skip
    np.testing.assert_allclose(ours, np.array(expected).T, rtol=0, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(rankings(), st.sampled_from([1, 3, 10, 100]))
def test_judged_is_the_share_of_first_hits_with_any_label(case: tuple[Run, Qrels], k: int) -> None:
    run, qrels = case
    queries = np.array([7, 1, 0, 2, 3, 4, 5, 6])
    ours = per_query(run, qrels, queries, pa.chunked_array([IDS[:13], IDS[13:]]), (f"Judged@{k}", "AP"))[:, 0]
    labels, scores = dictionaries(run, qrels, IDS)
    for query, value in zip(map(str, queries), ours, strict=True):
        first = sorted(scores.get(query, {}).items(), key=lambda x: (x[1], x[0]), reverse=True)[:k]
        assert value == pytest.approx(sum(p in labels[query] for p, _ in first) / max(len(first), 1))


def test_means_have_names_of_their_own() -> None:
    names = ("RR@10", "RR(rel=2)", "AP", "AP@5", "nDCG@10", "R@5", "Rprec", "Answer@5")
    expected = ["MRR@10", "MRR(rel=2)", "MAP", "MAP@5", "nDCG@10", "R@5", "Rprec", "Answer@5"]
    assert [mean_name(name) for name in names] == expected


def tied_run() -> tuple[Run, Qrels]:
    """One query, two passages with the same score, the first of them relevant."""
    run = Run.from_hits(np.array([0]), np.array([[0, 1]]), np.array([[1.0, 1.0]]))
    return run, Qrels(*(np.array([v], dtype=np.int32) for v in (0, 0, 1)))


def test_ties_are_broken_by_descending_text_id() -> None:
    run, qrels = tied_run()
    column = NAMES.index("RR@10")
    assert per_query(run, qrels, np.array([0]), pa.chunked_array([["a", "b"]]))[0, column] == 0.5
    # The control: row numbers and ranks are the same, only the text ids' order is reversed.
    assert per_query(run, qrels, np.array([0]), pa.chunked_array([["b", "a"]]))[0, column] == 1.0


@pytest.mark.parametrize(("rank", "expected"), [(1, 1.0), (3, 1 / 3), (10, 0.1), (11, 0.0), (40, 0.0)])
def test_reciprocal_rank_is_cut_at_ten(rank: int, expected: float) -> None:
    run = Run.from_hits(np.array([0]), np.arange(PASSAGES)[None], -np.arange(PASSAGES, dtype=np.float32)[None])
    qrels = Qrels(*(np.array([v], dtype=np.int32) for v in (0, rank - 1, 1)))
    value = per_query(run, qrels, np.array([0]), pa.chunked_array([IDS]))[0, NAMES.index("RR@10")]
    assert value == pytest.approx(expected, abs=1e-15)


def test_chunks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    scores = np.sort(generator.integers(0, 9, (8, 20)).astype(np.float32), axis=1)[:, ::-1]
    run = Run.from_hits(np.arange(8), generator.permuted(np.tile(np.arange(20), (8, 1)), axis=1), scores)
    labels = generator.integers(0, 20, 8).astype(np.int32)
    qrels = Qrels(np.arange(8, dtype=np.int32), labels, np.ones(8, dtype=np.int32))
    order = generator.permutation(8)
    whole = per_query(run, qrels, order, pa.chunked_array([IDS]))
    assert whole.sum() > 0
    monkeypatch.setattr(measures, "QUERIES", 3)
    np.testing.assert_array_equal(per_query(run, qrels, order, pa.chunked_array([IDS])), whole)


def test_only_queries_with_a_positive_label_count() -> None:
    qrels = Qrels(*(np.array(c, dtype=np.int32) for c in ([4, 2, 2, 7], [0, 1, 2, 3], [0, 1, 2, 1])))
    assert labelled_queries(qrels).tolist() == [2, 7]


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_queries_without_a_hit_count_nothing_wherever_they_stand(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.from_hits(np.array([0]), np.array([[1]]), np.array([[1.0]]))
    qrels = Qrels(*(np.array(column, dtype=np.int32) for column in ([0, 1, 2], [1, 1, 1], [1, 1, 1])))
    monkeypatch.setattr(measures, "QUERIES", chunk)
    values = per_query(run, qrels, np.arange(3), pa.chunked_array([IDS]), ["RR@10", "nDCG@10", "Judged@10"])
    assert values.tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]
