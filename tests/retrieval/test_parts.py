"""Features of candidates against plain loops, and folds that know nothing of their own labels."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from labelled import unit
from parts_world import SOME, D, M, N, World, random_texts

from gnn_encoder.artifacts.labelled_queries import LabelledQueries
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.learned_fusion import Linear
from gnn_encoder.retrieval.parts import FEATURES, NEAREST, Parts


def scores_of_words(parts: Parts, questions: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """BM25's scores [m] of each question, and those with labels."""
    plain = list(parts.word_scores(questions))
    return list(zip(plain, parts.field.totals(questions, iter(plain)), strict=True))


def test_features_equal_a_loop(tmp_path: Path) -> None:
    world, generator = World(tmp_path), np.random.default_rng(1)
    parts, questions, vectors = world.parts(), random_texts(generator, SOME), unit(generator.normal(size=(SOME, D)))
    candidates, totals = parts.candidates(questions, vectors), scores_of_words(parts, questions)
    for i, (question, vector) in enumerate(zip(questions, vectors, strict=True)):
        rows = slice(candidates.starts[i], candidates.starts[i + 1])
        near = sorted(range(N), key=lambda q: -(world.queries[q] @ vector))[:NEAREST]
        expected = []
        for p in candidates.passage[rows].tolist():
            similar = [
                max(0.0, world.queries[q] @ vector) for q in near if (world.passage[world.query == q] == p).any()
            ]
            words, labelled = (part[p] for part in totals[i])
            stored = parts.vectors[p].astype(float)
            dense, adapted = (stored @ q for q in (vector, vector @ parts.adapter))
            lifted = stored + 0.3 * world.queries[world.query[world.passage == p]].sum(axis=0)
            summed = lifted @ vector * np.linalg.norm(stored) / np.linalg.norm(lifted)
            expected.append([dense, words, labelled, adapted, summed, max(similar, default=0)])
            expected[-1] += [world.queries[near[0]] @ vector, len(question.split()), parts.lengths[p]]
        values = np.array(expected)
        columns = ["dense", "words", "labelled", "adapted", "summed", "memory", "nearest", "terms", "length"]
        features = candidates.features[rows]
        assert np.allclose(features[:, [FEATURES.index(name) for name in columns]], values, atol=1e-4)
        for column, name in enumerate(columns[:4]):
            rank = 1 + np.array([(values[:, column] > value + 1e-6).sum() for value in values[:, column]])
            assert np.allclose(features[:, FEATURES.index(f"{name} rank")], 1 / rank, atol=1e-6)
        for column, name in ((0, "dense"), (3, "adapted"), (4, "summed")):
            below = values[:, column] - values[:, column].max()
            assert np.allclose(features[:, FEATURES.index(f"{name} below best")], below, atol=1e-4)
        for column, name in ((1, "words"), (2, "labelled")):
            share = values[:, column] / values[:, column].max()
            assert np.allclose(features[:, FEATURES.index(f"{name} of best")], share, atol=1e-5)


def test_the_best_of_every_part_are_candidates(tmp_path: Path) -> None:
    world, generator = World(tmp_path), np.random.default_rng(2)
    parts, questions, vectors = world.parts(), random_texts(generator, SOME), unit(generator.normal(size=(SOME, D)))
    left_out = np.full(SOME, -1)
    left_out[0] = exact.search(parts.vectors, vectors[:1], 1)[1][0, 0]
    candidates = parts.candidates(questions, vectors, left_out)
    for i, (words, labelled) in enumerate(scores_of_words(parts, questions)):
        rows = set(candidates.passage[candidates.starts[i] : candidates.starts[i + 1]].tolist())
        by_vectors = (parts.vectors @ query for query in (vectors[i], vectors[i] @ parts.adapter))
        for values in (words, labelled, *by_vectors):
            best = [p for p in np.argsort(-values)[:20].tolist() if values[p] > 0 and p != left_out[i]]
            assert rows.issuperset(best)
        assert left_out[i] not in rows


def test_without_some_labels_all_is_as_if_they_had_never_been_there(tmp_path: Path) -> None:
    world = World(tmp_path)
    parts, held = world.parts(), np.arange(N) % 4 == 0
    generator = np.random.default_rng(3)
    questions, vectors = random_texts(generator, SOME), unit(generator.normal(size=(SOME, D)))
    rest = parts.without(held, world.moments, 1.0)
    stays = ~held[world.query]
    never = World(tmp_path)
    never.labels = LabelledQueries.grouped(world.query[stays], world.passage[stays], M, world.queries)
    never.moments = world.moments_of(stays)
    fresh = never.parts()
    some, other = rest.candidates(questions, vectors), fresh.candidates(questions, vectors)
    for name in ("dense", "words", "labelled", "adapted", "summed", "memory", "nearest"):
        for i in range(SOME):
            a, b = (candidates.passage[candidates.starts[i] : candidates.starts[i + 1]] for candidates in (some, other))
            both, at_a, at_b = np.intersect1d(a, b, return_indices=True)
            assert len(both) >= 0.9 * len(a)
            column = FEATURES.index(name)
            values = (some.features[some.starts[i] + at_a, column], other.features[other.starts[i] + at_b, column])
            assert np.allclose(*values, atol=2e-3)


def reciprocal_rank(world: World, features: Sequence[np.ndarray], rows: Sequence[np.ndarray]) -> float:
    """Mean of 1 / rank of the training queries' labels, by a fusion that is learnt on the same candidates."""
    relevant = [np.isin(some, world.passage[world.query == q]) for q, some in enumerate(rows)]
    model = Linear.fit(np.concatenate(features), np.concatenate(relevant))
    ranks = []
    for some, is_relevant in zip(features, relevant, strict=True):
        order = np.argsort(-model.scores(some), kind="stable")
        ranks.append(1 / (1 + is_relevant[order].argmax()) if is_relevant.any() else 0.0)
    return float(np.mean(ranks))


def test_labels_that_say_nothing_teach_nothing_and_control_a_leak_is_noticed(tmp_path: Path) -> None:
    """Random labels cannot be predicted: a high figure of training queries would come from their own labels."""
    world = World(tmp_path)
    parts, fold = world.parts(), np.arange(N) % 5
    honest: tuple[list, list] = [None] * N, [None] * N
    leaking: tuple[list, list] = [None] * N, [None] * N
    for number in range(5):
        held = fold == number
        inside = np.flatnonzero(held)
        for (features, rows), some in ((honest, parts.without(held, world.moments, 1.0)), (leaking, parts)):
            candidates = some.candidates(world.texts_at(inside), world.queries[inside])
            for i, q in enumerate(inside.tolist()):
                features[q] = candidates.features[candidates.starts[i] : candidates.starts[i + 1]]
                rows[q] = candidates.passage[candidates.starts[i] : candidates.starts[i + 1]]
    assert reciprocal_rank(world, *honest) < 0.15
    assert reciprocal_rank(world, *leaking) > 0.8
