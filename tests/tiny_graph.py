"""Graphs that the tests share: random arrays, and the tiny dataset encoded by random models."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import write_bm25

from gnn_encoder.artifacts import Dataset, Graph, TrainingSet, drafting, reverse_csr
from gnn_encoder.artifacts.finished_run import graph_bundle
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.settings.outcome import EncodeCorpus, EncodeNodes
from gnn_encoder.settings.shared import Merge
from gnn_encoder.steps.build_graph import build_graph
from gnn_encoder.steps.encode_corpus import encode_corpus
from gnn_encoder.steps.encode_nodes import encode_nodes
from gnn_encoder.steps.merge import merge

N, M, K, D, DE = 23, 40, 5, 16, 6
GRAPH = {"neighbors": 3, "retrieved": 6}
ROUNDED = 2**-10
"""Largest relative distance of two neighbouring fp16 numbers: what is stored once may be rounded up, once down."""
VARIANTS = pytest.mark.parametrize(
    ("layers", "gate", "features", "labelled", "loops"),
    [
        (2, "filter", True, False, False),
        (2, "filter", True, True, True),
        (2, "fixed", False, True, False),
        (2, "filter", False, False, False),
        (1, "filter", True, True, False),
        (1, "fixed", False, False, False),
        (0, "filter", True, False, False),
    ],
)
"""Kinds of GNN, and of graph under it (`random_graph`)."""


def random_graph(features: bool, labelled: bool, loops: bool) -> Graph:
    """A ragged graph: missing edges, isolated passages, and one passage that most queries reach."""
    generator = np.random.default_rng(2)
    edges = np.array([generator.permutation(M - 10)[:K] for _ in range(N)], dtype=np.int32)
    edges[: N // 2, 0] = M - 10
    edges[generator.random((N, K)) < 0.2] = -1
    half = {name: generator.normal(size=size).astype(np.float16) for name, size in (("q", (N, DE)), ("p", (M, DE)))}
    return Graph(
        np.arange(N, dtype=np.int32),
        edges,
        (edges >= 0) & (generator.random((N, K)) < 0.3) & labelled,
        generator.normal(size=(N, K, DE)).astype(np.float16) if features else None,
        *reverse_csr(edges, M),
        query_loops=half["q"] if loops else None,
        passage_loops=half["p"] if loops else None,
    )


def write_models(folder: Path, backbone: Path) -> dict[str, Path]:
    """A dual encoder, a cross-encoder and a GNN-encoder with random weights, large enough to matter."""
    torch.manual_seed(0)
    encoders = DualEncoder.from_backbone(
        str(backbone), pooling="mean", normalize="yes", query_length=32, passage_length=32, share_encoders=False
    )
    scorer = CrossEncoder.from_backbone(str(backbone), 48)
    joint = GnnEncoder(encoders, GNN(GnnConfig(width=encoders.query_encoder.width, edge_width=scorer.width)))
    save = partial(save_scorer, "cross_encoder", scorer)
    saves = {"dual_encoder": encoders.save, "cross_encoder": save, "gnn_encoder": joint.save}
    for name, save_model in saves.items():
        with drafting(folder / name, "model") as draft:
            save_model(draft.path)
    return {name: folder / name for name in saves}


def write_gnn_inputs(data: Dataset, backbone: Path, folder: Path, build: BuildGraph) -> dict[str, Path]:
    """The inputs of `train_gnn`, made by random models; the folder has their cross-encoder, too."""
    torch.manual_seed(0)
    with drafting(folder / "dual_encoder", "model") as draft:
        DualEncoder.from_backbone(
            str(backbone), pooling="mean", normalize="yes", query_length=32, passage_length=32, share_encoders=True
        ).save(draft.path)
    with drafting(folder / "cross_encoder", "model") as draft:
        save_scorer("cross_encoder", CrossEncoder.from_backbone(str(backbone), 48), draft.path)
    qrels = data.split_qrels("train")
    with drafting(folder / "training_set", "training_set") as draft:
        n = len(qrels.query)
        texts, none = data.query_texts(qrels.query), np.full((n, 1), -1, np.int32)
        TrainingSet(texts, qrels.query, qrels.passage, none, np.zeros(n, np.int8)).write(draft)
    artifacts = {"dataset": data.path, "dual_encoder": folder / "dual_encoder"}
    built = {"graph": folder / "graph", "passage_vectors": folder / "passage_vectors"}
    build_graph(build, **artifacts, cross_encoder=folder / "cross_encoder", **built)
    return {**artifacts, **built, "training_set": folder / "training_set"}


def encode(
    dataset: Path, models: dict[str, Path], out: Path, previous: Path | None = None, *, precision: str = "fp32",
    vector_type: str = "fp16", shards: int = 1, **settings: object,
) -> Path:  # fmt: skip
    """Graph, encoding and bundle of a dataset, with nothing scored before; `shards` tasks encode."""
    both = {"precision": precision, "previous": str(previous or "")}
    built = {"graph": out / "graph", "passage_vectors": out / "passage_vectors"}
    build_graph(
        BuildGraph.model_validate({**GRAPH, **both, "vector_type": vector_type}), dataset=dataset,
        dual_encoder=models["dual_encoder"], cross_encoder=models["cross_encoder"], **built,
    )  # fmt: skip
    artifacts = {"dataset": dataset, "gnn_encoder": models["gnn_encoder"], **built}
    encode_in_tasks(out, shards, both, **artifacts)
    wanted = EncodeCorpus.model_validate({**both, **settings})
    bm25_index = write_bm25(dataset, out / "bm25_index")
    encode_corpus(wanted, **artifacts, encoding=out / "encoding", bm25_index=bm25_index, bundle=out / "bundle")
    (out / "bundles").mkdir()
    graph_bundle(out).symlink_to(out / "bundle")
    return out


def encode_in_tasks(out: Path, shards: int, settings: dict[str, str], dataset: Path, **inputs: Path) -> None:
    """Write `out/encoding`, which several tasks made."""
    parts = [out / f"{shard} of {shards}" for shard in range(shards)]
    for shard, part in enumerate(parts):
        task = EncodeNodes.model_validate({**settings, "shards": shards, "shard": shard})
        encode_nodes(task, dataset=dataset, **inputs, encoding=part)
    merge(Merge(), parts=parts, dataset=dataset, merged=out / "encoding")
