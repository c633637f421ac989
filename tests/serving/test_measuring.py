"""`evaluate` on queries and labels in memory, against pytrec_eval on what the retriever finds."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval

from gnn_encoder import Retriever, UserError, evaluate
from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.history import Record
from gnn_encoder.evaluation.measures import mean_name

MEASURES = {"RR": "recip_rank", "nDCG@10": "ndcg_cut_10", "AP": "map", "R@100": "recall_100", "P@5": "P_5"}
"""Measure → its name in trec_eval."""


@pytest.fixture(scope="module")
def queries_and_labels(tiny_dataset: Dataset) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Queries and graded labels; the last query has no positive one, and p999 is in no corpus."""
    ids = tiny_dataset.queries.column("query_id").to_pylist()[:20]
    queries = dict(zip(ids, tiny_dataset.queries.column("text").to_pylist(), strict=False))
    labels = {query: {f"p{7 * row}": 1, f"p{row}": 2, "p999": 1} for row, query in enumerate(ids[:-3], 1)}
    return queries, {**labels, ids[-1]: {"p1": 0}}


@pytest.mark.parametrize("name", ["vectors", "both", "words"])
def test_means_are_those_of_pytrec_eval(
    name: str, bundles: dict[str, Path], queries_and_labels: tuple[dict[str, str], dict[str, dict[str, int]]]
) -> None:
    retriever, (queries, labels) = Retriever.load(bundles[name]), queries_and_labels
    labelled = {query: of for query, of in labels.items() if max(of.values()) > 0}
    hits = retriever.search([queries[query] for query in labelled], 100)
    scores = {query: {hit.passage_id: hit.score for hit in of} for query, of in zip(labelled, hits, strict=True)}
    values = pytrec_eval.RelevanceEvaluator(labelled, set(pytrec_eval.supported_measures)).evaluate(scores).values()
    # A batch of queries changes the last bits of vectors, thus the order of some late hits.
    expected = {
        mean_name(measure): pytest.approx(np.mean([of_query[name] for of_query in values]), abs=1e-3)
        for measure, name in MEASURES.items()
    }
    assert evaluate(retriever, queries, labels, [*MEASURES]) == expected
    shifted = dict(zip(labels, reversed(labels.values()), strict=True))
    assert evaluate(retriever, queries, shifted, [*MEASURES]) != expected, "a control"


@pytest.mark.parametrize("settings", [None, {"ignore_identical_ids": True}, {}])
def test_a_passage_with_the_querys_own_id_is_no_hit(
    settings: dict[str, bool] | None, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a bundle from before there was the setting."""
    history = {} if settings is None else {"ingest": Record(settings)}
    monkeypatch.setattr("gnn_encoder.notebook.measuring.read_history", lambda _: history)
    retriever = Retriever.load(bundles["vectors"])  # BM25 has equal scores
    first, second = (hit.passage_id for hit in retriever.search("the old river", 2))

    def reciprocal(query: str, passage: str) -> float:
        return evaluate(retriever, {query: "the old river"}, {query: [passage]}, ["RR@10"])["MRR@10"]

    assert [reciprocal("q", second), reciprocal(first, second), reciprocal(first, first)] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("queries", "labels", "measures", "message"),
    [
        ({"q": "x"}, {"other": ["p1"]}, ["AP"], "label of query 'other', which queries lack"),
        ({"q": "x"}, {"q": ["9"]}, ["AP"], "are the ids those of its corpus"),
        ({"q": "x"}, {}, ["AP"], "are the ids those of its corpus"),
        ({"q": "x"}, {"q": {"p1": 0}}, ["AP"], "no label above 0"),
        ({"q": "x"}, {"q": {"p1": 0.5}}, ["AP"], "relevance of query 'q' that is not an integer"),
        ({"q": "x"}, {"q": {"p1": "high"}}, ["AP"], "relevance of query 'q' that is not an integer"),
        ({"q": float("nan")}, {"q": ["p1"]}, ["AP"], "a value at 'q' that is no text"),
        (["x"], [["p1"]], ["AP"], "labels are a list"),
        ({"q": "x"}, {"q": ["p1"]}, ["MRR@10"], "MRR@10 is no measure known here"),
        ({"q": "x"}, {"q": ["p1"]}, ["R(doc)@10"], "needs documents"),
    ],
)
def test_what_is_not_usable_is_one_line(
    queries: Any, labels: Any, measures: list[str], message: str, bundles: dict[str, Path]
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        evaluate(Retriever.load(bundles["words"]), queries, labels, measures)
    assert "\n" not in str(caught.value)
