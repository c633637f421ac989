"""What follows a run in its root: retraining, studies, updates, added labels, pruning, other indexes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call
from http_server import ids, serving
from tiny_graph import ROUNDED
from trained_root import GRAPH_BUNDLE, Trained, explain

from gnn_encoder import Retriever
from gnn_encoder.artifacts import Bundle, Dataset, Decision, Report, read_manifest
from gnn_encoder.artifacts.finished_run import graph_bundle, labelled_bundle, place_of
from gnn_encoder.artifacts.history import read_history
from gnn_encoder.cli import app
from gnn_encoder.engines import pipelines
from gnn_encoder.engines.latest import MODELS, linked
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.pipelines.train import train
from gnn_encoder.promotion.registry import CHAMPION, open_registry
from gnn_encoder.settings.pipeline import FOUNDATION
from gnn_encoder.settings.studies import STUDIES
from gnn_encoder.settings.systems import DPR, GNN_ENCODER, QUERY_CLUSTERS, QUERY_MEMORY, label_systems

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(autouse=True)
def first_run(trained: Trained) -> None:
    """The run that the tests go on from."""
    if not trained.outcomes:
        trained.run()


@pytest.mark.slow
def test_a_dry_run_says_what_is_there_and_what_the_rest_took(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = len(trained.titles())
    assert call(*trained.command, "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{steps} steps, all cached"
    assert call(*trained.command, "--dry-run", "--set", "recommend.margin=0.5") == 0
    *lines, _, total = capsys.readouterr().out.splitlines()
    waiting = [line.partition("  ")[0] for line in lines if "  to run  " in line]
    assert waiting == ["recommend", f"bundle_dual_encoder: {DPR}", "choose_bundle", "report", "promote"]
    assert (
        f"at most {len(waiting)} to run; time: about " in total and " for 3, not known for 2" in total
    )  # the page names the settings
    root = ["--root", str(trained.root)]
    assert call("update", *root, "--dry-run") == 0
    assert "13 steps: 3 cached, at most 10 to run" in capsys.readouterr().out, (
        "data, BM25's index, the converged bundle"
    )
    assert call("update", *root, "--mermaid") == 0
    assert '[("cross_encoder")]' in capsys.readouterr().out


@pytest.mark.slow
def test_applications_open_the_champion_by_name_and_learn_why(trained: Trained) -> None:
    question, latest = "what is the old river", trained.root / "latest"
    champion = Retriever.load("models:/gnn-encoder@champion", trained.root)
    assert champion.search(question) == Retriever.load(latest / "bundle").search(question)
    by_graph = Retriever.load(latest / place_of(GNN_ENCODER))
    explained = by_graph.explain(question, 3)
    assert [hit_and_why.hit.passage_id for hit_and_why in explained] == [
        hit.passage_id for hit in by_graph.search(question, 3)
    ]
    assert all(
        hit_and_why.graph and hit_and_why.graph.why.score == pytest.approx(hit_and_why.hit.score, rel=ROUNDED)
        for hit_and_why in explained
    )
    with serving(latest / place_of(GNN_ENCODER), trained.root) as server:
        status, answer = server.search(questions=question, k=3, explain=True)
    (result,) = answer["results"]
    assert status == 200 and ids(result) == [hit_and_why.hit.passage_id for hit_and_why in explained]
    for hit, expected in zip(result["hits"], explained, strict=True):
        assert expected.graph and hit["why"]["graph"]["plain_rank"] == expected.graph.plain_rank
        assert hit["why"]["graph"]["score"] == pytest.approx(expected.graph.why.score, abs=1e-5)
        assert len(hit["why"]["graph"]["influences"]) == len(expected.graph.why.influences)
    for hit_and_why in Retriever.load(latest / place_of(QUERY_MEMORY)).explain(question, 3):
        assert hit_and_why.graph is None and sum(p.amount for p in hit_and_why.parts) == pytest.approx(
            hit_and_why.hit.score, rel=ROUNDED
        )


@pytest.mark.slow
def test_mlflow_loads_the_champion_and_shows_data_and_model(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlflow

    latest, question = trained.root / "latest", "what is the old river"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{trained.root / 'mlflow.db'}")
        (hits,) = mlflow.pyfunc.load_model("models:/gnn-encoder@champion").predict([question], params={"k": 3})
        command = ["search", question, "--bundle", "models:/gnn-encoder@champion", "-k", "3"]
        assert call(*command, "--root", str(trained.root)) == 0
    assert [hit["passage_id"] for hit in hits] == re.findall(r"\[(p\d+)\]", capsys.readouterr().out)
    parent, *steps = trained.runs()
    digest = read_manifest(latest / "dataset").digest[:36]
    readers = {run.info.run_name for run in (parent, *steps) if run.inputs.dataset_inputs}
    assert {parent.info.run_name, "train_gnn", "report", "promote"} <= readers and "ingest" not in readers
    assert {one.dataset.digest for run in (parent, *steps) for one in run.inputs.dataset_inputs} == {digest}
    (promoted,) = (run for run in steps if run.info.run_name == "promote")
    assert parent.outputs.model_outputs == promoted.outputs.model_outputs != []


def latest_links(trained: Trained) -> dict[str, Path]:
    """What each link in ROOT/latest leads to."""
    latest = trained.root / "latest"
    links = [path for path in (*latest.iterdir(), *(latest / "bundles").iterdir()) if path.is_symlink()]
    return {str(path.relative_to(latest)): path.resolve() for path in links}


@pytest.mark.slow
def test_another_setting_runs_its_step_and_what_follows_again(trained: Trained) -> None:
    outcome = trained.run("--set", "promote.minimum_gain=-2.0")
    assert trained.events(outcome, "starting") == ["report", "promote"]  # the page names the settings
    assert set(trained.events(outcome, "cached")) == set(trained.titles()) - {"report", "promote"}


def retrain(trained: Trained, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["from gnn_encoder.cli.app import main; main()", "retrain", *trained.command[1:], *more]
    package = str(Path(app.__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-c", *command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": package, **environment},
    )


@pytest.mark.slow
def test_retraining_on_the_same_has_nothing_to_do(trained: Trained) -> None:
    runs, before = len(trained.runs()), os.times()
    ended = retrain(trained, "--set", "promote.minimum_gain=-2.0", "--fail-on-keep")
    after = os.times()
    # Of the processor, which other tests share: the clock of an idle machine shows no more.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 10
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("nothing to do: data, settings and code are those of version 2")
    assert len(trained.runs()) == runs


@pytest.mark.slow
def test_retraining_with_other_settings_meets_the_champion(trained: Trained, tmp_path: Path) -> None:
    champion = open_registry(f"sqlite:///{trained.root / 'mlflow.db'}", "gnn-encoder")
    before = champion.find(CHAMPION)
    page = tmp_path / "summary.md"
    changed = ("--set", "promote.minimum_gain=-1.5", "--fail-on-keep")
    ended = retrain(trained, *changed, GITHUB_STEP_SUMMARY=str(page))
    assert ended.returncode == 3, ended.stderr
    assert f"changed since version {before.number}, the champion: settings" in ended.stdout
    assert page.read_text().startswith("\n## gnn-encoder: keep\n\nthis very bundle is the champion already")
    assert page.read_text() in ended.stdout
    assert champion.find(CHAMPION) == before
    assert champion.versions()[0].tags["decision"] == "keep"


@pytest.mark.slow
def test_variants_on_the_pipelines_foundation(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    # Trained jointly with nothing changed, a variant is the pipeline's own model.
    command = ["ablate", *trained.command[1:], "--verbose", "--mode", "joint", "--seeds", "1", "--study", "labels"]
    variants = ["--variant", "frozen: try_variant.mode=frozen build_graph.neighbors=2"]
    variants += ["--variant", "no edges: try_variant.mode=frozen build_graph.neighbors=2 build_graph.edges=none"]
    assert call(*command, *variants) == 0
    shown, complaints = capsys.readouterr()
    cached = len(FOUNDATION) - len(("write_queries", "select_queries"))  # the data have queries of their own
    assert shown.count("  cached  ") == cached and "warning" not in complaints
    report = Report.read(Path(shown.split("report ")[-1].strip()).parent)
    results, evaluated = report.metrics["results"], Report.read(trained.root / "latest" / "report").metrics["results"]
    for split in ("dev", "test"):
        systems = {"full": "GNN-encoder", "dual encoder": "Dual encoder"}
        systems |= {name: name.capitalize() for name in STUDIES["labels"]}  # chosen and ranked as the run's own
        for variant, system in systems.items():
            for measure, figure in evaluated[split][system].items():
                assert results[split][variant][measure] == pytest.approx(figure, abs=1e-9), (variant, measure)
        assert results[split]["frozen"] != results[split]["full"]
        assert results[split]["no edges"] != results[split]["frozen"]
    names = {run.info.run_name: run for run in trained.runs()}
    (parent,) = (run for name, run in names.items() if name.startswith("ablation-tiny"))
    assert parent.data.metrics["test/full/RR_at_10"] == results["test"]["full"]["RR@10"]
    assert {"try_variant: full, seed 1", "try_variant: frozen, seed 1", "compare_variants"} <= set(names)


@pytest.mark.slow
def test_an_update_encodes_what_has_changed(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "beir"
    shutil.copytree(trained.root.parent / "beir", changed)
    corpus = (changed / "corpus.jsonl").read_text().splitlines()
    corpus[7] = json.dumps({**json.loads(corpus[7]), "text": "an old letter about a garden"})
    corpus.append(json.dumps({"_id": "new", "title": "", "text": "the copper violin is hidden in a cloud"}))
    (changed / "corpus.jsonl").write_text("\n".join(corpus) + "\n")
    before = latest_links(trained)
    assert call("update", "--dataset", str(changed), "--root", str(trained.root)) == 0
    after = latest_links(trained)
    assert {name for name in before if before[name] == after[name]} == {
        "recommendation",
        "report",
        "decision",
        "converged",
        *MODELS,
    }
    assert Bundle.read(after["bundle"]).serving == Bundle.read(before["bundle"]).serving
    for name in map(place_of, label_systems().values()):
        old, new = (Bundle.read(links[name]) for links in (before, after))
        assert new.label_use == old.label_use and len(new.passages) == 101
        assert "tuned_on" not in new.manifest.metrics
    worked = read_manifest(after[GRAPH_BUNDLE])
    assert worked.rows["passages"] == 101 and 2 <= worked.metrics["propagated"] < 60
    history = read_history(after[GRAPH_BUNDLE])
    assert {history[step].metrics["encoded"] for step in ("build_graph", "encode_nodes")} == {2}
    assert Bundle.read(after["bundle"]).passages.take(np.array([100])).ids == ["new"]
    compare = shlex.split(capsys.readouterr().out.partition("forgotten or gained: ")[2])
    assert compare[:5:2] == ["gnn-encoder", "--bundle", "--bundle"]
    assert [Path(compare[3]).resolve(), Path(compare[5]).resolve()] == [before["bundle"], after["bundle"]]
    assert explain(trained, "a copper violin", GRAPH_BUNDLE) == 0  # by the earlier run's GNN over the new graph


@pytest.mark.slow
def test_an_update_and_a_retraining_read_added_labels(trained: Trained) -> None:
    latest, root = trained.root / "latest", ("--root", str(trained.root))
    before = np.array(Bundle.read(labelled_bundle(latest)).vectors)
    assert call("labels", "add", "where is the new violin", "p3", *root) == 0
    assert call("labels", "add", "where is the old copper", "p5", *root) == 0
    added = Bundle.read(labelled_bundle(latest))
    assert added.added is not None and added.added.changes is not None and (before != added.vectors).any()
    assert call("update", *root) == 0
    updated = Bundle.read(labelled_bundle(latest))
    assert updated.added is not None and updated.added.changes is None
    assert updated.added.labels == added.added.labels == Dataset(latest / "dataset").added
    np.testing.assert_allclose(updated.vectors, added.vectors, rtol=ROUNDED, atol=1e-5)
    assert explain(trained, "where is the new violin") == 0
    # Training the same data in this root reads them, other data do not.
    settings = pipelines.training(trained.command[2], str(trained.root.parent / "beir"), [], trained.root).settings
    assert settings.ingest.labels == ""  # the update before was of another folder
    same = read_manifest(latest / "dataset").settings["dataset"]
    labelled = pipelines.training(trained.command[2], same, [], trained.root)
    assert (
        Path(labelled.settings.ingest.labels).read_text()
        == (labelled_bundle(latest) / "added" / "labels.jsonl").read_text()
    )
    digests = labelled.arguments()["promote"].source_digests
    plain = pipelines.Training(trained.command[2], settings, train(settings), trained.root)
    before_labels = plain.arguments()["promote"].source_digests
    changed = {name for name, digest in before_labels.items() if digest != digests[name]}
    assert changed == {"run.data"}
    # A label of the update's graph is removed at once, and by the next update.
    assert call("labels", "remove", "where is the new violin", "p3", *root) == 0
    removed = np.array(Bundle.read(labelled_bundle(latest)).vectors)
    assert call("update", *root) == 0
    np.testing.assert_allclose(Bundle.read(labelled_bundle(latest)).vectors, removed, rtol=ROUNDED, atol=1e-5)
    assert [label.passage_id for label in Dataset(latest / "dataset").added] == ["p5"]


@pytest.mark.slow
def test_labels_added_during_an_update_are_kept(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    root, real = ("--root", str(trained.root)), pipelines.run_calls

    def meanwhile(*arguments: Any) -> Outcome:
        outcome = real(*arguments)
        assert call("labels", "add", "a label in the meantime", "p9", *root) == 0
        assert call("labels", "remove", "where is the old copper", "p5", *root) == 0
        return outcome

    monkeypatch.setattr(pipelines, "run_calls", meanwhile)
    assert call("update", *root) == 0
    added = Bundle.read(labelled_bundle(trained.root / "latest")).added
    assert added is not None and [label.passage_id for label in added.labels] == ["p9"] and added.changes is not None
    assert len(added.changes.nodes) == 2


@pytest.mark.slow
def test_a_pruned_root_searches_as_before_and_runs_again(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    question, latest, root = "what is the old river", trained.root / "latest", ("--root", str(trained.root))
    names = [
        "models:/gnn-encoder@champion",
        *(str(latest / name) for name in latest_links(trained) if "bundle" in name),
    ]
    before = [Retriever.load(name, trained.root).search(question) for name in names]
    kept, artifacts = set(latest_links(trained).values()), set(trained.root.glob("pipeline/*/*/*/manifest.json"))
    assert call("prune", "--keep", "0", "--delete", *root) == 0
    assert "outputs of earlier runs" in capsys.readouterr().out
    assert len(set(trained.root.glob("pipeline/*/*/*/manifest.json"))) < len(artifacts) / 2
    assert all(path.is_dir() for path in kept)
    assert [Retriever.load(name, trained.root).search(question) for name in names] == before
    assert explain(trained, "where is the new violin") == 0
    assert call("labels", "undo", *root) == 0
    assert call("prune", "--keep", "0", *root) == 0
    assert "everything is needed" in capsys.readouterr().out
    outcome = trained.run()
    assert outcome.status == "FINISHED", f"{outcome.message}\n{outcome.log.read_text()[-4000:]}"
    assert {"bm25_retrieve", "train_dpr"} <= set(trained.events(outcome, "starting"))
    assert {"train_cross_encoder", "train_gnn"} <= set(trained.events(outcome, "cached")), "they are in latest/"


@pytest.mark.slow
def test_an_update_reads_the_labels_of_a_recommended_bundle_without_a_graph(trained: Trained) -> None:
    """Of query clusters, as if the run had recommended them."""
    latest, root = trained.root / "latest", ("--root", str(trained.root))
    linked(trained.root, "bundle", (latest / place_of(QUERY_CLUSTERS)).resolve())
    assert labelled_bundle(latest) == latest / "bundle"
    before = Bundle.read((latest / "bundle").resolve())  # large parts are read later, and the link moves
    assert call("labels", "add", "which river has a violin", "p3", *root) == 0
    added = Bundle.read((latest / "bundle").resolve())
    assert added.added and added.changes and added.vectors.tobytes() != before.vectors.tobytes()
    assert call("update", *root) == 0
    updated, of_graph = Bundle.read(latest / "bundle"), Bundle.read(graph_bundle(latest))
    assert updated.system == QUERY_CLUSTERS and updated.added and of_graph.added and not updated.changes
    labels = Dataset(latest / "dataset").added
    assert labels == added.added.labels == updated.added.labels == of_graph.added.labels
    assert added.vector_passages is not None and updated.vector_passages is not None
    np.testing.assert_array_equal(updated.vector_passages, added.vector_passages)
    np.testing.assert_allclose(updated.vectors, added.vectors, rtol=ROUNDED, atol=1e-5)
    # A label that the update has read is removed at once.
    assert call("labels", "remove", "which river has a violin", "p3", *root) == 0
    removed = Bundle.read(latest / "bundle")
    assert removed.changes and removed.vectors.shape == before.vectors.shape
    np.testing.assert_allclose(removed.vectors, before.vectors, rtol=ROUNDED, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_other_indexes_run_in_one_root(trained: Trained) -> None:
    """They find the same hits, so that the evaluation's figures are those of the index before."""
    latest, root = trained.root / "latest", ("--root", str(trained.root))
    models = open_registry(f"sqlite:///{trained.root / 'mlflow.db'}", "gnn-encoder")
    kinds = [("hnsw", 128), ("hnsw", 256), ("flat", 256), ("hnsw", 128)]
    for number, (kind, breadth) in enumerate(kinds):
        outcome = trained.run("--set", f"encode_corpus.index={kind}", "--set", f"encode_corpus.hnsw_breadth={breadth}")
        assert outcome.status == "FINISHED", f"{outcome.message}\n{outcome.log.read_text()[-4000:]}"
        assert "train_gnn" in trained.events(outcome, "cached") or not number
        chosen, of_graph = Bundle.read(latest / "bundle"), Bundle.read(latest / GRAPH_BUNDLE)
        for settings in (chosen.manifest.settings, of_graph.manifest.settings):
            assert (settings["index"], settings["hnsw_breadth"]) == (kind, breadth)
        assert (f'index = `"{kind}"`' in (chosen.path / "README.md").read_text("utf-8")) == (kind != "flat")
        encoding = read_history(latest / "report")["encode_corpus"].settings
        assert (encoding["index"], encoding["hnsw_breadth"]) == (kind, breadth)
        decided = Decision.read(outcome.outputs["decision"]).facts["bundle_digest"]
        assert decided == chosen.manifest.digest in {version.tags["digest"] for version in models.versions()}
        assert explain(trained, "what is the old river") == 0
        if number == 1:
            assert call("prune", "--keep", "1", "--delete", *root) == 0
    assert call("update", *root) == 0
    updated = Bundle.read(latest / GRAPH_BUNDLE).manifest.settings
    assert (updated["index"], updated["hnsw_breadth"]) == kinds[-1]


@pytest.mark.slow
def test_a_recommended_dpr_is_bundled_and_updated(trained: Trained) -> None:
    latest, root = trained.root / "latest", ("--root", str(trained.root))
    assert not (latest / "dpr").exists()
    first = "recommend.order=[DPR, Dual encoder]"
    outcome = trained.run("--set", first, "--set", "recommend.margin=1.0", "--set", "recommend.significance=0.0")
    assert outcome.status == "FINISHED", f"{outcome.message}\n{outcome.log.read_text()[-4000:]}"
    before = Bundle.read((latest / "bundle").resolve())
    assert before.system == DPR and (latest / place_of(DPR)).is_dir() and (latest / "dpr").is_dir()
    question = "what is the old river"
    hits = Retriever.load(str(latest / "bundle"), trained.root).search(question)
    assert call("update", *root) == 0
    after = Bundle.read(latest / "bundle")
    assert after.path.resolve() != before.path and after.system == DPR
    np.testing.assert_array_equal(after.vectors, before.vectors)
    assert Retriever.load(str(latest / "bundle"), trained.root).search(question) == hits
    assert trained.run().status == "FINISHED"
    assert not (latest / "dpr").exists() and not (latest / place_of(DPR)).exists()


@pytest.mark.slow
def test_labels_a_tenth_of_which_is_shuffled_promote_nothing(trained: Trained) -> None:
    keep = ("--set", "promote.minimum_gain=-2.0", "--set", "promote.largest_latency_ratio=100")
    assert retrain(trained, *keep).returncode == 0
    models = open_registry(f"sqlite:///{trained.root / 'mlflow.db'}", "gnn-encoder")
    before, random = models.find(CHAMPION), np.random.default_rng(0)
    for split in ("train", "dev", "test"):
        labels = trained.root.parent / "beir" / "qrels" / f"{split}.tsv"
        header, *rows = [line.split("\t") for line in labels.read_text().splitlines()]
        some = random.permutation(len(rows))[: max(2, len(rows) // 10)]
        for row, passage in zip(some, [rows[i][1] for i in np.roll(some, 1)], strict=True):
            rows[row][1] = passage
        labels.write_text("".join("\t".join(row) + "\n" for row in [header, *rows]))
    ended = retrain(trained, *keep)
    assert ended.returncode == 0, ended.stderr
    assert "changed since" in ended.stdout and "## gnn-encoder: keep" in ended.stdout
    assert models.find(CHAMPION).number == before.number
    newest = models.versions()[0]
    assert newest.tags["decision"] == "keep" and "against the champion" in newest.tags["reason"]
    assert newest.tags["digest"] != before.tags["digest"]
    assert retrain(trained, *keep, "--fail-on-keep").stdout.startswith("nothing to do")
