"""All steps on a tiny data set with tiny random models, as `gnn-encoder run` runs them."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from command_line import call
from trained_root import GRAPH_BUNDLE, Trained, explain

from gnn_encoder.artifacts import Bundle, Dataset, Recommended, Report, read_manifest
from gnn_encoder.artifacts.finished_run import graph_bundle, place_of
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.engines import pipelines
from gnn_encoder.planning.data_size import DataSize
from gnn_encoder.planning.disk import ARTIFACT, IN_MLFLOW, TOKEN_IDS, run_space
from gnn_encoder.promotion.registry import open_registry
from gnn_encoder.retrieval.search import fusion_weight
from gnn_encoder.settings.systems import CONVERGED, GNN_ENCODER, LEARNED_FUSION, label_systems

pytestmark = pytest.mark.timeout(400)


def test_from_raw_text_to_a_decision(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = trained.run()
    shown = capsys.readouterr().out
    assert outcome.status == "FINISHED", f"{outcome.message}\n{outcome.log.read_text()[-4000:]}"
    assert Counter(trained.events(outcome, "finished")) == Counter(trained.titles())
    for words in ("BM25", "DPR", "decision", "report.html", "gnn-encoder search"):
        assert words in shown
    assert (trained.root / "latest" / "report" / "report.html").is_file()
    for path in outcome.outputs.values():
        manifest = read_manifest(path)
        assert manifest.step in {title.partition(": ")[0] for title in trained.titles()}
        assert manifest.metrics["headline"]
    parent, *steps = trained.runs()
    assert {run.info.status for run in (parent, *steps)} == {"FINISHED"}
    assert "test/GNN-encoder/RR_at_10" in parent.data.metrics
    took = {title: record.metrics["seconds"] for title, record in read_history(outcome.outputs["decision"]).items()}
    logged = [run.info.run_name for run in steps]
    assert not Counter(logged) - Counter(trained.titles())
    assert {title for title, seconds in took.items() if seconds > 1.2} | {"ingest", "report", "promote"} <= {*logged}
    assert {title for title, seconds in took.items() if seconds < 0.8} - {*logged}, "short steps have no runs"
    assert {run.data.tags["mlflow.parentRunId"] for run in steps} == {parent.info.run_id}
    for run in steps:
        assert {"seconds", "peak_memory_gib"} <= set(run.data.metrics)
        assert {"version", "code_digest"} <= set(run.data.tags)
    latency = Report.read(outcome.outputs["report"]).metrics["latency"]["systems"][GNN_ENCODER]
    assert min(latency[name] for name in ("encode_ms", "passage_encode_ms", "passage_propagate_ms")) > 0
    assert not list(trained.root.glob("checkpoints/*")), "what finished needs no checkpoint"
    assert not list(trained.root.glob("pipeline/*/*/.*.partial-*"))


def test_the_forecast_of_the_disk_is_what_the_run_took(trained: Trained) -> None:
    settings = pipelines.training(trained.command[2], str(trained.root.parent / "beir"), [], trained.root).settings
    explaining, real, counted = ("manifest.json", "history.json", "README.md"), {}, set()
    lines = trained.outcomes[0].log.with_suffix(".events.jsonl").read_text().splitlines()
    for event in map(json.loads, lines):
        if event["event"] == "outputs":
            folders = [Path(path) for path in event["outputs"].values()]
            files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
            taken = {facts.st_ino: facts.st_size for facts in (f.stat() for f in files if f.name not in explaining)}
            real[event["step"]] = sum(taken[inode] for inode in taken.keys() - counted), len(folders)
            counted |= taken.keys()
    # An artifact's history, which is forecast for real trainings, is longer than a tiny training's.
    expected = {
        space.title: space.kept - ARTIFACT * real[space.title][1]
        for space in run_space(settings, DataSize.read(settings))
        if space.title not in (TOKEN_IDS, IN_MLFLOW)
    }
    for title in ("make_parts", "fuse_parts: Learned fusion"):
        assert 0 < real.pop(title)[0] < expected.pop(title), "tiny data have few candidates, and trees of few leaves"
    assert sum(expected.values()) == pytest.approx(sum(size for size, _ in real.values()), rel=0.15)
    trainings = ("train_dpr", "train_cross_encoder", "train_gnn")
    for step in (*trainings, "score_candidates", "build_graph", "encode_nodes"):
        assert expected[step] == pytest.approx(real[step][0], rel=0.15), step
    # Alone, the tiny bundle of encode_corpus is mostly small files, such as the encoder's configuration.
    encoding = ("encode_nodes", "encode_corpus")
    assert sum(map(expected.get, encoding)) == pytest.approx(sum(real[step][0] for step in encoding), rel=0.15)


def test_the_recommended_system_is_the_bundle_and_each_system_has_one(trained: Trained) -> None:
    latest = trained.root / "latest"
    facts = Recommended.read(latest / "recommendation").facts
    chosen = Bundle.read(latest / "bundle")
    assert (chosen.serving.system, chosen.serving.weight) == (facts["system"], facts["weight"])
    assert chosen.system == facts["dense"]
    page = (latest / "report" / "report.html").read_text("utf-8")
    assert f'<p class="quiet">{facts["sentence"]}.</p>' in page
    assert "Graphs tried with frozen encoders" in page and "labels too</" in page
    folder_of = {Bundle.read(path).system: path.name for path in (latest / "bundles").iterdir()}
    assert (
        set(folder_of) == {"Dual encoder", CONVERGED, *label_systems().values(), LEARNED_FUSION, GNN_ENCODER}
        and folder_of[GNN_ENCODER] == "gnn_encoder"
    )
    assert graph_bundle(latest).resolve() == (latest / GRAPH_BUNDLE).resolve()
    assert trained.runs()[0].data.tags["recommended"] == facts["system"]
    champion = open_registry(f"sqlite:///{trained.root / 'mlflow.db'}", "gnn-encoder").versions()[0]
    assert champion.tags["digest"] == chosen.manifest.digest
    readme = (latest / "bundle" / "README.md").read_text("utf-8")
    assert f"# {facts['system']}\n" in readme and facts["sentence"] in readme and "% of the test labels" in readme
    header, measures = champion.card.partition("## What it reaches")[2].split("\n\n")[1:3]
    assert header in readme and measures in readme, "the registry's card has the same figures"
    assert "- train_gnn: heads = `2`, epochs = `1`" in readme and "negative_slope" not in readme, "no defaults"


def test_a_fused_search_is_the_reports_fused_row(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    latest = trained.root / "latest"
    data = Dataset(latest / "dataset")
    (query,) = data.query_rows("test")[:1]
    (question,), (query_id,) = data.query_texts([query]), data.queries.column("query_id").take([query]).to_pylist()
    assert call("search", question, "--bundle", str(latest / GRAPH_BUNDLE), "--fuse", "-k", "3") == 0
    shown = capsys.readouterr().out
    assert "tuned on dev" in shown
    with gzip.open(latest / "report" / "runs" / "bm25-gnn-encoder.trec.gz", "rt") as run:
        ranked = [line.split()[2] for line in run if line.startswith(f"{query_id} ")]
    assert re.findall(r"\[(p\d+)\]", shown) == ranked[:3]


def test_explain_says_why(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(trained, "what is the old river") == 0
    assert capsys.readouterr().out.count("with the graph") == 3


@pytest.mark.parametrize("system", label_systems().values())
def test_systems_of_labelled_queries_are_bundles(
    trained: Trained, system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, latest = place_of(system), trained.root / "latest"
    results = Report.read(latest / "report").metrics["results"]
    assert {system, f"BM25 + {system}"} <= set(results["test"]) and f"BM25 + {system} (RRF)" not in results["test"]
    assert f"<li>{system}: weight" in (latest / "report" / "report.html").read_text("utf-8")
    assert explain(trained, "what is the old river", name) == 0
    assert capsys.readouterr().out.count("the passage itself") == 3
    bundle = Bundle.read(latest / name)
    _, weights = fusion_weight(bundle)
    assert "tuned on dev" in weights
    several = len(bundle.vectors) > len(bundle.passages)
    assert bundle.label_use and several == (system == "Query clusters")
    assert ("tuned_queries" in bundle.manifest.metrics) == (system == "Query sum")


def test_the_same_again_reuses_every_step(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    before = len(trained.runs())
    outcome = trained.run()
    assert outcome.status == "FINISHED"
    assert Counter(trained.events(outcome, "cached")) == Counter(trained.titles())
    assert trained.events(outcome, "starting") == []
    assert outcome.outputs == trained.outcomes[0].outputs
    count = len(trained.titles())
    assert capsys.readouterr().out.count("  cached  ") == count
    of_run, *steps = sorted(run.data.tags.get("cached", "") for run in trained.runs()[before:])
    assert of_run == "" and set(steps) <= {"true"}  # a step that was reused at once has no run
