"""What ranking and evaluation read, made on the tiny dataset by random models, and all of their steps."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from bundles import fill_bundle, write_bm25

from gnn_encoder.artifacts import Contents, Dataset, DatasetWriter, Graph, Run, drafting
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, create_rows, create_vectors
from gnn_encoder.artifacts.dataset import SPLITS
from gnn_encoder.artifacts.history import Record, write_history
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.inference.encoding import encode_passages, encode_texts
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.models.gnn import GNN, GnnConfig, GnnEncoder
from gnn_encoder.pipelines.train import train
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.settings.foundation import TrainDualEncoder
from gnn_encoder.settings.outcome import Evaluate, Promote
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.systems import CROSS_ENCODER, DPR, DUAL_ENCODER, GNN_ENCODER, LEXICAL, UNTRAINED
from gnn_encoder.steps.bundle_dual_encoder import bundle_dual_encoder
from gnn_encoder.steps.evaluate import evaluate
from gnn_encoder.steps.fuse import fuse
from gnn_encoder.steps.measure_latency import measure_latency
from gnn_encoder.steps.rank import rank
from gnn_encoder.steps.recommend import recommend
from gnn_encoder.steps.report import report
from gnn_encoder.steps.rerank import rerank


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
        query_vectors = encode_texts(encoders.query_encoder, dataset.query_texts(train), precision="fp32")
        create_rows(draft, "queries", query_vectors.shape)[:] = query_vectors
        Contents.write(draft, {})


def write_inputs(folder: Path, dataset: Dataset, backbone: Path) -> dict[str, Path]:
    """BM25 finds every positive first, DPR every positive third; M_de and the bundle are random."""
    queries, m = np.arange(len(dataset.queries)), len(dataset.passages)
    positive = dataset.qrels.passage[np.argsort(dataset.qrels.query)]
    others = np.stack([positive + 1, positive + 2], axis=1) % m
    scores = np.tile(np.float32([3, 2, 1]), (len(queries), 1))
    first = np.column_stack([positive, others])
    for name, system, hits in (("bm25_run", "BM25", first), ("dpr_run", "DPR", first[:, [1, 2, 0]])):
        with drafting(folder / name, "run") as draft:
            Run.from_hits(queries, hits, scores).write(draft, system)
    encoders = DualEncoder.from_backbone(
        str(backbone), pooling="mean", normalize="yes", query_length=16, passage_length=24, share_encoders=False
    )
    with drafting(folder / "dual_encoder", "model") as draft:
        encoders.save(draft.path)
    with drafting(folder / "passage_vectors", "vectors") as draft:
        vectors = create_vectors(draft, m, encoders.passage_encoder.width)
        encode_passages(encoders.passage_encoder, dataset.passages, vectors, precision="fp32")
        vectors.flush()
        query_vectors = encode_texts(
            encoders.query_encoder, dataset.query_texts(evaluated_queries(dataset)), precision="fp32"
        )
        create_rows(draft, EVALUATED, query_vectors.shape)[:] = query_vectors
        create_rows(draft, QUERIES, (len(dataset.query_rows("train")), query_vectors.shape[1]))[:] = 0
        metrics = {"seconds": 1.0, "peak_memory_gib": 1.0, "headline": "trained"}
        write_history(
            draft.path, {"train_dual_encoder": Record({"matryoshka": [8, query_vectors.shape[1]]}, metrics=metrics)}
        )
    with drafting(folder / "bundle", "bundle") as draft:
        # The GNN-encoder's stand-in: the same vectors with noise, so that some queries win and some lose.
        noisy = vectors + np.random.default_rng(0).normal(0, 0.02, vectors.shape).astype(np.float32)
        fill_bundle(draft, noisy, dataset, encoders.query_encoder.save)
    write_graph(folder, dataset, encoders, vectors)
    with drafting(folder / "cross_encoder", "model") as draft:
        save_scorer("cross_encoder", CrossEncoder.from_backbone(str(backbone), 48), draft.path)
    names = (
        "bm25_run", "dpr_run", "dual_encoder", "passage_vectors", "graph", "gnn_encoder", "encoding", "bundle",
        "cross_encoder",
    )  # fmt: skip
    return {"dataset": dataset.path, **{name: folder / name for name in names}}


def reported(inputs: dict[str, Path], settings: Evaluate, folder: Path) -> Path:
    """The report of all systems, made in `folder` by the training pipeline's steps, in its order."""
    chosen = Settings(
        evaluate=settings,
        promote=Promote(measure=settings.measures[0]),
        train_dual_encoder=TrainDualEncoder(query_length=16, passage_length=24),
    )
    of: dict[str, Any] = {node.title: node.settings for node in train(chosen).nodes}
    data, bundle, run_of = {"dataset": inputs["dataset"]}, {"bundle": inputs["bundle"]}, {LEXICAL: inputs["bm25_run"]}
    plain = {name: inputs[name] for name in ("dual_encoder", "passage_vectors")}
    plain_bundle = {"bundle": folder / "dual_encoder_bundle"}
    bm25_index = write_bm25(inputs["dataset"], folder / "bm25_index")
    of_plain = of[f"bundle_dual_encoder: {DUAL_ENCODER}"]
    bundle_dual_encoder(of_plain, **data, **plain, bm25_index=bm25_index, **plain_bundle)
    if settings.untrained_backbone:
        run_of[UNTRAINED] = folder / UNTRAINED
        rank(of[f"rank: {UNTRAINED}"], **data, run=run_of[UNTRAINED])
    run_of[DPR] = inputs["dpr_run"]
    for system, bundle_input in {DUAL_ENCODER: plain_bundle, GNN_ENCODER: bundle}.items():
        run_of[system] = folder / system
        rank(of[f"rank: {system}"], **data, **bundle_input, run=run_of[system])
    if settings.rerank_depth:
        run_of[CROSS_ENCODER] = folder / "reranked"
        first, scorer = run_of[GNN_ENCODER], inputs["cross_encoder"]
        rerank(of["rerank"], **data, first_run=first, scorer=scorer, run=run_of[CROSS_ENCODER])
    fused: dict[str, list[Path]] = {"convex_run": [], "reciprocal_run": []}
    for system in (DUAL_ENCODER, GNN_ENCODER):
        outputs = {name: folder / f"{system} {name}" for name in fused}
        fuse(of[f"fuse: {system}"], **data, lexical_run=run_of[LEXICAL], dense_run=run_of[system], **outputs)
        for name, path in outputs.items():
            fused[name].append(path)
    runs = [*run_of.values(), *fused["convex_run"], *fused["reciprocal_run"]]
    evaluate(settings, **data, runs=runs, evaluation=folder / "evaluation")
    measure_latency(of["measure_latency"], **data, **plain, **bundle, latency=folder / "latency")
    explained = {name: inputs[name] for name in ("graph", "gnn_encoder", "passage_vectors", "encoding", "bundle")}
    parts = {name: folder / name for name in ("evaluation", "latency", "recommendation")}
    recommend(of["recommend"], **data, evaluation=parts["evaluation"], recommendation=parts["recommendation"])
    bundles = [plain_bundle["bundle"], inputs["bundle"]]
    report(of["report"], **data, **parts, **explained, bundles=bundles, report=folder / "report")
    return folder / "report"


def rewritten(data: Dataset, path: Path, labelled: tuple[str, ...] = SPLITS, answers: bool = False) -> Dataset:
    """The same data with labels of some splits alone, or with an answer to every second query."""
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        passages = data.passages.take(np.arange(len(data.passages)))
        writer.passages(passages.ids, passages.titles, passages.texts)
        table, qrels = data.queries.to_pydict(), data.qrels
        texts = {q: passages.texts[p] for q, p in zip(qrels.query.tolist(), qrels.passage.tolist(), strict=True)}
        query_answers = [[texts[q].upper()] if answers and q % 2 else [] for q in range(len(table["text"]))]
        writer.queries(table["query_id"], table["text"], table["split"], query_answers)
        for q, p in zip(qrels.query.tolist(), qrels.passage.tolist(), strict=True):
            if table["split"][q] in labelled:
                writer.qrels([f"q{q}"], [f"p{p}"], [1], [q], [p])
        writer.close()
    return Dataset(path)


def one_passage_dataset(path: Path, split: str, relevance: int, text: str = "a stone") -> Dataset:
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(["p"], [""], ["the old stone"])
        writer.queries(["q", "r"], [text, "a river"], [split, "train"], [[], []])
        writer.qrels(["q"], ["p"], [relevance], [0], [0])
        writer.close()
    return Dataset(path)
