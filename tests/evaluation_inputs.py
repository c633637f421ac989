"""What `evaluate` reads, made on the tiny dataset by random models."""

from pathlib import Path

import numpy as np
import torch

from gnn_encoder.artifacts import (
    Bundle,
    Contents,
    Dataset,
    Graph,
    Run,
    create_rows,
    create_vectors,
    drafting,
)
from gnn_encoder.encoding import encode_passages, encode_texts
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig
from gnn_encoder.models.gnn_encoder import GnnEncoder
from gnn_encoder.retrieval.index_file import build_index


def write_graph(folder: Path, dataset: Dataset, encoders: DualEncoder, vectors: np.ndarray) -> None:
    """A graph of random edges, a random GNN, and h_p and h_q as they are without training."""
    train, m = dataset.query_rows("train"), len(dataset.passages)
    torch.manual_seed(0)
    edges = np.stack([np.random.default_rng(int(q)).permutation(m)[:4] for q in train]).astype(np.int32)
    with drafting(folder / "graph", "graph") as draft:
        Graph.write_structure(draft, train, edges, np.zeros(edges.shape, bool), edges, m)
    with drafting(folder / "gnn_encoder", "model") as draft:
        GnnEncoder(encoders, GNN(GnnConfig(width=vectors.shape[1], edge_width=0))).save(draft.path)
    with drafting(folder / "encoding", "encoding") as draft:
        create_rows(draft, "passages", vectors.shape)[:] = vectors
        asked = encode_texts(encoders.query_encoder, dataset.query_texts(train), precision="fp32")
        create_rows(draft, "queries", asked.shape)[:] = asked
        Contents.write(draft, {})


def write_inputs(folder: Path, dataset: Dataset, backbone: Path) -> dict[str, Path]:
    """BM25 finds every positive first, DPR every positive third; M_de and the bundle are random."""
    queries, m = np.arange(len(dataset.queries)), len(dataset.passages)
    positive = dataset.qrels.passage[np.argsort(dataset.qrels.query)]
    others = np.stack([positive + 1, positive + 2], axis=1) % m
    scores = np.tile(np.float32([3, 2, 1]), (len(queries), 1))
    first = np.column_stack([positive, others])
    for name, hits in (("bm25_run", first), ("dpr_run", first[:, [1, 2, 0]])):
        with drafting(folder / name, "run") as draft:
            Run.from_hits(queries, hits, scores).write(draft)
    encoders = DualEncoder.from_backbone(
        str(backbone), pooling="mean", normalize="yes", query_length=16, passage_length=24, share_encoders=False
    )
    with drafting(folder / "dual_encoder", "model") as draft:
        encoders.save(draft.path)
    with drafting(folder / "passage_vectors", "vectors") as draft:
        vectors = create_vectors(draft, m, encoders.passage_encoder.width)
        encode_passages(encoders.passage_encoder, dataset.passages, vectors, precision="fp32")
        vectors.flush()
    with drafting(folder / "bundle", "bundle") as draft:
        # The GNN-encoder's stand-in: the same vectors with noise, so that some queries win and some lose.
        noisy = vectors + np.random.default_rng(0).normal(0, 0.02, vectors.shape).astype(np.float32)
        save = encoders.query_encoder.save
        Bundle.write(draft, noisy, dataset, save_index=build_index, save_query_encoder=save)
    write_graph(folder, dataset, encoders, vectors)
    with drafting(folder / "cross_encoder", "model") as draft:
        CrossEncoder.from_backbone(str(backbone), 48).save(draft.path)
    names = (
        "bm25_run", "dpr_run", "dual_encoder", "passage_vectors", "graph", "gnn_encoder", "encoding", "bundle",
        "cross_encoder",
    )  # fmt: skip
    return {"dataset": dataset.path, **{name: folder / name for name in names}}
