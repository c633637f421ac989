"""Evaluations written by hand, and what is recommended on their figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gnn_encoder.artifacts import Dataset, Evaluation, Recommended, drafting, read_manifest
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.settings.outcome import Evaluate, Recommend
from gnn_encoder.steps.recommend import recommend

PLAIN, FUSED, GRAPH = "Dual encoder", "BM25 + Dual encoder", "GNN-encoder"
MEANS = {"BM25": 0.3, PLAIN: 0.5, GRAPH: 0.7, FUSED: 0.5}


def write_evaluation(
    path: Path,
    dataset: Dataset,
    means: dict[str, float],
    bundles: Sequence[Path] = (),
    splits: tuple[str, ...] = ("dev",),
    records: Mapping[str, Record] = {},
) -> Path:
    """An evaluation in which each system has its mean, up to 0.1 more or less for a query."""
    generator, parts = np.random.default_rng(1), []
    for split in splits:
        rows = dataset.query_rows(split)
        for system, mean in means.items():
            noise = generator.permutation(np.linspace(-0.1, 0.1, len(rows)))
            columns = {"split": [split] * len(rows), "query": rows, "system": [system] * len(rows)}
            parts.append(pa.table({**columns, "RR@10": mean + noise}))
    metrics: dict[str, Any] = {
        "baseline": PLAIN,
        "headline_split": splits[-1],
        "results": {split: {system: {"RR@10": mean} for system, mean in means.items()} for split in splits},
        "queries": {split: len(dataset.query_rows(split)) for split in splits},
        "fusions": {
            FUSED: {"method": "convex", "dense": PLAIN, "weight": 0.4, "tuned_on": "dev"},
            f"{FUSED} (RRF)": {"method": "rrf", "dense": PLAIN},
        },
    }
    with drafting(path, "evaluation") as draft:
        Evaluation.write(draft, metrics=metrics, per_query=pa.concat_tables(parts), answers=None, first_hits={})
        draft.manifest.inputs = {"dataset": dataset.manifest.digest}
        draft.manifest.settings = Evaluate(permutations=200).model_dump(mode="json")
        ranked = {f"rank: {path.name}": Record(inputs={"bundle": read_manifest(path).digest}) for path in bundles}
        write_history(draft.path, {**ranked, **records})
    return path


def advice(folder: Path, dataset: Dataset, means: dict[str, float], settings: Recommend, **more: Any) -> dict[str, Any]:
    evaluation = write_evaluation(folder / "evaluation", dataset, means, **more)
    recommend(settings, dataset=dataset.path, evaluation=evaluation, recommendation=folder / "recommendation")
    return Recommended.read(folder / "recommendation").facts
