"""Bundles that find a chosen share of the tiny test queries' passages, with the evaluations that `promote` reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from bundles import fill_bundle

from gnn_encoder.artifacts import Bundle, Dataset, Evaluation, Graph, Recommended, Run, drafting, read_manifest
from gnn_encoder.artifacts.bundle import Serving
from gnn_encoder.artifacts.calibration import FirstHits
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.artifacts.tables import System
from gnn_encoder.evaluation.measures import NAMES, labelled_queries
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.settings.outcome import Evaluate

BASELINE, CANDIDATE = "Dual encoder", "GNN-encoder"


def write_bundle(path: Path, dataset: Dataset, backbone: Path, right: int, noise: float = 0.0) -> Path:
    """A bundle that ranks the positive of the first `right` test queries first, and of no other among the first ten.

    `noise` makes another bundle of the same ranking.
    """
    encoder = TextEncoder.from_backbone(str(backbone), pooling="mean", normalize="yes", max_length=16)
    labels = dataset.split_qrels("test")
    queries, passages = labels.query[:right], labels.passage[:right]
    # At the query's own vector there is its passage; the others lie opposite to all queries, the labelled ones last.
    query_vectors = encode_texts(encoder, dataset.query_texts(labels.query), precision="fp32")
    vectors = np.tile(-query_vectors.mean(axis=0), (len(dataset.passages), 1)).astype(np.float32)
    vectors[labels.passage] *= 2
    vectors[passages] = query_vectors[: len(queries)]
    vectors *= 1 + noise
    with drafting(path, "bundle") as draft:
        fill_bundle(draft, vectors, dataset, encoder.save)
    return path


def write_evaluation(
    path: Path,
    bundle: Path,
    dataset: Dataset,
    value: float,
    steps: int = 2,
    written: tuple[str, ...] = (),
    runs: Sequence[Path] = (),
) -> Path:
    """The evaluation of a bundle in which its figures are `value`, and the dual encoder's 0.1; 12 queries are cold.

    runs: those that were evaluated, if the gate is to read them.
    """

    def figures(queries: int, value: float) -> dict[str, Any]:
        of_candidate = {CANDIDATE: dict.fromkeys(NAMES, 0.031)}
        return {
            "measures": list(NAMES),
            "results": {"test": {BASELINE: dict.fromkeys(NAMES, 0.1), CANDIDATE: dict.fromkeys(NAMES, value)}},
            "queries": {"test": queries},
            **{kind: {"test": of_candidate} for kind in ("p_values", "p_holm", "better", "worse")},
        }

    metrics = {
        **figures(1234, value),
        "strata": {"cold": figures(12, value)},
        "baseline": BASELINE,
        "candidate": CANDIDATE,
        "headline_split": "test",
        "written": written,
        "test": "randomization",
        "digests": {"test": "data"},
    }
    with drafting(path, "evaluation") as draft:
        dev, queries = dataset.judged("dev"), labelled_queries(dataset.judged("dev"))
        dev_first = {System.of(run).name: FirstHits.of(Run.read(run), queries, dev) for run in runs}
        table = pa.table({"query": [0]})
        Evaluation.write(draft, metrics=metrics, per_query=table, answers=None, first_hits={}, dev_first=dev_first)
        draft.manifest.inputs = {"dataset": dataset.manifest.digest}
        draft.manifest.inputs |= {f"runs.{i}": read_manifest(run).digest for i, run in enumerate(runs)}
        draft.manifest.settings = Evaluate(permutations=500, precision="fp32").model_dump(mode="json")
        draft.manifest.metrics = {"headline": f"GNN-encoder MRR@10 {value:.3f}"}
        record = Record(metrics={"seconds": 12.4, "headline": f"loss {value}"})
        ranked = Record(inputs={"bundle": read_manifest(bundle).digest}, metrics=record.metrics)
        trained = {f"train_{i}": record for i in range(steps)}
        write_history(draft.path, {"rank: GNN-encoder": ranked, **trained, "evaluate": record})
    return path


def write_run(path: Path, system: str, dataset: Dataset, right: int, rank: int = 2, **origin: Any) -> Path:
    """The hits of a system that has the passages of the first `right` dev and test queries at a rank, 1 or 2.

    origin: fields of the manifest.
    """
    labels = [dataset.split_qrels(split) for split in ("dev", "test")]
    query, passage = (np.concatenate([getattr(of, name)[:right] for of in labels]) for name in ("query", "passage"))
    hits = np.stack([(passage + 1) % len(dataset.passages), passage][:: -1 if rank == 1 else 1], axis=1)
    with drafting(path, "run") as draft:
        Run.from_hits(query, hits, np.tile([2.0, 1.0], (len(hits), 1))).write(draft, system)
        for name, value in origin.items():
            setattr(draft.manifest, name, value)
    return path


def write_recommendation(path: Path, evaluation: Path, system: str = CANDIDATE) -> Path:
    """The recommendation of a system by an evaluation."""
    with drafting(path, "recommendation") as draft:
        digest = read_manifest(evaluation).digest
        sentence = f"Recommended: {system} (MRR@10 0.5)"
        Recommended.write(draft, {"evaluation": digest, "system": system, "sentence": sentence})
        draft.manifest.inputs = {"evaluation": digest}
    return path


def write_chosen(path: Path, bundle: Path, recommendation: Path, weight: float | None = None) -> Path:
    """The bundle that `choose_bundle` makes of a bundle."""
    with drafting(path, "bundle") as draft:
        system = Recommended.read(recommendation).facts["system"]
        Bundle.read(bundle).serve(draft, Serving(system, weight, "dev" if weight else None))
        chosen = Record(inputs={"recommendation": read_manifest(recommendation).digest})
        write_history(draft.path, {"choose_bundle": chosen})
    return path


def write_graph(path: Path, dataset: Dataset) -> Path:
    """A graph in which the passages of 13 of the 20 test labels have an edge."""
    train, reached = dataset.query_rows("train"), dataset.split_qrels("test").passage[:13]
    edges = np.resize(reached, (len(train), 1)).astype(np.int32)
    with drafting(path, "graph") as draft:
        Graph.write_structure(draft, train, edges, np.zeros(edges.shape, bool), edges, len(dataset.passages))
    return path


def write_inputs(
    folder: Path,
    dataset: Dataset,
    backbone: Path,
    right: int,
    noise: float = 0.0,
    steps: int = 2,
    written: tuple[str, ...] = (),
    runs: Sequence[Path] = (),
) -> dict[str, Path]:
    """What `promote` reads."""
    bundle_path = write_bundle(folder / "gnn_encoder", dataset, backbone, right, noise)
    evaluation = write_evaluation(folder / "evaluation", bundle_path, dataset, right / 20, steps, written, runs)
    recommendation = write_recommendation(folder / "recommendation", evaluation)
    bundle = write_chosen(folder / "bundle", bundle_path, recommendation)
    graph = write_graph(folder / "graph", dataset)
    return {
        "dataset": dataset.path, "bundle": bundle, "evaluation": evaluation, "recommendation": recommendation,
        "graph": graph,
    }  # fmt: skip
