"""Bundles of labelled queries on a small dataset, and datasets with more labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bundles import write_bm25
from conftest import DETAILS, TOPICS
from tiny_graph import GRAPH, write_models

from gnn_encoder.artifacts import Dataset, DatasetWriter, drafting
from gnn_encoder.artifacts.added_labels import AddedLabel
from gnn_encoder.artifacts.dataset import TRAINED
from gnn_encoder.labels.requests import Wanted
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.labels import EncodeWithLabels
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.encode_with_labels import encode_with_labels

USES = {
    "sum": {"kind": "sum"},
    "max": {"kind": "memory", "memory_forms": ("max",)},
    "softmax": {"kind": "memory", "memory_forms": ("softmax",)},
    "clusters": {"kind": "clusters"},
    "nothing": {"kind": "sum", "sum_weights": (0.0,)},
}


def write_inputs(folder: Path, backbone: Path) -> dict[str, Path]:
    """40 passages; 15 needs, each with a passage by chance, and five queries: three train, one dev, one test."""
    random = np.random.default_rng(3)
    passages = [f"the {DETAILS[i % 10]} {TOPICS[i // 4]} and a {DETAILS[i * 3 % 10]}" for i in range(40)]
    answers, needs = random.permutation(40)[:15], np.tile(np.arange(15), 5)
    answers[:3] = answers[0]  # a passage of nine queries
    texts = [f"what is {TOPICS[n % 10]} in {DETAILS[n * 7 % 10]} number {i}" for i, n in enumerate(needs)]
    with drafting(folder / "dataset", "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages([f"p{i}" for i in range(40)], [""] * 40, passages)
        ids = [f"q{i}" for i in range(75)]
        writer.queries(ids, texts, ["train"] * 45 + ["dev"] * 15 + ["test"] * 15, [[] for _ in ids])
        of = answers[needs]
        writer.qrels(ids, [f"p{p}" for p in of], [1] * 75, list(range(75)), of.tolist())
        writer.close()
    models = write_models(folder, backbone)
    return built(folder / "dataset", models["dual_encoder"], folder)


def built(dataset: Path, dual_encoder: Path, folder: Path, vector_type: str = "fp32") -> dict[str, Path]:
    """The inputs of `encode_with_labels`: a dataset, a dual encoder, its vectors and a BM25 index."""
    artifacts = {"dataset": dataset, "dual_encoder": dual_encoder}
    graph_settings = {"precision": "fp32", "edge_features": "none", "vector_type": vector_type}
    out = {"graph": folder / "graph", "passage_vectors": folder / "vectors"}
    cross_encoder = dual_encoder.with_name("cross_encoder")
    build_graph(BuildGraph.model_validate({**GRAPH, **graph_settings}), **artifacts, cross_encoder=cross_encoder, **out)
    bm25_index = write_bm25(dataset, folder / "bm25_index")
    return {**artifacts, "passage_vectors": folder / "vectors", "bm25_index": bm25_index}


def bundle_of(inputs: dict[str, Path], folder: Path, name: str, **more: Any) -> Path:
    """The bundle of a use of labels; `more`: other settings."""
    settings = EncodeWithLabels.model_validate({"precision": "fp32", "smallest_dev": 10, **USES[name], **more})
    encode_with_labels(settings, **inputs, bundle=folder / name)
    return folder / name


def with_labels(
    dataset: Dataset, path: Path, labels: Sequence[Wanted], added: Sequence[AddedLabel] = (), drawn: Sequence[int] = ()
) -> Path:
    """The dataset with more training labels, as `ingest` would read them from the data, or from `added` labels.

    drawn: rows of the queries that are trained on; none: all.
    """
    table, queries = dataset.passages.take(np.arange(len(dataset.passages))), dataset.queries.to_pydict()
    known = dict(zip(queries["text"], range(len(queries["text"])), strict=True))
    rows = {
        text: len(known) + i for i, text in enumerate(dict.fromkeys(w.query for w in labels if w.query not in known))
    }
    every, qrels = known | rows, dataset.qrels
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(table.ids, table.titles, table.texts)
        id_of = {label.query: label.query_id for label in added}
        ids = [*queries["query_id"], *(id_of.get(text, f"new{i}") for text, i in rows.items())]
        splits = [*queries["split"], *("train" for _ in rows)]
        writer.queries(ids, list(every), splits, [[] for _ in ids])
        query = [*qrels.query.tolist(), *(every[w.query] for w in labels)]
        passage = [*qrels.passage.tolist(), *(table.ids.index(w.passage_id) for w in labels)]
        ones = [1] * len(query)
        writer.qrels([ids[q] for q in query], [table.ids[p] for p in passage], ones, query, passage)
        if added:
            writer.added(added)
        if drawn:
            writer.table(TRAINED, drawn)
        writer.close()
    return path
