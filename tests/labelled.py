"""Random passages and labelled queries, and their scores by a plain loop in float64."""

import numpy as np

from gnn_encoder.artifacts.labelled_queries import LabelledQueries, LabelUse

USES = {
    "sum": LabelUse("sum", 0.4),
    "max": LabelUse("max", 0.4),
    "softmax": LabelUse("softmax", 0.4, neighbours=7, temperature=0.1),
    "threshold": LabelUse("softmax", 0.4, neighbours=7, temperature=0.1, threshold=0.4),
    "clusters": LabelUse("clusters", 0.7, clusters=3),
}


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def random_labels(
    m: int = 40, n: int = 30, pairs: int = 60, width: int = 12, seed: int = 0, *, length: float = 1.0
) -> tuple[np.ndarray, LabelledQueries]:
    """Passage vectors [m, d], of lengths about `length`, and labels: a third of the passages has none, one many."""
    random = np.random.default_rng(seed)
    passages = unit(random.normal(size=(m, width)))
    queries = unit(random.normal(size=(n, width)))
    if length != 1.0:
        passages = (passages * length * random.uniform(0.5, 2, (m, 1))).astype(np.float32)
        queries = (queries * length * random.uniform(0.5, 2, (n, 1))).astype(np.float32)
    query = np.concatenate([random.integers(0, n, pairs), np.arange(n)])
    passage = np.concatenate([random.integers(0, 2 * m // 3, pairs), np.full(n, 1)])
    return passages, LabelledQueries.of(query, passage, m, queries)


def queries_of(labels: LabelledQueries, passage: int) -> list[int]:
    return labels.by_passage.into(np.array([passage]))[1].tolist()


def scores_by_loop(use: LabelUse, passages: np.ndarray, labels: LabelledQueries, question: np.ndarray) -> np.ndarray:
    """The score of every passage for one query, from the equations."""
    p, q, query = passages.astype(np.float64), labels.vectors.astype(np.float64), question.astype(np.float64)
    scale = float(np.mean([vector @ vector for vector in q])) if len(q) else 1.0
    near = sorted(range(len(q)), key=lambda i: -(query @ q[i]))[: use.neighbours]
    powers = {i: np.exp((query @ q[i]) / (use.temperature * scale)) for i in near}
    scores = []
    for row, vector in enumerate(p):
        score, mine = query @ vector, queries_of(labels, row)
        if mine and use.method == "sum":
            moved = vector + use.weight * sum(q[i] for i in mine)
            score = query @ moved * np.linalg.norm(vector) / np.linalg.norm(moved)
        elif mine and use.method == "max":
            score += use.weight * max(query @ q[i] for i in mine)
        elif use.method == "softmax":
            counted = [i for i in near if i in mine and query @ q[i] >= use.threshold * scale]
            score += use.weight * scale * sum(powers[i] for i in counted) / sum(powers.values())
        elif mine and use.method == "clusters":
            for centroid in centroids_by_loop(q[mine], use.clusters):
                moved = vector + use.weight * centroid
                score = max(score, query @ moved * np.linalg.norm(vector) / np.linalg.norm(moved))
        scores.append(score)
    return np.array(scores)


def centroids_by_loop(queries: np.ndarray, most: int) -> list[np.ndarray]:
    """Spherical k-means of one passage's queries [n, d] with farthest-first seeds."""
    directions = [query / np.linalg.norm(query) for query in queries]
    mean = sum(directions)
    seeds = [max(range(len(queries)), key=lambda i: directions[i] @ mean)]
    while len(seeds) < min(most, len(queries)):
        others = [i for i in range(len(queries)) if i not in seeds]
        seeds.append(min(others, key=lambda i: max(directions[i] @ directions[seed] for seed in seeds)))
    centroids = [queries[seed] for seed in seeds]
    groups: list[int] = []
    for _ in range(10):
        towards = [centroid / np.linalg.norm(centroid) for centroid in centroids]
        now = [max(range(len(towards)), key=lambda j: direction @ towards[j]) for direction in directions]
        if now == groups:
            break
        groups = now
        for group in set(groups):
            centroids[group] = np.mean(
                [query for query, group_of_query in zip(queries, groups, strict=True) if group_of_query == group], 0
            )
    return [centroids[group] for group in sorted(set(groups))]


def best_by_loop(scores: np.ndarray, k: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:k]
