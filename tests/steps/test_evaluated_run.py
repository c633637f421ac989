"""All systems on the tiny dataset with random encoders: evaluated and reported by the pipeline's steps."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from evaluation_inputs import one_passage_dataset, reported, rewritten, write_inputs

from gnn_encoder.artifacts import Bundle, Dataset, Evaluation, Report, drafting, read_manifest
from gnn_encoder.artifacts.extended_dataset import extend_queries
from gnn_encoder.artifacts.tables import CONVEX, RECIPROCAL
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.compare import compare
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.report.systems import best_first
from gnn_encoder.settings import outcome
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.steps.evaluate import evaluate
from gnn_encoder.steps.report import report

BM25, UNTRAINED, DPR, BASELINE, CANDIDATE, RERANKED = (
    "BM25",
    "Untrained",
    "DPR",
    "Dual encoder",
    "GNN-encoder",
    "Cross-encoder",
)


def fused_name(dense: str, method: str) -> str:
    return f"BM25 + {dense}" + (" (RRF)" if method == RECIPROCAL else "")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path) -> dict[str, Path]:
    return write_inputs(tmp_path_factory.mktemp("evaluate"), tiny_dataset, tiny_backbone)


@pytest.fixture(scope="module")
def evaluated(inputs: dict[str, Path], tiny_backbone: Path) -> SimpleNamespace:
    settings = Evaluate(untrained_backbone=str(tiny_backbone), permutations=200, precision="fp32")
    path = reported(inputs, settings, inputs["bundle"].with_name("evaluated"))
    read_manifest(path)
    return SimpleNamespace(report=Report.read(path), settings=settings)


def test_every_system_in_order_on_dev_and_test(evaluated: SimpleNamespace) -> None:
    metrics = evaluated.report.metrics
    assert list(metrics["results"]) == ["dev", "test"]
    for split in ("dev", "test"):
        fused = [fused_name(system, method) for method in (CONVEX, RECIPROCAL) for system in (BASELINE, CANDIDATE)]
        assert list(metrics["results"][split]) == [BM25, UNTRAINED, DPR, BASELINE, CANDIDATE, *fused]
        for kind in ("p_values", "p_holm"):
            assert list(metrics[kind][split]) == [BM25, UNTRAINED, DPR, CANDIDATE, *fused]
    assert metrics["queries"] == {"dev": 20, "test": 20}
    assert metrics["unlabelled_queries"] == {"dev": 0, "test": 0}


def test_figures_of_known_rankings(evaluated: SimpleNamespace) -> None:
    test = evaluated.report.metrics["results"]["test"]
    assert set(test[BM25].values()) == {1.0}
    assert test[DPR]["RR@10"] == pytest.approx(1 / 3)
    assert test[DPR]["nDCG@10"] == pytest.approx(1 / np.log2(4))


@pytest.mark.parametrize("system", [BASELINE, CANDIDATE])
def test_dense_figures_from_the_vectors(
    evaluated: SimpleNamespace, inputs: dict[str, Path], tiny_dataset: Dataset, system: str
) -> None:
    bundle = Bundle.read(inputs["bundle"])
    plain = np.load(inputs["passage_vectors"] / "vectors.npy")
    queries = tiny_dataset.query_rows("test")
    encoder = DualEncoder.load(inputs["dual_encoder"]).query_encoder
    query_vectors = encode_texts(encoder, tiny_dataset.query_texts(queries), precision="fp32")

    def reciprocal_ranks(vectors: np.ndarray) -> np.ndarray:
        scores = query_vectors @ vectors.T
        labels = tiny_dataset.qrels
        positive = labels.passage[np.argsort(labels.query)][queries]
        rank = 1 + (scores > np.take_along_axis(scores, positive[:, None], axis=1)).sum(axis=1)
        return np.where(rank <= 10, 1 / rank, 0.0)

    table = evaluated.report.per_query.to_pandas()
    rows = table[(table.split == "test") & (table.system == system)]
    assert rows["query"].tolist() == queries.tolist()
    assert rows["query_id"].tolist() == [f"q{q}" for q in queries]
    of_system, other = (bundle.vectors, plain) if system == CANDIDATE else (plain, bundle.vectors)
    np.testing.assert_allclose(rows["RR@10"], reciprocal_ranks(of_system), atol=1e-12)
    # The control: the other system's vectors give other figures.
    assert not np.allclose(rows["RR@10"], reciprocal_ranks(other))
    means = evaluated.report.metrics["results"]["test"][system]
    assert [means[name] for name in NAMES] == pytest.approx([rows[name].mean() for name in NAMES])


def test_metrics_are_scalars_with_a_headline(evaluated: SimpleNamespace) -> None:
    figures = Evaluation.read(evaluated.report.path.with_name("evaluation")).manifest.metrics
    assert figures["headline"].startswith("GNN-encoder MRR@10 0.")
    assert "dual encoder 0." in figures["headline"]
    assert figures["test/DPR/RR@10"] == pytest.approx(1 / 3)
    assert 0 < figures["test/DPR/p/RR@10"] <= 1
    assert all(isinstance(value, int | float | str) for value in figures.values())


def test_report_folder(evaluated: SimpleNamespace) -> None:
    files = {p.relative_to(evaluated.report.path).as_posix() for p in evaluated.report.path.rglob("*") if p.is_file()}
    names = ("systems", "milliseconds", "megabytes", "seconds", "memory", "gains", "lengths", "degrees")
    plots = {f"plots/{name}.vl.json" for name in names}
    queries = {f"queries/{name}.js" for name in ("index", "hits-0", "passages-0")}
    systems = ("bm25", "untrained", "dpr", "dual-encoder", "gnn-encoder")
    fused = (f"bm25-{system}{method}" for system in ("dual-encoder", "gnn-encoder") for method in ("", "-rrf"))
    runs = {f"runs/{name}.trec.gz" for name in (*systems, *fused)} | {"runs/dev.qrels.gz", "runs/test.qrels.gz"}
    assert files == {
        "manifest.json",
        "history.json",
        "metrics.json",
        "per_query.parquet",
        "report.html",
        "settings.yaml",
        "systems.svg",
        *plots,
        *queries,
        *runs,
    }
    page = evaluated.report.page.read_text(encoding="utf-8")
    assert "GNN-encoder won most" in page
    explained = page.count('<details class="why">')
    assert explained == page.count(f"<h4>{CANDIDATE},") * 3 > 0, "each of the candidate's passages, of no other's"
    assert page.count("the passage itself") == explained
    assert evaluated.report.manifest.inputs["graph"] in page
    assert "what is the" in page
    assert evaluated.report.manifest.inputs["bundle"] in page
    assert evaluated.report.metrics["profile"]["splits"]["train"]["labels"] == 60
    whole, first = evaluated.report.metrics["dimensions"]
    assert whole["means"] == {
        split: pytest.approx(results["Dual encoder"]["RR@10"])
        for split, results in evaluated.report.metrics["results"].items()
    }
    assert first["dimension"] == 8 and first["means"] != whole["means"]
    assert '<tr><th scope="row">8</th><td>0.0</td>' in page


def test_what_each_system_costs(evaluated: SimpleNamespace, inputs: dict[str, Path]) -> None:
    costs = evaluated.report.metrics["costs"]
    assert set(costs) == {BASELINE, CANDIDATE, fused_name(BASELINE, CONVEX)}, "one bundle has no BM25 index"
    folder = inputs["bundle"]
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    assert costs[CANDIDATE]["megabytes"] == pytest.approx(written / 1e6)
    assert all(cost["ms"] > 0 for cost in costs.values())
    assert costs[fused_name(BASELINE, CONVEX)]["megabytes"] == costs[BASELINE]["megabytes"] != written / 1e6


def test_the_browser_of_queries_has_the_figures_and_hits_of_the_runs(
    evaluated: SimpleNamespace, tiny_dataset: Dataset
) -> None:
    folder, metrics = evaluated.report.path / "queries", evaluated.report.metrics
    index, hits, passages = (part(folder, name) for name in ("index", "hits-0", "passages-0"))
    assert index["systems"] == best_first(metrics) and index["one"] == metrics["recommendation"]["system"]
    texts = tiny_dataset.query_texts(tiny_dataset.query_rows("test"))
    assert index["texts"] == texts and len(index["ids"]) == len(hits) == 20
    for system, values in zip(index["systems"], index["figures"], strict=True):
        assert np.mean(values) == pytest.approx(metrics["results"]["test"][system]["RR@10"], abs=1e-3)
    bm25, labels = index["systems"].index(BM25), tiny_dataset.split_qrels("test")
    everything = next(tiny_dataset.passages.stream())
    for (ranked, labelled), query in zip(hits, tiny_dataset.query_rows("test").tolist(), strict=True):
        ((answer, grade),) = labelled
        (relevant,) = labels.passage[labels.query == query].tolist()
        assert passages[answer][:3] == [
            everything.ids[relevant],
            everything.titles[relevant],
            everything.texts[relevant],
        ]
        assert grade == 1 and ranked[bm25][0] == answer, "BM25 has every relevant passage first"
    train = tiny_dataset.split_qrels("train")
    of_passage = {everything.ids[p]: [] for p in range(len(everything.ids))}
    for passage, text in zip(train.passage.tolist(), tiny_dataset.query_texts(train.query), strict=True):
        of_passage[everything.ids[passage]].append(text)
    assert any(train_queries for *_, train_queries in passages)
    assert all({*train_queries} <= {*of_passage[name]} for name, *_, train_queries in passages)


def part(folder: Path, name: str) -> Any:
    """The value that a file beside the page hands over."""
    text = (folder / f"{name}.js").read_text("utf-8")
    assert text.startswith(f'part("{name}",') and text.endswith(")\n")
    return json.loads(text[len(f'part("{name}",') : -2])


@pytest.mark.slow
def test_without_the_untrained_row_the_rest_is_the_same(
    evaluated: SimpleNamespace, inputs: dict[str, Path], tmp_path: Path
) -> None:
    settings = evaluated.settings.model_copy(update={"untrained_backbone": ""})
    reported(inputs, settings, tmp_path)
    expected, metrics = evaluated.report.metrics, Report.read(tmp_path / "report").metrics
    for kind in ("results", "p_values"):
        for systems in expected[kind].values():
            del systems[UNTRAINED]
        assert metrics[kind] == expected[kind]
    # The control: of fewer comparisons, each has to be corrected for fewer.
    assert metrics["p_holm"]["test"][BM25]["RR@10"] < expected["p_holm"]["test"][BM25]["RR@10"]


def test_intervals_and_corrected_p_values_belong_to_their_figures(evaluated: SimpleNamespace) -> None:
    metrics = evaluated.report.metrics
    for split, systems in metrics["results"].items():
        for system, values in systems.items():
            for measure, value in values.items():
                low, high = metrics["intervals"][split][system][measure]
                assert low - 1e-12 <= value <= high + 1e-12
                if system != BASELINE:
                    assert metrics["p_holm"][split][system][measure] >= metrics["p_values"][split][system][measure]
    assert metrics["intervals"]["test"][BM25]["RR@10"] == [1.0, 1.0]
    low, high = metrics["intervals"]["test"][BASELINE]["RR@10"]
    assert low < high


def test_judged_is_measured_beside_the_table(evaluated: SimpleNamespace) -> None:
    metrics = evaluated.report.metrics
    assert "Judged@10" not in metrics["measures"]
    judged = metrics["judged"]["results"]["test"]
    assert judged[BM25]["Judged@10"] == pytest.approx(1 / 3)  # one label among three hits
    rows = evaluated.report.per_query.to_pandas()
    assert rows[(rows.split == "test") & (rows.system == CANDIDATE)]["Judged@10"].mean() == pytest.approx(
        judged[CANDIDATE]["Judged@10"]
    )


def test_the_runs_written_give_the_figures_of_the_report(evaluated: SimpleNamespace) -> None:
    metrics, folder = evaluated.report.metrics, evaluated.report.path / "runs"
    names = {BM25: "bm25", BASELINE: "dual-encoder", fused_name(CANDIDATE, RECIPROCAL): "bm25-gnn-encoder-rrf"}
    measures = ("RR@10", "nDCG@10", "R@100")
    for split in ("dev", "test"):
        runs = [folder / f"{name}.trec.gz" for name in names.values()]
        comparison = compare(runs, folder / f"{split}.qrels.gz", measures)
        assert comparison["queries"] == 20
        for system, name in names.items():
            expected = [metrics["results"][split][system][measure] for measure in measures]
            assert list(comparison["results"][name].values()) == pytest.approx(expected, abs=1e-12)


def test_weights_are_tuned_on_dev(evaluated: SimpleNamespace) -> None:
    metrics = evaluated.report.metrics
    for system in (BASELINE, CANDIDATE):
        facts = metrics["fusions"][fused_name(system, CONVEX)]
        assert (facts["tuned_on"], facts["tuned_by"], facts["tuned_queries"]) == ("dev", "RR@10", 20)
        assert len(facts["figures"]) == 21
        assert facts["figures"]["0.0"] == pytest.approx(1.0)  # BM25 alone finds every positive first here
        assert facts["figures"]["1.0"] == pytest.approx(metrics["results"]["dev"][system]["RR@10"], abs=0.02)
        chosen = facts["figures"][f"{facts['weight']}"]
        assert chosen == max(facts["figures"].values())
        assert metrics["results"]["dev"][fused_name(system, CONVEX)]["RR@10"] == pytest.approx(chosen)


@pytest.mark.slow
def test_without_dev_labels_the_weight_is_a_half(
    evaluated: SimpleNamespace, inputs: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    data = rewritten(tiny_dataset, tmp_path / "dataset", labelled=("train", "test"))
    settings = Evaluate(untrained_backbone="", permutations=50, resamples=50, run_depth=0, measures=("AP", "P@3"))
    reported({**inputs, "dataset": data.path}, settings, tmp_path)
    report = Report.read(tmp_path / "report")
    assert list(report.metrics["results"]) == ["test"]
    assert report.metrics["measures"] == ["AP", "P@3"]
    for system in (BASELINE, CANDIDATE):
        facts = report.metrics["fusions"][fused_name(system, CONVEX)]
        assert (facts["weight"], facts["tuned_on"]) == (0.5, None)
    assert report.page.read_text(encoding="utf-8").count("not tuned: there are no labelled dev queries") == 2
    assert not (report.path / "runs").exists()
    assert report.metrics["answers"] is None
    assert report.manifest.metrics["headline"].startswith("GNN-encoder MAP 0.")


@pytest.mark.slow
def test_answers_are_found_where_queries_have_them(
    inputs: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    # Dev queries have answers but no labels: they count for the answers alone.
    data = rewritten(tiny_dataset, tmp_path / "dataset", labelled=("train", "test"), answers=True)
    settings = Evaluate(untrained_backbone="", permutations=50, resamples=50, rerank_depth=10, precision="fp32")
    reported({**inputs, "dataset": data.path}, settings, tmp_path)
    report = Report.read(tmp_path / "report")
    answers = report.metrics["answers"]
    assert answers["queries"] == {"dev": 10, "test": 10}
    assert answers["measures"] == ["Answer@5", "Answer@20", "Answer@100"]
    for split in ("dev", "test"):
        assert set(answers["results"][split][BM25].values()) == {
            1.0
        }  # the positive, whose text is the answer, is first
        assert answers["results"][split][BASELINE]["Answer@5"] < 1.0
    assert list(answers["p_holm"]["dev"]) == list(report.metrics["p_holm"]["test"])
    rows = pq.read_table(report.path / "answers.parquet").to_pandas()
    mean = rows[(rows.split == "dev") & (rows.system == CANDIDATE)]["Answer@20"].mean()
    assert answers["results"]["dev"][CANDIDATE]["Answer@20"] == pytest.approx(mean)
    assert Evaluation.read(tmp_path / "evaluation").manifest.metrics["dev/BM25/Answer@100"] == 1.0
    # The cross-encoder's row, too: another order of the first ten, all others where they were.
    of_test = report.metrics["results"]["test"]
    assert list(of_test)[:5] == [BM25, DPR, BASELINE, CANDIDATE, RERANKED]
    for measure, value in of_test[RERANKED].items():
        assert (value == of_test[CANDIDATE][measure]) == (measure not in ("RR@10", "nDCG@10", "AP", "R@5")), measure
    assert "<summary>rerank</summary>" in report.page.read_text(encoding="utf-8")
    assert "by DPR&#39;s rule" in report.page.read_text(encoding="utf-8")


def test_latency_of_both_systems_is_in_the_report(evaluated: SimpleNamespace) -> None:
    latency = evaluated.report.metrics["latency"]
    assert 1 <= latency["queries"] <= 20  # as many as its time allows
    assert list(latency["systems"]) == [BASELINE, CANDIDATE]
    for took in latency["systems"].values():
        assert took["encode_ms"] > 0 and took["search_ms"] > 0
        assert took["passage_encode_ms"] is None  # these artifacts were made by no step


def test_the_page_lists_the_warm_queries_that_were_measured(
    inputs: dict[str, Path], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    # A generator wrote a training query for each passage beside people's, so written queries would warm all.
    texts, passages = ["written"] * 100, [[row] for row in range(100)]
    with drafting(tmp_path / "dataset", "dataset") as draft:
        of_texts = (texts, ["train"] * 100, passages, [-1] * 100, np.zeros(0, np.int32), False)
        extend_queries(draft, tiny_dataset, *of_texts)
    settings = Evaluate(baseline="BM25", candidate="DPR", permutations=50, resamples=50)
    data = {"dataset": tmp_path / "dataset", "evaluation": tmp_path / "evaluation"}
    evaluate(settings, **data, runs=[inputs["bm25_run"], inputs["dpr_run"]])
    report(outcome.Report(), **data, report=tmp_path / "report")
    folder, measured = tmp_path / "report", Report.read(tmp_path / "report").metrics["strata"]
    listed = {name: len(rows) for name, rows in part(folder / "queries", "index")["strata"].items()}
    for name in ("warm", "cold"):
        assert listed.get(name, 0) == measured.get(name, {"queries": {"test": 0}})["queries"]["test"], name
    assert listed["cold"] > 0
    page = Report.read(folder).page.read_text(encoding="utf-8")
    assert "gnn-encoder search" not in page and "#use" not in page, "the run made no bundle"


def test_data_without_labelled_queries_is_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    data = one_passage_dataset(tmp_path / "dataset", "test", relevance=0)
    with pytest.raises(UserError, match="no dev or test query with a positive label"):
        runs = [inputs["bm25_run"]]
        evaluate(Evaluate(), dataset=data.path, runs=runs, evaluation=tmp_path / "evaluation")
    assert not (tmp_path / "evaluation").exists()
