"""The re-ranking pipeline on a tiny data set with tiny random models, as `gnn-encoder rerank` runs it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import fill_bundle
from command_line import call
from http_server import ids, serving
from published_rerankers import write_reranker
from trained_root import Trained

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Dataset, Report, Run, drafting
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.reranking import reranked_by_bundle, reranker_of
from gnn_encoder.retrieval.search import ASKED
from gnn_encoder.settings.foundation import Ingest
from gnn_encoder.settings.reranking_systems import RERANKING_STUDIES, SYSTEMS
from gnn_encoder.steps.ingest import ingest

pytestmark = pytest.mark.timeout(600)

# The generator writes something after 30 epochs, and its queries are all alike.
SS_BERT = (
    "--set", "train_query_generator.epochs=30", "--set", "select_training_set.augmentation_threshold=1.0",
    "--set", "evaluate_passages.generator_weights=[200.0]",
)  # fmt: skip


def rerank(trained: Trained, *more: str) -> int:
    return call("rerank", *trained.command[1:], "--verbose", *more)


def reused(shown: str) -> int:
    """How many of the steps came from the cache."""
    return shown.count("  cached  ")


@pytest.fixture(scope="module")
def same(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Settings that the tests of all systems share, so that their trainings are cached.

    The data have ten passages to a document, in sections of three.
    """
    folder = tmp_path_factory.mktemp("documents") / "data"
    shutil.copytree(trained.command[trained.command.index("--dataset") + 1], folder)
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    placed = (row | {"doc_id": str(i // 10), "section": [str(i % 10 // 3)]} for i, row in enumerate(rows))
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in placed))
    changes = ("train_reranker.titles=false", "propagate_sections.propagation_weights=[0.9]")
    return ("--dataset", str(folder), *(word for setting in changes for word in ("--set", setting)))


@pytest.mark.slow
def test_every_kind_is_trained_ranked_and_compared(
    trained: Trained, same: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerank(trained, "--systems", ",".join(SYSTEMS), *SS_BERT, *same) == 0
    shown = capsys.readouterr().out
    for title in ("train_reranker: BERT-DMN", "rerank: ColBERT", "evaluate", "report"):
        assert title in shown
    page = Path(shown.split("report ")[-1].strip())
    metrics = Report.read(page.parent).metrics
    titles = [system.title for system in SYSTEMS.values()]
    assert list(metrics["results"]["test"]) == ["BM25", *titles]
    assert (metrics["baseline"], metrics["candidate"]) == ("BM25", titles[-1])
    assert len({json.dumps(figures) for figures in metrics["results"]["test"].values()}) == 1 + len(titles)
    assert "BERT-DMN" in page.read_text() and "What the re-rankers in documents learned" in page.read_text()
    assert list(metrics["learned"]) == ["MiM", "LiM", "Mix-iM"] and "λ" in metrics["learned"]["LiM"]
    (parent,) = (run for run in trained.runs() if run.info.run_name.startswith("rerank-tiny"))
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["test/ColBERT/RR_at_10"] == metrics["results"]["test"]["ColBERT"]["RR@10"]
    assert reused(shown) == 0 and "Teacher" not in shown, "the cross-encoder is the teacher"
    history = read_history(page.parent)
    assert {"context_share", "edge_weight/3/order"} <= set(history["train_reranker: LiM"].metrics)
    assert history["encode_context: Mix-iM"].metrics["nodes"] == history["build_document_graph"].metrics["nodes"] == 140

    # The same again is cached; another system alone is trained, and the order is the user's.
    assert rerank(trained, "--systems", "colbert,bert_dmn_lite", "--set", "train_reranker.episodes=2", *same) == 0
    shown = capsys.readouterr().out
    # ingest, BM25's index and hits, the first stage, and ColBERT: no episodes, and it reads no generated query
    assert reused(shown) == 6 and "query_generator" not in shown
    again = Report.read(Path(shown.split("report ")[-1].strip()).parent).metrics
    assert (
        list(again["results"]["test"]) == ["BM25", "ColBERT", "BERT-DMN lite"] and again["candidate"] == "BERT-DMN lite"
    )
    assert rerank(trained, "--systems", "colbert_distilled", *same) == 0
    shown = capsys.readouterr().out
    assert reused(shown) == 8  # all but the comparison
    again = Report.read(Path(shown.split("report ")[-1].strip()).parent).metrics
    assert list(again["results"]["test"]) == ["BM25", "ColBERT, distilled"]


@pytest.mark.slow
def test_another_content_of_a_run_file_is_another_first_stage(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def cached() -> tuple[int, list[str]]:
        assert rerank(trained, "--systems", "colbert", "--first-stage", str(path)) == 0
        shown = capsys.readouterr().out
        metrics = Report.read(Path(shown.split("report ")[-1].strip()).parent).metrics
        assert metrics["baseline"] == "mine"
        return reused(shown), list(metrics["results"]["test"])

    path = tmp_path / "mine.trec"
    path.write_text("".join(f"q{q} Q0 p{(q * 7 + k) % 100} 1 {-k} t\n" for q in range(100) for k in range(20)))
    systems = ["mine", "ColBERT"]
    assert cached()[1] == systems
    path.write_text("".join(f"q{q} Q0 p{(q * 3 + k) % 100} 1 {-k} t\n" for q in range(100) for k in range(20)))
    assert cached() == (3, systems)  # ingest, and BM25's index and hits


@pytest.mark.slow
def test_a_bundles_hits_are_re_ranked_and_the_bundle_gets_the_best_re_ranker(
    trained: Trained, same: tuple[str, ...], tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = trained.command[trained.command.index("--dataset") + 1]
    ingest(Ingest(dataset=source), dataset=tmp_path / "data")
    data = Dataset(tmp_path / "data")
    encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    vectors = np.random.default_rng(0).normal(size=(100, encoder.width)).astype(np.float32)
    with drafting(tmp_path / "latest" / "bundle", "bundle") as draft:
        fill_bundle(draft, vectors, data, encoder.save)
    assert rerank(trained, "--systems", "colbert", "--first-stage", str(tmp_path / "latest")) == 0
    shown = capsys.readouterr().out
    assert "choose_reranker" in shown and "ColBERT, dev MAP" in shown
    report = Path(re.findall("report +(.*)", shown)[-1])
    assert list(Report.read(report.parent).metrics["results"]["test"]) == ["Bundle", "ColBERT"]
    bundle = trained.root / "latest" / "bundle"
    assert f"bundle     {bundle}" in shown and [path.name for path in bundle.parent.iterdir()] == ["bundle"]
    assert json.loads((bundle / "reranker" / "scorer.json").read_text()) == {"kind": "colbert"}

    # A re-ranker in documents takes the context of the passages with it.
    assert rerank(trained, "--systems", "lim", "--first-stage", str(tmp_path / "latest"), *same) == 0
    assert json.loads((bundle / "reranker" / "scorer.json").read_text()) == {"kind": "lim"}
    hits = Run.from_hits(np.zeros(1, int), np.arange(20)[None], np.zeros((1, 20)))
    retriever = Retriever.load(bundle)
    opened, scorer = retriever.bundle, reranker_of(retriever.bundle)
    reranked_run = reranked_by_bundle(opened, scorer, ASKED, ["a question"], hits, 20)
    assert len(np.unique(reranked_run.score)) > 10
    first = Run.from_hits(np.zeros(1, int), retriever._searcher.run("a question", 20).passage[None], np.zeros((1, 20)))
    alone = reranked_by_bundle(opened, scorer, ASKED, ["a question"], first, 20)
    for questions in ("a question", ["the old river", "a question"]):
        answer = retriever.search(questions, 5, rerank=True, depth=20)
        reranked = answer if isinstance(questions, str) else answer[1]
        assert [hit.score for hit in reranked] == pytest.approx(alone.score[:5].tolist(), abs=1e-4)
    explained = retriever.explain("a question", 3, rerank=True, depth=20)
    assert sum(part.amount for part in explained[0].parts) == pytest.approx(explained[0].hit.score, abs=1e-3)
    with serving(bundle, k=100) as server:
        status, answer = server.search(questions="a question", k=3, rerank=True)
        assert status == 200 and ids(answer["results"][0]) == [
            hit.passage_id for hit in retriever.search("a question", 3, rerank=True)
        ]
        status, answer = server.search(questions="a question", k=3, rerank=True, explain=True)
    for hit in answer["results"][0]["hits"]:
        assert sum(part["amount"] for part in hit["why"]["parts"]) == pytest.approx(hit["score"], abs=1e-3)
    explain = ["explain", "one of the words", "--bundle", str(bundle), "-k", "3", "--depth", "20", "--rerank"]
    assert call(*explain) == 0
    shown = capsys.readouterr().out
    assert shown.count("content × ") == 3 and "structural" in shown


@pytest.mark.slow
def test_a_published_re_ranker_is_a_row_a_start_a_teacher_and_the_bundles_re_ranker(
    trained: Trained, tiny_backbone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sentence_transformers import CrossEncoder

    ingest(Ingest(dataset=trained.command[trained.command.index("--dataset") + 1]), dataset=tmp_path / "data")
    data, encoder = Dataset(tmp_path / "data"), TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
    vectors = np.random.default_rng(0).normal(size=(100, encoder.width)).astype(np.float32)
    with drafting(tmp_path / "latest" / "bundle", "bundle") as draft:
        fill_bundle(draft, vectors, data, encoder.save)
    folder = write_reranker(tmp_path / "models" / "judge", "yes-no")
    first = ("--first-stage", str(tmp_path / "latest"))
    taught = ("--set", f"train_reranker.systems.cross_encoder.published={folder}")
    assert rerank(trained, "--systems", f"trained:{folder},colbert_distilled,published:{folder}", *first, *taught) == 0
    shown = capsys.readouterr().out
    report = Path(re.findall("report +(.*)", shown)[-1]).parent
    metrics, history = Report.read(report).metrics, read_history(report)
    titles = ["Bundle", "judge, trained further", "judge, published", "ColBERT, distilled"]
    assert list(metrics["results"]["test"]) == titles and metrics["candidate"] == titles[2]
    assert len({json.dumps(figures) for figures in metrics["results"]["test"].values()}) == 4
    assert [bool(history[f"train_reranker: {title}"].curves) for title in titles[1:]] == [True, False, True]
    assert "Cross-encoder" not in shown and "Teacher" not in shown, "the published row is the teacher"

    assert rerank(trained, "--systems", f"published:{folder}", *first) == 0
    assert reused(capsys.readouterr().out) == 5, "all but ingest, which no longer needs dev queries, and the comparison"
    retriever = Retriever.load(trained.root / "latest" / "bundle")
    hits = retriever.search("a question", 5, rerank=True, depth=5)
    texts = [("a question", f"{hit.title} {hit.text}".strip()) for hit in hits]
    logits = CrossEncoder(str(folder)).predict(texts, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    assert [hit.score for hit in hits] == pytest.approx(logits.tolist(), abs=0.02), "bf16 where the machine has it"


def study(trained: Trained, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[Report, str]:
    """The report and the output of `gnn-encoder ablate --study …`."""
    assert call("ablate", *trained.command[1:], "--verbose", "--study", *more) == 0
    shown = capsys.readouterr().out
    return Report.read(Path(shown.split("report ")[-1].strip()).parent), shown


@pytest.mark.slow
def test_the_study_of_bert_dmn(trained: Trained, same: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    report, shown = study(trained, capsys, "bert_dmn", "--set", "compare_rerankers.diffusion_pairs=50", *same)
    metrics, page = report.metrics, report.page.read_text()
    results, measured = metrics["results"]["test"], metrics["gains"]["test"]
    titles = [SYSTEMS[name].title for name in RERANKING_STUDIES["bert_dmn"].systems]
    assert list(results) == ["BM25", *titles] and metrics["measures"] == ["AP", "RR"]
    gain = measured["BERT-DMN against Cross-encoder"]["AP"]
    assert gain == pytest.approx(results["BERT-DMN"]["AP"] - results["Cross-encoder"]["AP"])
    assert f"{gain:+.3f}" in page and f"{gain:+.3f}" in shown and all(title in page for title in titles)
    assert list(metrics["efficiency"]) == titles and all("first" in rates for rates in metrics["efficiency"].values())
    assert list(metrics["diffusion"]) == ["untrained", "BERT", "BERT-DMN"]
    assert len({json.dumps(means) for means in metrics["diffusion"].values()}) == 3
    assert len([*(report.path / "plots").iterdir()]) == len(metrics["cosines"]) and "SS-BERT" not in page
    run = [run for run in trained.runs() if run.info.run_name == "compare_rerankers"][-1]
    assert run.data.metrics["test/BERT-DMN against Cross-encoder/AP"] == gain


@pytest.mark.slow
def test_the_study_of_ss_bert(
    trained: Trained, same: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = ("ss_bert_t", "colbert", "ss_bert_h", "ss_bert_h_0.3", "ss_bert_d")
    monkeypatch.setitem(RERANKING_STUDIES, "ss_bert", RERANKING_STUDIES["ss_bert"]._replace(systems=systems))
    named = ",".join(system for system in systems if system != "ss_bert_h_0.3")
    assert rerank(trained, "--systems", named, *SS_BERT, *same) == 0
    capsys.readouterr()
    report, shown = study(trained, capsys, "ss_bert", *SS_BERT, *same)
    metrics, page = report.metrics, report.page.read_text()
    results, other = metrics["results"]["test"], "SS-BERT(h), t_A = 0.3"
    assert list(results) == ["BM25", "ColBERT", "SS-BERT(t)", "SS-BERT(h)", other, "SS-BERT(d)"]
    # Another threshold trains one system alone.
    lines = [line for line in shown.splitlines() if "train_reranker: " in line]
    (done,) = (line for line in lines if "  done  " in line)
    assert other in done and sum("  cached  " in line for line in lines) == 3
    assert list(metrics["thresholds"]) == [other, "SS-BERT(h)"] and metrics["thresholds"][other]["threshold"] == 0.3
    rouge = read_history(report.path)["train_query_generator"].metrics
    assert [value for _, value, _ in metrics["rouge"]] == [rouge[name] for name in ("rouge1", "rouge2", "rougeL")]
    assert metrics["words"]["what"][0] == 100.0 and sum(
        value for _, value, _ in metrics["similarity"]
    ) == pytest.approx(100)
    assert "52.67" in page and "39.02" in page and "43.8" in page and "Fig. 4" in page and not metrics["diffusion"]


@pytest.mark.slow
def test_the_study_of_structure(
    trained: Trained, same: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = ("lim_without_order", "lim_share_0.0", "lim_layers_1", "lim_layers_3", "lim")
    monkeypatch.setitem(RERANKING_STUDIES, "structure", RERANKING_STUDIES["structure"]._replace(systems=systems))
    report, _ = study(trained, capsys, "structure", *same)
    learned = report.metrics["learned"]
    assert list(learned) == ["LiM without order", "LiM, λ = 0.0", "LiM, layers: 1", "LiM"]
    assert learned["LiM, λ = 0.0"]["λ"] == 0 and learned["LiM"]["λ"] not in (0, 0.5)
    assert "order" in learned["LiM"] and "order" not in learned["LiM without order"]
    assert set(report.metrics["gains"]["test"]) == {f"{name} against LiM" for name in list(learned)[:-1]}
    assert "MAP(D)" in report.metrics["measures"]
    assert "What the re-rankers in documents learned" in report.page.read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("kind=colbert", "setting train_reranker.kind"),
        ("lite=true", "setting train_reranker.lite"),
        ("systems={bert_dnm: {}}", "did you mean 'bert_dmn'?"),
        ("systems={bert_dmn: {lite: true}}", "systems.bert_dmn cannot have lite"),
        ("systems={bert_dmn: {epochs: 0}}", "systems.bert_dmn.epochs = 0: Input should be greater"),
        ("systems={bert_dmn: {epoch: 1}}", "systems.bert_dmn.epoch = 1: Extra inputs"),
        ("loss=pointwise", "which colbert lacks"),
        ("word_vectors=nowhere.txt", "word_vectors = nowhere.txt: no such file"),
        ("dev_queries=0", "set keep to last"),
        ("query_length=2", "query_length"),
        ("negative_depth=500", "bm25_retrieve.train_depth must be at least"),
        ("depth=5000", "bm25_retrieve.eval_depth must be at least"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(
    change: str, words: str, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerank(trained, "--systems", ",".join(SYSTEMS), "--set", f"train_reranker.{change}") == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "words"),
    [("nothing", "no first stage 'nothing': give bm25, pool"), ("ColBERT.trec", "rename"), (".", "not a complete art")],
)
def test_an_unusable_first_stage_is_one_line(
    source: str, words: str, trained: Trained, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "ColBERT.trec").write_text("q0 Q0 p1 1 1 t\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert rerank(trained, "--first-stage", source) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("systems", "words"),
    [
        ("bm25", "no system 'bm25': choose of cross_encoder"),
        ("", "no system is named"),
        ("qsf", "QSF sectionPropagateAVG reads the sections of passages, but nothing in "),
    ],
)
def test_a_system_that_cannot_be_ranked_is_one_line(
    systems: str, words: str, trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerank(trained, "--systems", systems) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
