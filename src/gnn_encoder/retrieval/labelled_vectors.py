"""Vectors of passages that carry their labelled training queries, without any training.

    sum       one vector a passage: p' = unit(p + w · Σ q')
    max       p + w · q' for each labelled query q': the passage scores s(q, p) + w · max s(q, q')
    clusters  p, and unit(p + w · c) for the centroid c of each cluster of the labelled queries
    softmax   p alone: the search does the rest (`retrieval.memory`)

Where a passage has a vector for each of its windows, p is the window that is nearest to q', for this window answers q';
each window has labelled queries of its own, and one without any stays. The passage scores as its best vector.

unit(x) here keeps the length of p, so that vectors of unit length keep it, and others the lengths that their model gave
them. A passage without labelled queries keeps its one vector p, bit for bit; so do all passages with a weight of 0.

`max` is query memory in its nearest-neighbour form (LADER: Jin, Shin and Lu, "LADER: Log-Augmented DEnse Retrieval for
Biomedical Literature Search", SIGIR 2023, averages the score with that of the clicked documents of similar queries;
`retrieval.memory` has that form). Several vectors a passage, one per group of its queries, are an idea of multi-view
retrieval (Zhang et al., "Multi-View Document Representation Learning for Open-Domain Dense Retrieval", ACL 2022, learns
them); taking centroids of labelled queries for them is this project's.
"""

from collections.abc import Iterator

import numpy as np

from gnn_encoder.artifacts.arrays import at_unit_length, ranges, rows_of
from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse
from gnn_encoder.retrieval.best_vectors import largest_of_each, nearest_rows

ROUNDS = 10
"""Most rounds of k-means. Few queries of a passage settle in two or three."""


BLOCK = 16_384
"""Passages with all their vectors in memory at a time."""


def in_blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yields `BLOCK` of the rows at a time."""
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]


def label_blocks(
    use: LabelUse, vectors: np.ndarray, labels: LabelledQueries, passages: np.ndarray, of: np.ndarray | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the vectors fp32 [r, d] of `passages` [b] with labels, and the passage row [r] of each vector, in blocks.

    Args:
        vectors: of all passages, without labels [m, d], possibly memory-mapped.
        passages: rows [b], ascending. All vectors of a passage are in one block.
        of: the passage of each vector, if some have several (`best_vectors`).
    """
    for some in in_blocks(passages):
        owner, query = labels.by_passage.into(some)
        position, rows = rows_of(of, some)
        plain = np.asarray(vectors[rows], np.float32)
        lifted, at = windows_with_labels(use, plain, None if of is None else position, owner, labels.vectors[query])
        yield lifted, some[at]


def windows_with_labels(
    use: LabelUse, windows: np.ndarray, of: np.ndarray | None, owner: np.ndarray, queries: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """As `vectors_with_labels`, for passages with several vectors.

    Args:
        windows: vectors [r, d], passage by passage. of: place int64 [r], ascending, of the passage of each.
    """
    if of is None:
        return vectors_with_labels(use, windows, owner, queries)
    nearest = nearest_rows(windows, of, queries, np.arange(len(owner)), owner)
    order = np.argsort(nearest, kind="stable")
    vectors, at = vectors_with_labels(use, windows, nearest[order], queries[order])
    return vectors, of[at]


def vectors_with_labels(
    use: LabelUse, passages: np.ndarray, owner: np.ndarray, queries: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors fp32 [r, d] of some passages, and the place int64 [r], ascending, of each one's passage.

    Args:
        passages: vectors [b, d].
        owner: place int64 [e], ascending, of the passage of each labelled pair.
        queries: vector [e, d] of the query of each pair.
    """
    every = np.arange(len(passages))
    if not use.changes_vectors or not len(owner):
        return passages, every
    weight = np.float32(use.weight)
    labelled, starts = np.unique(owner, return_index=True)
    if use.method == "sum":
        vectors = passages.copy()
        vectors[labelled] = _at_length(passages[labelled], weight * _sums(queries, starts))
        return vectors, every
    if use.method == "max":
        plain = np.setdiff1d(every, labelled)
        return _in_order(plain, passages[plain], owner, passages[owner] + weight * queries)
    of, centroids, _ = clusters(owner, queries, use.clusters)
    return _in_order(every, passages, of, _at_length(passages[of], weight * centroids))


def clusters(owner: np.ndarray, queries: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups the queries of each passage by spherical k-means, for all passages at once, without chance.

    A passage with at most `most` different queries has a group for each of them. The first seed of a passage is the
    query nearest to the mean of its queries, each further seed the query farthest from the seeds before it.

    Args:
        owner, queries: as in `vectors_with_labels`, with at least one pair.

    Returns:
        The passage int64 [g], ascending, and the mean fp32 [g, d] of each group, and the group int64 [e] of each query.
    """
    passages, starts, segment, counts = np.unique(owner, return_index=True, return_inverse=True, return_counts=True)
    sizes = np.minimum(counts, most)
    first, turns = np.cumsum(sizes) - sizes, range(int(sizes.max()))
    directions = at_unit_length(queries)
    seeds, nearest = np.empty(int(sizes.sum()), np.int64), np.full(len(owner), -np.inf, np.float32)
    to_mean = np.einsum("ed,ed->e", directions, np.add.reduceat(directions, starts)[segment])
    for turn in turns:
        chosen = largest_of_each(-nearest if turn else to_mean, segment)
        seeds[(first + turn)[sizes > turn]] = chosen[sizes > turn]
        nearest = np.maximum(nearest, np.einsum("ed,ed->e", directions, directions[chosen][segment]))
        nearest[chosen] = np.inf  # a seed is not chosen again, although its twin may be
    of, centroids, group = np.repeat(passages, sizes), queries[seeds], np.full(len(owner), -1)
    for _ in range(ROUNDS):
        towards, before = at_unit_length(centroids), group
        group, best = first[segment], np.full(len(owner), -np.inf, np.float32)
        for turn in turns:
            candidate = first[segment] + np.minimum(turn, sizes[segment] - 1)
            score = np.einsum("ed,ed->e", directions, towards[candidate])
            group, best = np.where(score > best, candidate, group), np.maximum(score, best)
        if np.array_equal(group, before):
            break
        held, means = _means(group, queries)
        centroids[held] = means  # a group that nobody is nearest to keeps its place
    held, means = _means(group, queries)
    return of[held], means, np.searchsorted(held, group)


def _means(group: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the groups [g] that have a vector, ascending, and the mean [g, d] of the vectors [e, d] of each."""
    order = np.argsort(group, kind="stable")
    held, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    return held, np.add.reduceat(vectors[order], starts) / counts[:, None].astype(np.float32)


def _sums(vectors: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns `np.add.reduceat(vectors, starts)`, [g, d] of [e, d]; a group of one vector takes no time."""
    sums, stops = vectors[starts], np.append(starts[1:], len(vectors))
    sizes = stops - starts
    if len(several := np.flatnonzero(sizes > 1)):
        members = vectors[ranges(starts[several], stops[several])]
        sums[several] = np.add.reduceat(members, np.cumsum(sizes[several]) - sizes[several])
    return np.asarray(sums)


def _at_length(passages: np.ndarray, added: np.ndarray) -> np.ndarray:
    """Returns `passages` + `added` [l, d], each with the length that the passage alone has."""
    return np.asarray(at_unit_length(passages + added) * np.linalg.norm(passages, axis=1, keepdims=True))


def _in_order(
    of: np.ndarray, vectors: np.ndarray, more_of: np.ndarray, more: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns two lists of vectors and the passages of both, ordered by passage; the first list comes first."""
    owner = np.concatenate([of, more_of])
    order = np.argsort(owner, kind="stable")
    return np.concatenate([vectors, more])[order], owner[order]
