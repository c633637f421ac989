"""Explains the hits of a bundle with labelled queries: what each training query adds to a passage's score."""

import numpy as np

from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse
from gnn_encoder.retrieval.filters import Selection
from gnn_encoder.retrieval.index_file import Index
from gnn_encoder.retrieval.labelled_vectors import clusters
from gnn_encoder.retrieval.memory import Memory
from gnn_encoder.retrieval.scorers import Contribution
from gnn_encoder.retrieval.search import Hit, Searcher


def explain_by_labels(
    searcher: Searcher, question: str, k: int = 5, queries: int = 5, only: Selection | None = None
) -> list[tuple[Hit, list[Contribution]]]:
    """Returns the best `k` passages for a query, best first, each with the parts of its score.

    The parts sum to the score, up to rounding: the passage's own part, the `queries` training queries of largest
    amount, and the rest of the training queries together. With `only`, the best of these passages; queries that it does
    not name are in a rest that says no number.

    Raises:
        UserError: as `Searcher.find`.
    """
    opened, labelled = searcher.bundle, searcher.bundle.labelled
    assert labelled, "a bundle without labelled queries"
    vector, scores, rows = searcher.find(question, k, only)
    index = searcher.index.memory.index if searcher.index.memory else None
    plain, owner = labelled.plain(rows, opened.stored_vectors, opened.stored_vector_passages)
    explained = []
    for number, hit in enumerate(searcher.hits(scores, rows)):
        windows, row = plain[owner == number], int(rows[number])
        passage_part, query_rows, amounts = parts_of(labelled.use, labelled.queries, vector, row, windows, index)
        unnamed = 0.0
        if only:
            named = only.names(*labelled.queries.by_query.into(query_rows), len(query_rows))
            unnamed, query_rows, amounts = float(amounts[~named].sum()), query_rows[named], amounts[named]
        order = np.argsort(-np.abs(amounts), kind="stable")
        ids, texts = labelled.names(query_rows[order[:queries]])
        parts = [Contribution(f"the passage itself (alone {(windows @ vector).max():.4f})", passage_part)]
        of_queries = zip(texts, ids, amounts[order].tolist(), strict=False)
        parts += [Contribution(f"{text} [{query}]", amount) for text, query, amount in of_queries]
        if others := len(order) - len(ids):
            noun = "query" if others == 1 else "queries"
            parts.append(Contribution(f"{others:,} more {noun}", float(amounts[order[queries:]].sum())))
        if only and only.seen is not None:
            parts.append(Contribution("the rest", unnamed))
        explained.append((hit, parts))
    return explained


def parts_of(
    use: LabelUse,
    labels: LabelledQueries,
    question: np.ndarray,
    row: int,
    windows: np.ndarray,
    index: Index | None = None,
) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns the own part of a passage's score, and the training queries [p] with the amount [p] that each adds.

    They are those of the window with the best score.

    Args:
        question: vector of the query [d]. row: the passage. windows: its vectors without labels [w, d], one at least.
        index: over the labelled queries, if a memory has one.
    """
    query_rows = labels.by_passage.into(np.array([row]))[1]
    if use.method == "softmax" and use.weight and len(query_rows):
        near, weights = (array[0] for array in Memory(labels, use, index).neighbours(question[None]))
        inside = np.isin(near, query_rows) & (weights > 0)
        return float((windows @ question).max()), near[inside], weights[inside]
    vectors = labels.vectors[query_rows]
    nearest = (vectors @ windows.T).argmax(axis=1)
    parts = [
        _parts_of_window(use, query_rows[nearest == number], vectors[nearest == number], question, window)
        for number, window in enumerate(windows)
    ]
    return max(parts, key=lambda part: part[0] + part[2].sum())


def _parts_of_window(
    use: LabelUse, query_rows: np.ndarray, vectors: np.ndarray, question: np.ndarray, passage: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """As `parts_of`, of one vector `passage` [d] with its labelled queries [p] and their vectors [p, d]."""
    plain_score, similar = float(question @ passage), vectors @ question
    nothing = plain_score, query_rows[:0], similar[:0]
    if not use.weight or not len(query_rows):
        return nothing
    if use.method == "max":
        best = int(np.argmax(similar))
        return plain_score, query_rows[best : best + 1], use.weight * similar[best : best + 1]
    if use.method == "sum":
        scale = _scale(passage, use.weight * vectors.sum(axis=0))
        return scale * plain_score, query_rows, scale * use.weight * similar
    _, centroids, group = clusters(np.zeros(len(vectors), int), vectors, use.clusters)
    scales = np.array([_scale(passage, use.weight * centroid) for centroid in centroids])
    scores = scales * (plain_score + use.weight * centroids @ question)
    best = int(np.argmax(scores))
    if plain_score >= scores[best]:
        return nothing
    members, scale = group == best, float(scales[best])
    return scale * plain_score, query_rows[members], scale * use.weight * similar[members] / members.sum()


def _scale(passage: np.ndarray, added: np.ndarray) -> float:
    """Returns the factor that gives `passage` + `added` [d] the length of the passage."""
    return float(np.linalg.norm(passage) / max(np.linalg.norm(passage + added), np.finfo(np.float32).tiny))
