"""A root in which all steps ran on a tiny data set with tiny random models, as `gnn-encoder run` runs them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import call

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.finished_run import place_of
from gnn_encoder.engines import pipelines
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.pipelines.train import train
from gnn_encoder.settings.presets import load_settings
from gnn_encoder.settings.systems import GNN_ENCODER


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
        "train_reranker": {
            **few,
            "pair_length": 32,
            "batch_size": 12,
            "memory_width": 16,
            "token_width": 16,
            "head_learning_rate": 1e-3,
            "negative_depth": 10,
        },
        "train_query_generator": {**few, "rouge_pairs": 5},
        "generate_queries": {"negatives_per_query": 1, "sentence_encoder": str(backbone), "negative_below": 0.6},
        "select_training_set": {"negative_below": 0.6, "negatives_per_example": 2},
        "train_dual_encoder": few,
        "build_graph": {"neighbors": 4},
        # The tiny passages have one query each, so that no label helps; the sum is chosen, the others are given.
        "encode_with_labels": {
            "memory_forms": ["softmax"],
            "memory_weights": [0.3],
            "memory_neighbours": [5],
            "memory_temperatures": [0.1],
            "memory_thresholds": [0.5],
            "cluster_weights": [0.5],
            "clusters": [2],
        },
        "fuse_parts": {"kinds": ["trees"]},
        "train_converged": {"epochs": 2, "patience": 1},
        "choose_graph": {"variants": {"as it is": {}, "labels too": {"build_graph.edges": "retrieved+labelled"}}},
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
            job = pipelines.Training
            real = job.run
            patch.setattr(job, "run", lambda *a, **k: self.outcomes.append(real(*a, **k)) or self.outcomes[-1])
            code = call(*self.command, "--verbose", *more)
        outcome = self.outcomes[-1]
        assert code == outcome.exit_code
        return outcome

    def titles(self) -> list[str]:
        """Of the calls of the run."""
        return [node.title for node in train(load_settings(self.command[2])).nodes]

    def events(self, outcome: Outcome, kind: str) -> list[str]:
        lines = outcome.log.with_suffix(".events.jsonl").read_text().splitlines()
        return [event["step"] for event in map(json.loads, lines) if event["event"] == kind]

    def runs(self) -> list[Any]:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{self.root / 'mlflow.db'}")
        return list(client.search_runs(["1"], order_by=["attributes.start_time"]))


GRAPH_BUNDLE = place_of(GNN_ENCODER)


def explain(trained: Trained, question: str, bundle_name: str = GRAPH_BUNDLE) -> int:
    return call("explain", question, "--bundle", str(trained.root / "latest" / bundle_name), "-k", "3")
