"""Step 11: the query–passage graph, each training query's top-k under M_de (GNN-encoder 3.2).

Edge features are the cross-encoder's [CLS] vectors: those already computed for the candidates are
reused, the rest are computed here, each pair once.
"""

from pathlib import Path

import numpy as np

from gnn_encoder import index
from gnn_encoder.artifacts import Dataset, Draft, Graph, PairScores, create_vectors
from gnn_encoder.artifacts.arrays import FEATURES, PASSAGE_LOOPS, QUERY_LOOPS
from gnn_encoder.context import Context
from gnn_encoder.encoding import encode_passages, encode_texts
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.scoring import PairTokens, score_pairs
from gnn_encoder.settings import BuildGraph, Speed
from gnn_encoder.steps.step import Metrics, step
from gnn_encoder.steps.train_cross_encoder import pair_tokens
from gnn_encoder.training.losses import KnownPositives

COPIED = 65_536
"""Edge features held in memory at a time."""


@step(graph="graph", passage_vectors="vectors")
def build_graph(
    context: Context,
    settings: BuildGraph,
    dataset: Path,
    dual_encoder: Path,
    cross_encoder: Path,
    pair_scores: Path,
    graph: Draft,
    passage_vectors: Draft,
) -> Metrics:
    """Encode the corpus with M_de, retrieve each training query's neighbours, and give the edges features."""
    data, encoders = Dataset(dataset), DualEncoder.load(dual_encoder)
    m = len(data.passages)
    vectors = create_vectors(passage_vectors, m, encoders.passage_encoder.width)
    progress = context.progress("encoding", m, "passages")
    encode_passages(encoders.passage_encoder, data.passages, vectors, progress=progress, **settings.speed)
    vectors.flush()
    queries = data.query_rows("train")
    asked = encode_texts(encoders.query_encoder, data.query_texts(queries), **settings.speed)
    _, retrieved = index.search(vectors, asked, min(max(settings.neighbors, settings.retrieved), m))
    edges = retrieved[:, : settings.neighbors]
    edges, labelled = with_labelled(data, queries, edges) if settings.edges != "retrieved" else (edges, edges < -1)
    Graph.write_structure(graph, queries, edges, labelled, retrieved, m)
    reused = 0.0
    if settings.edge_features == "cross_encoder":
        model, scores = CrossEncoder.load(cross_encoder), PairScores.read(pair_scores)
        tokens = pair_tokens(model, data)
        reused = write_features(context, graph, model, tokens, scores, queries, edges, settings.speed)
        if settings.self_loop_features == "cross_encoder":
            for name, texts, rows in (
                (QUERY_LOOPS, tokens.first, queries),
                (PASSAGE_LOOPS, tokens.second, np.arange(m)),
            ):
                pairs = PairTokens(model.tokenizer, texts, texts, model.max_length)
                loops = Graph.create_features(graph, name, (len(rows), model.width))
                loop_progress = context.progress("self-loops", len(rows), "pairs")
                unused = np.empty(len(rows), dtype=np.float32)
                score_pairs(model, pairs, rows, rows, unused, loops, progress=loop_progress, **settings.speed)
                loops.flush()
    degree = np.bincount(edges[edges >= 0], minlength=m)
    return {
        "edges": int((edges >= 0).sum()),
        "queries": len(queries),
        "isolated_passages": float((degree == 0).mean()),
        "largest_degree": int(degree.max(initial=0)),
        "features_reused": reused,
        "passages_per_second": progress.rate,
        "headline": f"{(edges >= 0).sum():,} edges, {(degree == 0).mean():.0%} of passages isolated",
    }


def with_labelled(dataset: Dataset, queries: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges [n, k + l] with labelled positives added where they were not retrieved (l: the most any query
    lacks), and which edges are labelled, bool of that shape."""
    labels = dataset.split_qrels("train").positive()
    node = np.searchsorted(queries, labels.query)
    missing = ~(edges[node] == labels.passage[:, None]).any(axis=1)
    node, passage = node[missing], labels.passage[missing]
    order = np.argsort(node, kind="stable")
    node, passage = node[order], passage[order]
    slot = np.arange(len(node)) - np.searchsorted(node, node, side="left")
    added = np.full((len(edges), int(slot.max(initial=-1)) + 1), -1, dtype=edges.dtype)
    added[node, slot] = passage
    edges = np.concatenate([edges, added], axis=1)
    return edges, KnownPositives(labels.query, labels.passage).contains(queries[:, None], edges) & (edges >= 0)


def write_features(
    context: Context,
    draft: Draft,
    model: CrossEncoder,
    tokens: PairTokens,
    scores: PairScores,
    queries: np.ndarray,
    edges: np.ndarray,
    speed: Speed,
) -> float:
    """Fill the edges' [n, k, d_e] features; returns the share that was taken from `scores`."""
    features = Graph.create_features(draft, FEATURES, (*edges.shape, model.width))
    flat = features.reshape(-1, model.width)
    exists = np.flatnonzero(edges.ravel() >= 0)
    query, passage = np.repeat(queries, edges.shape[1])[exists], edges.ravel()[exists]
    row = scores.find(query, passage)
    known = row >= 0
    for part in np.array_split(np.flatnonzero(known), known.sum() // COPIED + 1):
        flat[exists[part]] = scores.cls[row[part]]
    todo = exists[~known]
    fresh = np.lib.format.open_memmap(draft / ".fresh.npy", mode="w+", dtype=np.float16, shape=(len(todo), model.width))
    unused = np.empty(len(todo), dtype=np.float32)
    progress = context.progress("edge features", len(todo), "pairs")
    score_pairs(model, tokens, query[~known], passage[~known], unused, fresh, progress=progress, **speed)
    for part in np.array_split(np.arange(len(todo)), len(todo) // COPIED + 1):
        flat[todo[part]] = fresh[part]
    features.flush()
    (draft / ".fresh.npy").unlink()
    return float(known.mean()) if len(known) else 0.0
