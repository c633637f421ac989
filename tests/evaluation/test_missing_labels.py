"""Labels of passages that the corpus lacks count as missed: figures equal pytrec_eval with the labels as given."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval
from beir_folder import ingested, lines, write_beir
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts import Dataset, Evaluation, Run, drafting
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.compare import compare
from gnn_encoder.evaluation.documents import Documents
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.evaluation.results import split_digest
from gnn_encoder.retrieval.first_stage import dev_figures
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.steps.evaluate import evaluate

PASSAGES, QUERIES, LACKED = 20, 8, 12
TREC_EVAL = {"nDCG@10": "ndcg_cut_10", "AP": "map", "R@5": "recall_5", "R@100": "recall_100", "RR": "recip_rank"}
Labels = dict[str, dict[str, int]]


def random_labels(generator: np.random.Generator, split: str) -> Labels:
    """Labels of 0 to 3 for passages p0 … p31, of which the corpus has 20; some queries have missing passages alone."""
    labels: Labels = {}
    for query in range(QUERIES):
        first = PASSAGES if generator.random() < 0.25 else 0
        passages = generator.choice(np.arange(first, PASSAGES + LACKED), generator.integers(1, 7), replace=False)
        labels[f"{split}{query}"] = {f"p{p}": int(generator.integers(0, 4)) for p in passages}
    return labels


def write(folder: Path, labels: dict[str, Labels]) -> Path:
    """A BEIR folder with these labels of its splits, and labels of two training queries."""
    labels = {"train": {"train0": {"p0": 1, "p30": 1}, "train1": {"p1": 1}, "train2": {"p31": 1}}, **labels}
    texts = [{"_id": f"p{i}", "title": "", "text": f"text {i}"} for i in range(PASSAGES)]
    queries = [{"_id": name, "text": f"question {name}"} for of in labels.values() for name in of]
    rows = {
        split: [(query, *label) for query, ps in of.items() for label in ps.items()] for split, of in labels.items()
    }
    return write_beir(folder, lines(texts), lines(queries), rows)


def read(folder: Path) -> tuple[Dataset, list[str]]:
    data, report = ingested(Ingest(dataset=str(folder), on_bad_rows="drop"), folder / "dataset")
    return data, report.remarks


def ranking(data: Dataset, generator: np.random.Generator) -> Run:
    """Random hits, with ties, of all queries but each fifth."""
    queries = np.array([row for row in range(len(data.queries)) if row % 5])
    hits = np.argsort(generator.random((len(queries), PASSAGES)), axis=1)[:, :12]
    scores = -np.sort(-generator.integers(0, 6, hits.shape), axis=1)
    return Run.from_hits(queries, hits, scores.astype(np.float32))


def by_pytrec_eval(data: Dataset, run: Run, labels: Labels, document: dict[str, str] | None = None) -> np.ndarray:
    """The measures [n, 5] of the queries with a positive label, of passages or of documents."""
    ids, names = data.queries.column("query_id").to_pylist(), data.passages.ids().to_pylist()
    scores: dict[str, dict[str, float]] = {}
    for query, passage, score in zip(run.query, run.passage, run.score, strict=True):
        name = names[passage] if document is None else document[names[passage]]
        of = scores.setdefault(ids[query], {})
        of[name] = max(float(score), of.get(name, -1.0))
    judged: Labels = {}
    for query, of_query in labels.items():
        for passage, label in of_query.items():
            name = passage if document is None else document.get(passage, passage)
            known = judged.setdefault(query, {})
            known[name] = max(label, known.get(name, -1))
    measured = pytrec_eval.RelevanceEvaluator(judged, set(TREC_EVAL.values())).evaluate(scores)
    wanted = [query for query in ids if any(label > 0 for label in judged.get(query, {}).values())]
    return np.array([[measured.get(query, {}).get(name, 0.0) for name in TREC_EVAL.values()] for query in wanted])


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_figures_equal_those_of_trec_eval_with_the_given_labels(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    labels = {split: random_labels(generator, split) for split in ("dev", "test")}
    data, _ = read(write(tmp_path_factory.mktemp("missing") / "data", labels))
    run, ids = ranking(data, generator), data.judged_ids()
    document = {f"p{i}": f"d{i // 3}" for i in range(PASSAGES)}
    documents = Documents(np.arange(PASSAGES, dtype=np.int32) // 3, pa.chunked_array([[f"d{i}" for i in range(7)]]))
    for split, given_labels in labels.items():
        judged = data.judged(split)
        queries = labelled_queries(judged)
        expected = by_pytrec_eval(data, run, given_labels)
        assert len(queries) == len(expected), "a query with missing passages alone is measured, too"
        figures = per_query(run, judged, queries, ids, tuple(TREC_EVAL))
        np.testing.assert_allclose(figures, expected, atol=1e-12)
        of_documents = per_query(run, judged, queries, ids, ("nDCG(doc)@10", "AP(doc)"), documents)
        np.testing.assert_allclose(of_documents, by_pytrec_eval(data, run, given_labels, document)[:, :2], atol=1e-12)
        # PRES by its definition: relevant passages that are not found have the ranks behind the last one.
        pres = per_query(run, judged, queries, ids, ("PRES@5",))[:, 0]
        recall = per_query(run, judged, queries, ids, ("R@5",))[:, 0]
        assert ((pres <= recall + 1e-12) & ((pres > 0) == (recall > 0))).all()
    positive = data.judged("dev").positive()
    first = [run.hits(np.array([query]), 100)[0].tolist() for query in np.unique(positive.query)]
    shares = [
        len(set(hits) & set(positive.passage[positive.query == query].tolist())) / (positive.query == query).sum()
        for query, hits in zip(np.unique(positive.query), first, strict=True)
    ]
    assert dev_figures(data, run)["dev/R_at_100"] == pytest.approx(np.mean(shares))


LABELS: dict[str, Labels] = {
    "dev": {"dev0": {"p4": 1}, "dev1": {"p25": 2, "p5": 1}},
    "test": {"test0": {"p2": 1, "p21": 1}, "test1": {"p22": 3}, "test2": {"p3": 1, "p23": 0}},
}


def test_labels_of_training_queries_are_left_out(tmp_path: Path) -> None:
    data, remarks = read(write(tmp_path / "data", LABELS))
    assert data.judged("train").passage.tolist() == data.split_qrels("train").passage.tolist() == [0, 1]
    assert "train2" not in data.queries.column("query_id").to_pylist(), "it has no other label"
    assert "4 labels of dev or test name a passage that the corpus lacks: they count as missed" in remarks
    with pytest.raises(UserError, match="6 × label of an unknown passage"):
        ingested(Ingest(dataset=str(tmp_path / "data")), tmp_path / "refused")


def test_dev_queries_that_are_drawn_from_train_keep_such_labels(tmp_path: Path) -> None:
    train = {f"train{i}": {f"p{i % 19}": 1, "p27": 1} for i in range(40)}
    data, _ = read(write(tmp_path / "data", {"train": train, "test": LABELS["test"]}))
    dev = data.query_rows("dev")
    assert 0 < len(dev) < 40
    assert len(data.judged("dev").query) == 2 * len(dev)
    assert len(data.judged("train").query) == 40 - len(dev)


def test_the_digest_of_a_split_sees_them(tmp_path: Path) -> None:
    def digest(name: str, **labels: Labels) -> str:
        return split_digest(read(write(tmp_path / name, LABELS | labels))[0], "test")

    assert digest("one") == digest("other dev", dev={"dev0": {"p29": 1, "p4": 1}})
    changed = {**LABELS["test"], "test1": {"p24": 3}}
    assert len({digest("a"), digest("b", test=changed), digest("c", test={**changed, "test1": {"p24": 2}})}) == 3


def test_the_evaluation_says_how_many_labels_are_missing(tmp_path: Path) -> None:
    data, _ = read(write(tmp_path / "data", LABELS))
    generator = np.random.default_rng(0)
    for system in ("first", "second"):
        with drafting(tmp_path / system, "run") as draft:
            ranking(data, generator).write(draft, system)
    chosen = Evaluate(baseline="first", candidate="second", permutations=20, resamples=20, measures="nDCG@10 AP R@100")
    evaluate(
        chosen, dataset=data.path, runs=[tmp_path / "first", tmp_path / "second"], evaluation=tmp_path / "evaluation"
    )
    evaluation = Evaluation.read(tmp_path / "evaluation")
    missed = "name a passage that the corpus lacks: they count as missed, as trec_eval counts them"
    assert evaluation.metrics["remarks"][0] == f"1 of 3 dev labels {missed}"
    assert (
        f"2 of 4 test labels {missed}; 1 queries have no other relevant passage and count 0"
        in evaluation.metrics["remarks"]
    )
    assert evaluation.metrics["queries"] == {"dev": 2, "test": 3}
    expected = by_pytrec_eval(data, Run.read(tmp_path / "first"), LABELS["test"])
    figures = np.stack([evaluation.figures("test", "first", name) for name in ("nDCG@10", "AP", "R@100")], axis=1)
    np.testing.assert_allclose(figures, expected[:, [0, 1, 3]], atol=1e-12)
    assert evaluation.metrics["strata"]["cold"]["queries"]["test"] == 3
    # The files that the report has for other programs give the same figures.
    runs = tmp_path / "evaluation" / "runs"
    again = compare([runs / "first.trec.gz"], runs / "test.qrels.gz", ("AP",))
    assert again["results"]["first"]["AP"] == pytest.approx(expected[:, 1].mean())
    assert (
        json.loads((tmp_path / "evaluation" / "metrics.json").read_text())["remarks"] == evaluation.metrics["remarks"]
    )
