"""Builds the query–passage graph: edges from each training query to its top-k passages under M_de, to its labelled
positives, or to both (GNN-encoder 3.2).

A query that is not trained on (`ingest.max_trained_queries`) has edges to its labelled positives only: they cost one
cross-encoder pair for each label. A neighbour without a label says nothing that is worth k pairs.

Edge features are the cross-encoder's [CLS] vectors. The step reuses the candidates' [CLS] vectors and computes missing
ones once per pair. It stores M_de's vectors of all training, dev and test queries with those of passages
(`evaluation.embedding`), for all systems of M_de and for the next update. Of a long passage the graph has the first
window (`long_passages`); the vectors of all windows are for M_de's search.

With `build_graph.shards` several tasks encode and search a share of the passages each. This step then joins their
vectors and hits, and encodes the queries alone.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Contents, Dataset, Draft, Graph, KnownPositives, PairScores, read_manifest
from gnn_encoder.artifacts.arrays import EVALUATED, QUERIES, STORED, WINDOWS, create_rows
from gnn_encoder.artifacts.digests import text_digests
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.collected import evaluated_queries
from gnn_encoder.inference.encoding import encode_texts, inference_dtype
from gnn_encoder.inference.scoring import PairTokens, pair_tokens, score_pairs
from gnn_encoder.machine.scratch import scratch
from gnn_encoder.models.dual_encoder import DualEncoder
from gnn_encoder.query_graph.edge_features import EdgeFeatureWriter
from gnn_encoder.retrieval.identical import search_without
from gnn_encoder.retrieval.neighbours import joined_neighbours, nearest
from gnn_encoder.retrieval.scorers import CrossEncoderScorer, load_cross_encoder
from gnn_encoder.settings.graph import BuildGraph
from gnn_encoder.update.changes import carry_over, passage_digests
from gnn_encoder.update.former import FormerGraph
from gnn_encoder.update.passage_vectors import join_vectors, write_vectors

COPIED = 65_536
"""Number of edge features in memory at a time."""


@step(graph="graph", passage_vectors="vectors")
def build_graph(
    context: Context,
    settings: BuildGraph,
    dataset: Path,
    dual_encoder: Path,
    cross_encoder: Path,
    graph: Draft,
    passage_vectors: Draft,
    pair_scores: Path | None = None,
    neighbours: Path | None = None,
) -> Metrics:
    """Encodes the corpus with M_de, retrieves each training query's neighbours, and writes graph and edge features.

    neighbours: vectors and hits from several tasks of `find_neighbours`.
    """
    data, encoders = Dataset(dataset), DualEncoder.load(dual_encoder)
    m, train = len(data.passages), data.query_rows("train")
    nodes = np.arange(len(train)) if settings.queries == "all" else np.searchsorted(train, data.trained)
    queries, questions = train[nodes], data.query_texts(train)
    trained = np.flatnonzero(np.isin(queries, data.trained))
    judged = data.query_texts(evaluated_queries(data))
    digests, query_digests, judged_digests = passage_digests(data.passages), *map(text_digests, (questions, judged))
    dtype = str(inference_dtype(settings.precision))
    retriever = {"dual_encoder": read_manifest(dual_encoder).digest, "dtype": dtype}
    kind = f"{settings.edge_features}, {settings.edge_feature_type}"
    scorer = {"cross_encoder": read_manifest(cross_encoder).digest, "dtype": dtype, "edges": kind}
    scorer["self_loops"] = settings.self_loop_features
    former, stored = None, STORED[settings.vector_type]
    if settings.previous:
        before = Path(settings.previous)
        former = FormerGraph.read(before, retriever, scorer, query_digests, nodes, digests, judged_digests, stored)

    if neighbours:
        encoder, retriever = retriever["dual_encoder"], Contents.read(neighbours).models
        if retriever.get("dual_encoder") != encoder or read_manifest(neighbours).rows["vectors"] != m:
            raise UserError(
                f"{neighbours} has not the vectors of all passages by {dual_encoder}: run find_neighbours with them, "
                "and merge all its tasks"
            )
        written = join_vectors(passage_vectors, neighbours)
    else:
        written = write_vectors(
            passage_vectors, encoders.passage_encoder, data, settings, context.progress,
            known=(former.passages, former.vectors) if former else None,
            former=Path(settings.previous) / "passage_vectors" if former else None,
        )  # fmt: skip
    vectors = written.vectors
    every = written.digests | ({} if len(nodes) == len(train) else {"queries": query_digests})
    further = ""
    if settings.in_windows:
        further = f"; {len(every[WINDOWS]) - m:,} further windows of long passages, which the graph does not read"
    Contents.write(passage_vectors, retriever, texts=digests, evaluated=judged_digests, **every)
    query_vectors = create_rows(passage_vectors, QUERIES, (len(questions), encoders.query_encoder.width))
    new_queries = (
        carry_over(former.asking, former.query_vectors, query_vectors) if former else np.arange(len(questions))
    )
    query_vectors[new_queries] = encode_texts(
        encoders.query_encoder, [questions[row] for row in new_queries], **settings.speed
    )
    evaluated = create_rows(passage_vectors, EVALUATED, (len(judged), encoders.query_encoder.width))
    new_judged = carry_over(former.evaluated, former.evaluated_vectors, evaluated) if former else np.arange(len(judged))
    evaluated[new_judged] = encode_texts(encoders.query_encoder, [judged[row] for row in new_judged], **settings.speed)
    depth = min(settings.depth, m)
    searching = query_vectors if len(trained) == len(train) else query_vectors[nodes[trained]]
    retrieved = np.full((len(queries), depth), -1, np.int32)
    if neighbours:
        retrieved[trained] = joined_neighbours(neighbours)
    elif former:
        known = replace(former, queries=former.queries[trained])

        def again(k: int) -> tuple[np.ndarray, np.ndarray]:
            rows = known.search(vectors, searching, k, settings.neighbors)
            return np.zeros(rows.shape, np.float32), rows  # nobody looks at the scores

        _, retrieved[trained] = search_without(again, data.identical[data.trained], depth)
    else:
        _, retrieved[trained] = nearest(data, vectors, searching, depth)
    kinds = settings.edge_kinds
    edges = retrieved[:, : settings.neighbors if "retrieved" in kinds else 0]
    if not kinds:  # One empty slot per query: memory-mapping fails for an array without columns.
        edges = np.full_like(retrieved[:, :1], -1)
    edges, labelled = with_labelled(data, queries, edges) if "labelled" in kinds else (edges, edges < -1)
    Graph.write_structure(graph, queries, edges, labelled, retrieved, m)
    Contents.write(graph, scorer, queries=query_digests[nodes])
    reused = 0.0
    if settings.edge_features == "cross_encoder":
        scoring = load_cross_encoder(cross_encoder)
        model = scoring.model
        scores = PairScores.read(pair_scores) if pair_scores else None
        reused = write_features(context, settings, graph, scoring, data, scores, former, queries, edges)
        if settings.self_loop_features == "cross_encoder":
            tokens = pair_tokens(model, data)
            sides = (("query_loops", tokens.first, queries), ("passage_loops", tokens.second, np.arange(m)))
            for name, texts, rows in sides:
                pairs = PairTokens(model.tokenizer, texts, texts, model.max_length)
                loops = Graph.create_features(graph, name, (len(rows), model.width))
                loop_progress = context.progress("self-loops", len(rows), "pairs")
                score_pairs(model, pairs, rows, rows, None, loops, progress=loop_progress, **settings.speed)
                loops.flush()
    degree = np.bincount(edges[edges >= 0], minlength=m)
    return {
        "edges": int((edges >= 0).sum()),
        "encoded": written.encoded,
        "queries": len(queries),
        **({"queries_trained": len(trained)} if len(trained) < len(queries) else {}),
        "queries_encoded": len(new_queries) + len(new_judged),
        "isolated_passages": float((degree == 0).mean()),
        "largest_degree": int(degree.max(initial=0)),
        "features_reused": reused,
        "passages_per_second": written.rate,
        "headline": f"{(edges >= 0).sum():,} edges, {(degree == 0).mean():.0%} of passages isolated{further}",
    }


def with_labelled(dataset: Dataset, queries: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the edges [n, k + l] with missing labelled positives added, and a bool array of labelled edges.

    l is the largest number of positives added for a query. Positives of a query's twins are not added, because one
    large group of twins would widen the array for all queries.
    """
    labels = dataset.split_qrels("train").positive()
    labels = labels.where(np.isin(labels.query, queries))
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
    settings: BuildGraph,
    draft: Draft,
    scorer: CrossEncoderScorer,
    data: Dataset,
    scores: PairScores | None,
    former: FormerGraph | None,
    queries: np.ndarray,
    edges: np.ndarray,
) -> float:
    """Writes the edges' features [n, k, d_e]; returns the share reused from `scores` and `former`."""
    features = EdgeFeatureWriter(draft, (*edges.shape, scorer.model.width), settings.edge_feature_type)
    exists = np.flatnonzero(edges.ravel() >= 0)
    left = []
    for part in np.array_split(exists, len(exists) // COPIED + 1):
        node, passage = part // edges.shape[1], edges.ravel()[part]
        if former and former.same_features:
            rows = former.feature_rows(node, passage)
            features.put(part[rows >= 0], former.features(rows[rows >= 0]))
            part, node, passage = part[rows < 0], node[rows < 0], passage[rows < 0]
        if scores:
            rows = scores.find(queries[node], passage)
            features.put(part[rows >= 0], scores.cls[rows[rows >= 0]])
            part = part[rows < 0]
        left.append(part)
    todo = np.concatenate(left)
    pairs = scorer.pairs(data, queries[todo // edges.shape[1]], edges.ravel()[todo])
    fresh = scratch(len(todo), scorer.model.width, dtype=np.float16, folder=draft.path)
    progress = context.progress("edge features", len(todo), "pairs")
    score_pairs(scorer.model, *pairs, None, fresh, progress=progress, **settings.speed)
    for rows in np.array_split(np.arange(len(todo)), len(todo) // COPIED + 1):
        features.put(todo[rows], fresh[rows])
    features.flush()
    return 1 - len(todo) / len(exists) if len(exists) else 0.0
