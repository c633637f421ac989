"""All fifteen steps on a tiny data set with tiny random models, as `gnn-encoder run` runs them."""

import csv
import gzip
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gnn_encoder import cli, jobs
from gnn_encoder.artifacts import Bundle, Dataset, Report, read_manifest
from gnn_encoder.local_run import Outcome
from gnn_encoder.settings import STEPS

pytestmark = pytest.mark.timeout(400)


def write_beir(dataset: Dataset, folder: Path) -> Path:
    """The data set as a BEIR folder: corpus.jsonl, queries.jsonl, qrels/*.tsv."""
    (folder / "qrels").mkdir(parents=True)
    passages = next(dataset.passages.stream())
    with (folder / "corpus.jsonl").open("w") as file:
        for columns in zip(passages.ids, passages.titles, passages.texts, strict=True):
            file.write(json.dumps(dict(zip(("_id", "title", "text"), columns, strict=True))) + "\n")
    ids = dataset.queries.column("query_id").to_pylist()
    with (folder / "queries.jsonl").open("w") as file:
        for query_id, text in zip(ids, dataset.queries.column("text").to_pylist(), strict=True):
            file.write(json.dumps({"_id": query_id, "text": text}) + "\n")
    for split in ("train", "dev", "test"):
        labels = dataset.split_qrels(split)
        with (folder / "qrels" / f"{split}.tsv").open("w") as file:
            rows = csv.writer(file, delimiter="\t")
            rows.writerow(("query-id", "corpus-id", "score"))
            rows.writerows((ids[q], passages.ids[p], 1) for q, p in zip(labels.query, labels.passage, strict=True))
    return folder


def tiny_settings(backbone: Path, seq2seq: Path) -> dict[str, Any]:
    training = {"epochs": 1, "batch_size": 30, "precision": "fp32", "dev_queries": 5, "dev_pool": 40}
    few = {"query_length": 16, "passage_length": 24, "learning_rate": 1e-3}
    return {
        "shared": {**training, "backbone": str(backbone), "generator": str(seq2seq), "seed": 1},
        "bm25_retrieve": {"train_depth": 20},
        "train_dpr": {**few, "negative_depth": 10},
        "dense_retrieve": {"train_depth": 20},
        "train_cross_encoder": {"pair_length": 32, "negatives": 1, "negative_depth": 10, "learning_rate": 1e-3},
        "score_candidates": {"candidates": 6},
        "train_query_generator": {**few, "rouge_pairs": 5},
        "generate_queries": {"negatives_per_query": 1, "sentence_encoder": str(backbone), "negative_below": 0.6},
        "select_training_set": {"negative_below": 0.6, "negatives_per_example": 2},
        "train_dual_encoder": few,
        "build_graph": {"neighbors": 4},
        "train_gnn": {"mask_fraction": 0.5, "heads": 2},
        "evaluate": {"untrained_backbone": str(backbone), "permutations": 100},
    }


class Trained:
    """A root in which the pipeline ran once, and how to run it again."""

    def __init__(self, folder: Path, dataset: Dataset, backbone: Path, seq2seq: Path) -> None:
        self.root = folder / "root"
        preset = folder / "tiny.yaml"
        preset.write_text(yaml.safe_dump(tiny_settings(backbone, seq2seq)))
        beir = write_beir(dataset, folder / "beir")
        self.command = ["run", "--preset", str(preset), "--dataset", str(beir), "--root", str(self.root)]
        self.outcomes: list[Outcome] = []

    def run(self, *more: str) -> Outcome:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["gnn-encoder", *self.command, *more])
            real = jobs.run
            patch.setattr(jobs, "run", lambda *a: self.outcomes.append(real(*a)) or self.outcomes[-1])
            with pytest.raises(SystemExit) as caught:
                cli.main()
        outcome = self.outcomes[-1]
        assert caught.value.code == outcome.exit_code
        return outcome

    def events(self, outcome: Outcome, kind: str) -> list[str]:
        lines = outcome.log.with_suffix(".events.jsonl").read_text().splitlines()
        return [event["step"] for event in map(json.loads, lines) if event["event"] == kind]

    def runs(self) -> list[Any]:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{self.root / 'mlflow.db'}")
        return list(client.search_runs(["1"], order_by=["attributes.start_time"]))


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path, tiny_seq2seq: Path
) -> Iterator[Trained]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("OMP_NUM_THREADS", "1")
        yield Trained(tmp_path_factory.mktemp("pipeline"), tiny_dataset, tiny_backbone, tiny_seq2seq)


def test_from_raw_text_to_a_decision(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = trained.run()
    shown = capsys.readouterr().out
    assert outcome.status == "FINISHED", f"{outcome.message}\n{outcome.log.read_text()[-4000:]}"
    assert Counter(trained.events(outcome, "finished")) == Counter(STEPS)
    for words in ("BM25", "DPR", "decision", "report.html", "gnn-encoder search"):
        assert words in shown
    assert (trained.root / "latest" / "report" / "report.html").is_file()
    for path in outcome.outputs.values():
        manifest = read_manifest(path)
        assert manifest.step in STEPS
        assert manifest.metrics["headline"]
    parent, *steps = trained.runs()
    assert {run.info.status for run in (parent, *steps)} == {"FINISHED"}
    assert "test/GNN-encoder/RR_at_10" in parent.data.metrics
    assert Counter(run.info.run_name for run in steps) == Counter(STEPS)
    assert {run.data.tags["mlflow.parentRunId"] for run in steps} == {parent.info.run_id}
    for run in steps:
        assert {"seconds", "peak_memory_gib"} <= set(run.data.metrics)
        assert {"version", "code_digest"} <= set(run.data.tags)
    assert not list(trained.root.glob("checkpoints/*")), "what finished needs no checkpoint"
    assert not list(trained.root.glob("pipeline/*/*/.*.partial-*"))


def test_search_finds_passages(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bundle = str(trained.root / "latest" / "bundle")
        patch.setattr(sys, "argv", ["gnn-encoder", "search", "what is the old river", "--bundle", bundle, "-k", "3"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    assert not caught.value.code
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if "[p" in line] == ["1", "2", "3"]


def test_a_fused_search_is_the_reports_fused_row(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    latest = trained.root / "latest"
    data = Dataset(latest / "dataset")
    (query,) = data.query_rows("test")[:1]
    (question,), (query_id,) = data.query_texts([query]), data.queries.column("query_id").take([query]).to_pylist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "argv", ["gnn-encoder", "search", question, "--bundle", str(latest / "bundle"), "--fuse", "-k", "3"]
        )
        with pytest.raises(SystemExit) as caught:
            cli.main()
    assert not caught.value.code
    shown = capsys.readouterr().out
    assert "tuned on dev" in shown
    with gzip.open(latest / "report" / "runs" / "bm25-gnn-encoder.trec.gz", "rt") as run:
        ranked = [line.split()[2] for line in run if line.startswith(f"{query_id} ")]
    assert re.findall(r"\[(p\d+)\]", shown) == ranked[:3]


def explain(trained: Trained, question: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        bundle = str(trained.root / "latest" / "bundle")
        patch.setattr(sys, "argv", ["gnn-encoder", "explain", question, "--bundle", bundle, "-k", "3"])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    return int(caught.value.code or 0)


def test_explain_says_why(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(trained, "what is the old river") == 0
    assert capsys.readouterr().out.count("with the graph") == 3


def test_the_same_again_reuses_every_step(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = trained.run()
    assert outcome.status == "FINISHED"
    assert Counter(trained.events(outcome, "cached")) == Counter(STEPS)
    assert trained.events(outcome, "starting") == []
    assert outcome.outputs == trained.outcomes[0].outputs
    assert capsys.readouterr().out.count("  cached  ") == len(STEPS)
    assert Counter(run.data.tags.get("cached") for run in trained.runs()[-15:]) == {"true": 15}


def test_another_setting_runs_its_step_and_what_follows_again(trained: Trained) -> None:
    outcome = trained.run("--set", "promote.minimum_gain=-2.0")
    assert trained.events(outcome, "starting") == ["promote"]
    assert set(trained.events(outcome, "cached")) == set(STEPS) - {"promote"}


def test_variants_on_the_pipelines_foundation(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    # Trained jointly with nothing changed, a variant is the pipeline's own model.
    command = ["ablate", *trained.command[1:], "--mode", "joint", "--seeds", "1"]
    own = ["--variant", "frozen: try_variant.mode=frozen build_graph.neighbors=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gnn-encoder", *command, *own])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    assert caught.value.code == 0
    shown, complaints = capsys.readouterr()
    assert shown.count("  cached  ") == len(jobs.COMMON) and "warning" not in complaints
    report = Report.read(Path(shown.split("report ")[-1].strip()).parent)
    results, evaluated = report.metrics["results"], Report.read(trained.root / "latest" / "report").metrics["results"]
    for split in ("dev", "test"):
        for variant, system in (("full", "GNN-encoder"), ("dual encoder", "Dual encoder")):
            for measure, figure in evaluated[split][system].items():
                assert results[split][variant][measure] == pytest.approx(figure, abs=1e-9), (variant, measure)
        assert results[split]["frozen"] != results[split]["full"]
    names = {run.info.run_name: run for run in trained.runs()}
    (parent,) = (run for name, run in names.items() if name.startswith("ablation-tiny"))
    assert parent.data.metrics["test/full/RR_at_10"] == results["test"]["full"]["RR@10"]
    assert {"try_variant: full, seed 1", "try_variant: frozen, seed 1", "compare_variants"} <= set(names)


def test_an_update_encodes_what_has_changed(trained: Trained, tmp_path: Path) -> None:
    changed = tmp_path / "beir"
    shutil.copytree(trained.root.parent / "beir", changed)
    corpus = (changed / "corpus.jsonl").read_text().splitlines()
    corpus[7] = json.dumps({**json.loads(corpus[7]), "text": "an old letter about a garden"})
    corpus.append(json.dumps({"_id": "new", "title": "", "text": "the copper violin is hidden in a cloud"}))
    (changed / "corpus.jsonl").write_text("\n".join(corpus) + "\n")
    before = {name: (trained.root / "latest" / name).resolve() for name in jobs.KEPT}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gnn-encoder", "update", "--dataset", str(changed), "--root", str(trained.root)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
    assert caught.value.code == 0
    after = {name: (trained.root / "latest" / name).resolve() for name in jobs.KEPT}
    assert {name for name in before if before[name] == after[name]} == {"report", *jobs.MODELS}
    worked = read_manifest(after["bundle"])
    assert worked.rows["passages"] == 101 and worked.metrics["encoded"] == 2
    assert 2 <= worked.metrics["propagated"] < 60
    assert read_manifest(after["graph"]).metrics["encoded"] == 2
    assert Bundle.read(after["bundle"]).passages.take(np.array([100])).ids == ["new"]
    assert explain(trained, "a copper violin") == 0  # by the earlier run's GNN over the new graph
