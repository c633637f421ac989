"""Bundles that find a chosen share of the tiny test queries' passages, with the reports that `promote` reads."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Bundle, Dataset, drafting, read_manifest
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.artifacts.report import Report
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.inference.encoding import encode_texts
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.retrieval.index_file import build_index
from gnn_encoder.settings.outcome import Evaluate

BASELINE, CANDIDATE = "Dual encoder", "GNN-encoder"


def write_bundle(path: Path, dataset: Dataset, backbone: Path, found: int, noise: float = 0.0) -> Path:
    """A bundle that ranks the positive of the first `found` test queries first, and of no other among the first ten.

    `noise` makes another bundle of the same ranking.
    """
    encoder = TextEncoder.from_backbone(str(backbone), pooling="mean", normalize="yes", max_length=16)
    labels = dataset.split_qrels("test")
    queries, passages = labels.query[:found], labels.passage[:found]
    # At the query's own vector there is its passage; the others lie opposite to all queries, the labelled ones last.
    asked = encode_texts(encoder, dataset.query_texts(labels.query), precision="fp32")
    vectors = np.tile(-asked.mean(axis=0), (len(dataset.passages), 1)).astype(np.float32)
    vectors[labels.passage] *= 2
    vectors[passages] = asked[: len(queries)]
    vectors *= 1 + noise
    with drafting(path, "bundle") as draft:
        Bundle.write(draft, vectors, dataset, save_index=build_index, save_query_encoder=encoder.save)
    return path


def write_report(path: Path, bundle: Path, dataset: Dataset, value: float, steps: int = 2) -> Path:
    """The evaluation of a bundle in which its figures are `value`, and the dual encoder's 0.1."""
    metrics = {
        "measures": list(NAMES),
        "baseline": BASELINE,
        "candidate": CANDIDATE,
        "headline_split": "test",
        "results": {"test": {BASELINE: dict.fromkeys(NAMES, 0.1), CANDIDATE: dict.fromkeys(NAMES, value)}},
        "digests": {"test": "data"},
        "queries": {"test": 1234},
        "p_holm": {"test": {CANDIDATE: dict.fromkeys(NAMES, 0.031)}},
        "profile": {"passages": 5000, "labels_with_neighbors": {"test": 0.65}},
    }
    with drafting(path, "report") as draft:
        Report.write(draft, metrics=metrics, per_query=pa.table({"query": [0]}), plots={}, page="")
        draft.manifest.inputs = {"bundle": read_manifest(bundle).digest, "dataset": dataset.manifest.digest}
        draft.manifest.metrics = {"headline": f"GNN-encoder MRR@10 {value:.3f}"}
        made = Record(metrics={"seconds": 12.4, "headline": f"loss {value}"})
        settings = Evaluate(permutations=500, precision="fp32").model_dump(mode="json")
        evaluated = Record(settings=settings, metrics=made.metrics)
        write_history(draft.path, {**{f"train_{i}": made for i in range(steps)}, "evaluate": evaluated})
    return path


def write_inputs(
    folder: Path, dataset: Dataset, backbone: Path, found: int, noise: float = 0.0, steps: int = 2
) -> dict[str, Path]:
    """What `promote` reads."""
    bundle = write_bundle(folder / "bundle", dataset, backbone, found, noise)
    report = write_report(folder / "report", bundle, dataset, found / 20, steps)
    return {"dataset": dataset.path, "bundle": bundle, "report": report}
