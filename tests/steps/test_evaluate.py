"""The figures of runs from first principles, and the data and runs that need care."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bundles import fill_bundle
from evaluation_inputs import one_passage_dataset, rewritten
from rich.console import Console
from scipy.stats import ttest_rel

from gnn_encoder.artifacts import Dataset, DatasetWriter, Evaluation, Report, Run, drafting
from gnn_encoder.artifacts.digests import text_digests
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.compare import compare
from gnn_encoder.evaluation.documents import Documents, Membership
from gnn_encoder.evaluation.measures import labelled_queries, per_query
from gnn_encoder.evaluation.remarks import hit_remarks
from gnn_encoder.evaluation.results import split_digest
from gnn_encoder.models.address import AddressEncoder
from gnn_encoder.report.cost import costs
from gnn_encoder.report.table import run_table
from gnn_encoder.settings import outcome
from gnn_encoder.settings.outcome import Evaluate, Fuse
from gnn_encoder.steps.evaluate import evaluate
from gnn_encoder.steps.fuse import fuse
from gnn_encoder.steps.report import report

BM25, BASELINE, CANDIDATE = "BM25", "Dual encoder", "GNN-encoder"


def test_reading_a_stored_vector_is_not_what_a_question_costs(tiny_dataset: Dataset, tmp_path: Path) -> None:
    encoder, questions = AddressEncoder("http://127.0.0.1:9/v1", "m", 4, True), ["what is a river"]
    encoder.store(text_digests(questions), np.ones((1, 4), np.float32))
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, np.ones((len(tiny_dataset.passages), 4), np.float32), tiny_dataset, encoder.save)
    assert costs([tmp_path / "bundle"], {}, questions) == {}


def test_queries_are_warm_where_a_training_query_has_one_of_their_passages(tmp_path: Path) -> None:
    # Query → {passage: relevance}; p5 has a training query that it is not relevant to.
    labels = [{0: 1}, {1: 1, 5: 0}, {0: 1}, {5: 1}, {1: 1, 4: 1}, {4: 1}, {0: 0, 3: 1}]
    with drafting(tmp_path / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(6)], [""] * 6, [f"the old stone {i}" for i in range(6)])
        texts, splits = [f"a stone {i}" for i in range(7)], ["train"] * 2 + ["test"] * 5
        writer.queries([f"q{i}" for i in range(7)], texts, splits, [[]] * 7)
        for query, of in enumerate(labels):
            for passage, relevance in of.items():
                writer.qrels([f"q{query}"], [f"p{passage}"], [relevance], [query], [passage])
        writer.close()
    queries, ranks = np.arange(2, 7), {"first": [1, 1, 1, 2, 3], "second": [2, 4, 2, 1, 1]}
    for system, rank in ranks.items():
        hits = np.stack([np.roll(np.arange(6), r - 1 - max(labels[q])) for q, r in zip(queries, rank, strict=True)])
        with drafting(tmp_path / system, "run") as draft:
            Run.from_hits(queries, hits, np.tile(-np.arange(6.0), (5, 1))).write(draft, system)
    settings = Evaluate(baseline="first", candidate="second", permutations=50, resamples=50, measures="RR(rel=1)@10 AP")
    evaluate(
        settings, dataset=tmp_path / "dataset", runs=[tmp_path / s for s in ranks], evaluation=tmp_path / "evaluation"
    )
    evaluation = Evaluation.read(tmp_path / "evaluation")
    for name, places in (("warm", [0, 2]), ("cold", [1, 3, 4])):
        block = evaluation.metrics["strata"][name]
        assert block["queries"] == {"test": len(places)} and block["measures"] == ["RR(rel=1)@10", "AP"]
        assert block["labels"] == {"test": sum(r > 0 for i in places for r in labels[queries[i]].values())}
        worse = np.mean([ranks["second"][i] > ranks["first"][i] for i in places])
        assert block["worse"]["test"]["second"]["RR(rel=1)@10"] == pytest.approx(worse)
        assert evaluation.manifest.metrics[f"test/second/{name}/worse/RR(rel=1)@10"] == pytest.approx(worse)
        assert f"test/second/{name}/AP" in evaluation.manifest.metrics
        for system, rank in ranks.items():
            expected = np.mean([1 / reciprocal(labels[queries[i]], rank[i]) for i in places])
            assert block["results"]["test"][system]["RR(rel=1)@10"] == pytest.approx(expected)
            assert evaluation.manifest.metrics[f"test/{system}/{name}/RR(rel=1)@10"] == pytest.approx(expected)
    assert set(evaluation.metrics["strata"]["cold"]["p_holm"]["test"]) == {"second"}
    assert list(evaluation.metrics["strata"]) == ["warm", "cold", "warm_labels", "cold_labels"]
    assert [block["queries"]["test"] for block in evaluation.metrics["strata"].values()] == [2, 3, 2, 4]
    by_query = {row["query_id"]: row["warm"] for row in evaluation.per_query.to_pylist()}
    assert by_query == {"q2": True, "q3": False, "q4": True, "q5": False, "q6": False}


def reciprocal(labels: dict[int, int], rank: int) -> int:
    """The rank of the first relevant passage, where the last one has `rank` and the others follow by number."""
    last = max(labels)
    return min((passage - last + rank - 1) % 6 + 1 for passage, relevance in labels.items() if relevance)


def test_digest_sees_what_figures_depend_on(tmp_path: Path) -> None:
    def digest(name: str, **what: object) -> str:
        return split_digest(one_passage_dataset(tmp_path / name, **{"split": "test", "relevance": 1, **what}), "test")

    assert digest("a") == digest("b")
    assert len({digest("c"), digest("d", relevance=2), digest("e", text="a cloud"), digest("f", split="dev")}) == 4


def ranked_run(data: Dataset, path: Path, generator: np.random.Generator) -> Path:
    """A run of random hits with ties."""
    scores = -np.sort(-generator.integers(0, 20, (len(data.queries), 40)).astype(np.float32), axis=1)
    hits = np.argsort(generator.random((len(scores), len(data.passages))), axis=1)[:, :40]
    with drafting(path, "run") as draft:
        Run.from_hits(np.arange(len(scores)), hits, scores).write(draft, path.name)
    return path


OF_DOCUMENTS = ("PRES(doc)@5", "R(doc)@5", "AP(doc)@5", "MAP(D)", "PREC(D)", "RR@10")


def test_measures_of_documents_have_statistics_like_any_other(
    tiny_dataset: Dataset, tiny_documents: Dataset, tmp_path: Path
) -> None:
    generator, m = np.random.default_rng(0), len(tiny_dataset.passages)
    runs = [ranked_run(tiny_dataset, tmp_path / name, generator) for name in ("first", "second", "third")]
    document = np.arange(m) // 4
    ids = pa.chunked_array([[f"d{i}" for i in range(m // 4)]])
    settings = Evaluate(
        baseline="first", candidate="second", resamples=50, measures=OF_DOCUMENTS, test="t", run_depth=1000
    )
    inputs = {"dataset": tiny_dataset.path, "runs": runs}
    with pytest.raises(UserError, match=r"PRES\(doc\)@5, R\(doc\)@5, AP\(doc\)@5, MAP\(D\), PREC\(D\): nothing in"):
        evaluate(settings, **inputs, evaluation=tmp_path / "refused")
    inputs["dataset"] = tiny_documents.path
    evaluate(settings, **inputs, evaluation=tmp_path / "evaluation")
    evaluation = Evaluation.read(tmp_path / "evaluation")
    assert evaluation.metrics["documents"] == m // 4
    assert evaluation.metrics["test"] == "t"
    rows, qrels = labelled_queries(tiny_dataset.split_qrels("test")), tiny_dataset.split_qrels("test")
    documents = Documents(document[:m].astype(np.int32), ids)
    for path in runs:
        expected = per_query(Run.read(path), qrels, rows, tiny_dataset.passages.ids(), OF_DOCUMENTS, documents)
        for name, values in zip(OF_DOCUMENTS, expected.T, strict=True):
            np.testing.assert_array_equal(evaluation.figures("test", path.name, name), values)
            assert 0 < evaluation.metrics["results"]["test"][path.name][name] < 1
            low, high = evaluation.metrics["intervals"]["test"][path.name][name]
            assert low < values.mean() < high
            if path.name != "first":
                pair = [evaluation.figures("test", system, name) for system in (path.name, "first")]
                p = evaluation.metrics["p_values"]["test"][path.name][name]
                assert p == pytest.approx(ttest_rel(*pair).pvalue, rel=1e-6)
                assert evaluation.metrics["p_holm"]["test"][path.name][name] >= p
    # The same figures from the report's files, by the command that knows no dataset.
    lines = (f"{p}\td{d}\n" for p, d in zip(tiny_dataset.passages.ids().to_pylist(), document[:m], strict=True))
    (tmp_path / "documents.tsv").write_text("".join(lines))
    folder = tmp_path / "evaluation" / "runs"
    files = [folder / f"{name}.trec.gz" for name in ("first", "second")]
    again = compare(files, folder / "test.qrels.gz", OF_DOCUMENTS, Membership.read(tmp_path / "documents.tsv"), "t")
    assert again["documents"] == m // 4
    for name in ("first", "second"):
        assert again["results"][name] == pytest.approx(evaluation.metrics["results"]["test"][name])
    assert again["p_values"]["second"] == pytest.approx(evaluation.metrics["p_values"]["test"]["second"])


def test_a_system_that_finds_nothing_keeps_its_row(tiny_dataset: Dataset, tmp_path: Path) -> None:
    japanese, generator = rewritten(tiny_dataset, tmp_path / "dataset"), np.random.default_rng(0)
    runs = [ranked_run(japanese, tmp_path / name, generator) for name in (BASELINE, CANDIDATE)]
    nothing = Run.from_hits(np.arange(0), np.empty((0, 0), np.int32), np.empty((0, 0), np.float32))
    with drafting(tmp_path / BM25, "run") as draft:
        nothing.write(draft, BM25)
    fuse(Fuse(), dataset=japanese.path, lexical_run=tmp_path / BM25, dense_run=runs[0], **{
        name: tmp_path / name for name in ("convex_run", "reciprocal_run")
    })  # fmt: skip
    all_runs = [tmp_path / BM25, *runs, tmp_path / "convex_run", tmp_path / "reciprocal_run"]
    settings = Evaluate(permutations=50, resamples=50)
    evaluate(settings, dataset=japanese.path, runs=all_runs, evaluation=tmp_path / "evaluation")
    evaluation = Evaluation.read(tmp_path / "evaluation")
    for split in ("dev", "test"):
        assert list(evaluation.metrics["results"][split])[:3] == [BM25, BASELINE, CANDIDATE]
        assert set(evaluation.metrics["results"][split][BM25].values()) == {0.0}
        assert BM25 in evaluation.metrics["p_holm"][split]
    reason = "no passage has one of their words"
    assert evaluation.metrics["remarks"] == [
        f"BM25 found nothing for 20 of 20 {split} queries, which count 0: {reason}" for split in ("dev", "test")
    ]
    assert evaluation.metrics["without_hits"] == {split: {BM25: 20} for split in ("dev", "test")}
    assert evaluation.manifest.metrics["test/BM25/RR@10"] == 0.0
    assert (tmp_path / "evaluation" / "runs" / "bm25.trec.gz").is_file()
    report(outcome.Report(), dataset=japanese.path, evaluation=tmp_path / "evaluation", report=tmp_path / "report")
    page = Report.read(tmp_path / "report").page.read_text(encoding="utf-8")
    assert "BM25 found nothing for 20 of 20 test queries" in page and 'data-v="BM25">' in page
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    console.print(run_table(Report.read(tmp_path / "report").metrics))
    shown = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "BM25 0.000 0.000" in shown and f"test queries, which count 0: {reason}" in shown


def test_the_reason_names_texts_without_spaces(tiny_dataset: Dataset, tmp_path: Path) -> None:
    def remark(name: str, text: str) -> str:
        with drafting(tmp_path / name, "dataset") as draft:
            writer = DatasetWriter(draft)
            writer.passages(["p0", "p1"], ["", ""], [text, text])
            writer.queries(["q"], [text], ["test"], [[]])
            writer.qrels(["q"], ["p0"], [1], [0], [0])
            writer.close()
        (line,) = hit_remarks(Dataset(tmp_path / name), "test", 1, {BM25: 1})
        return line

    spaces = "the texts have no spaces between words"
    assert f"{spaces} (1.0 words a passage)" in remark("japanese", "金沢の図書館は朝九時に開きます。土曜日は休みです。")
    assert spaces not in remark("english", "the library of Kanazawa opens at nine")
    assert spaces not in remark("short", "金沢")
    (of_others,) = hit_remarks(tiny_dataset, "test", 20, {"DPR": 3})
    assert of_others == "DPR found nothing for 3 of 20 test queries, which count 0"
