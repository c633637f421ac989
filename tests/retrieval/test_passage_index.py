"""The best different passages by their best vectors, against a plain loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts.added_labels import Changes
from gnn_encoder.retrieval import exact
from gnn_encoder.retrieval.best_vectors import best_of_blocks
from gnn_encoder.retrieval.index_file import build_index, load_index
from gnn_encoder.retrieval.passage_index import PassageIndex
from gnn_encoder.settings.outcome import IndexKind


def by_loop(vectors: np.ndarray, of: np.ndarray, query: np.ndarray, k: int) -> list[tuple[float, int]]:
    best: dict[int, float] = {}
    for vector, passage in zip(vectors.astype(np.float64), of.tolist(), strict=True):
        best[passage] = max(best.get(passage, -np.inf), float(vector @ query))
    ordered = sorted((-score, passage) for passage, score in best.items())[:k]
    return [(-score, passage) for score, passage in ordered] + [(-np.inf, -1)] * (k - len(ordered))


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=25),
    k=st.integers(1, 40),
    many=st.integers(0, 60),
    seed=st.integers(0, 99),
)
def test_equals_the_loop(counts: list[int], k: int, many: int, seed: int) -> None:
    # Small integers: equal scores are really equal, and there are many. One passage has very many vectors.
    random, counts = np.random.default_rng(seed), [*counts, many + 1]
    of = np.repeat(np.arange(len(counts)), counts)
    vectors = random.integers(-2, 3, (len(of), 4)).astype(np.float32)
    queries = random.integers(-2, 3, (6, 4)).astype(np.float32)
    hits = PassageIndex(vectors, vectors, of.astype(np.int32)).search(queries, k)
    split = len(of) - len(of[of > len(counts) // 2])
    blocks = [(vectors[part], of[part]) for part in (slice(split), slice(split, None))]
    for scores, rows in (hits, best_of_blocks(blocks, queries, k)):
        for query, mine, passages in zip(queries, scores, rows, strict=True):
            assert list(zip(mine.tolist(), passages.tolist(), strict=True)) == by_loop(vectors, of, query, k)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=12),
    k=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_changed_passages_equal_the_loop(counts: list[tuple[int, int]], k: int, seed: int) -> None:
    """A passage has 1 to 4 vectors in the index, and then others in their place; with 0 others it keeps its own."""
    random, numbers = np.random.default_rng(seed), np.array(counts)
    of, vector = (np.repeat(np.arange(len(numbers)), column) for column in numbers.T)
    stored, vectors, queries = (random.integers(-2, 3, (n, 4)).astype(np.float32) for n in (len(of), len(vector), 6))
    changes = Changes(vector, vectors)
    index = PassageIndex(stored, stored, of.astype(np.int32), changed=(vectors, vector) if len(vector) else None)
    every = changes.applied(stored, of)
    assert every[1].tolist() == sorted([*(row for row in of.tolist() if not numbers[row, 1]), *vector.tolist()])
    for query, mine, passages in zip(queries, *index.search(queries, k), strict=True):
        assert list(zip(mine.tolist(), passages.tolist(), strict=True)) == by_loop(*every, query, k)


def test_vectors_of_one_passage_may_fill_the_first_ranks() -> None:
    """The control: the first vectors alone are all of one passage."""
    query = np.ones((1, 4), np.float32)
    vectors = np.concatenate([2 + np.random.default_rng(0).random((300, 4)), np.eye(4)]).astype(np.float32)
    of = np.repeat([0, 1, 2, 3, 4], [300, 1, 1, 1, 1])
    assert set(of[exact.search(vectors, query, 10)[1][0]]) == {0}
    _, rows = PassageIndex(vectors, vectors, of).search(query, 4)
    assert rows[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("kind", ["flat_fp16", "sq8", "ivf", "hnsw"])
def test_every_kind_of_index(kind: str, parts: int, tmp_path) -> None:
    random = np.random.default_rng(2)
    of = np.repeat(np.arange(300), random.integers(1, 5, 300))
    vectors, queries = random.normal(size=(len(of), 16)).astype(np.float32), random.normal(size=(20, 16))
    path = tmp_path / "index.faiss"
    build_index(vectors, path, IndexKind(index=kind, ivf_probes=4, hnsw_breadth=512, index_parts=parts))
    queries = queries.astype(np.float32)
    scores, rows = PassageIndex(load_index(path, vectors.shape), vectors, of).search(queries, 50)
    assert (np.diff(scores, axis=1)[rows[:, 1:] >= 0] <= 0).all()
    for hits, query in zip(rows, queries, strict=True):
        passages = hits[hits >= 0]
        assert len(set(passages.tolist())) == len(passages)
        wanted = {passage for _, passage in by_loop(vectors, of, query, 50)}
        assert len(wanted & set(passages.tolist())) > (20 if kind == "ivf" else 45)
