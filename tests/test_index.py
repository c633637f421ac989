"""Exact search against float64, ties, pads, chunks, and the index file against FAISS's own."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder import index
from gnn_encoder.errors import UserError


def reference(vectors: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Float64 scores, stable sort: ties by ascending row."""
    exact = queries.astype(np.float64) @ vectors.astype(np.float64).T
    scores = np.full((len(queries), k), -np.inf)
    rows = np.full((len(queries), k), -1)
    best = np.argsort(-exact, axis=1, kind="stable")[:, :k]
    rows[:, : best.shape[1]] = best
    scores[:, : best.shape[1]] = np.take_along_axis(exact, best, axis=1)
    return scores, rows


@pytest.mark.parametrize("n", [1, 30])
@pytest.mark.parametrize("k", [1, 10, 150])
def test_equals_float64_on_random_vectors(n: int, k: int) -> None:
    rng = np.random.default_rng(3)
    vectors, queries = rng.normal(size=(700, 24)).astype(np.float32), rng.normal(size=(n, 24)).astype(np.float32)
    scores, rows = index.search(vectors, queries, k, chunk=128)
    expected_scores, expected_rows = reference(vectors, queries, k)
    assert scores.dtype == np.float32 and rows.dtype == np.int32
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(0, 90),
    n=st.integers(1, 25),
    k=st.integers(1, 120),
    chunk=st.integers(1, 100),
    seed=st.integers(0, 99),
)
def test_ties_go_to_the_lower_row_whatever_the_chunks(m: int, n: int, k: int, chunk: int, seed: int) -> None:
    # Small integers: every sum is exact in fp32, so equal scores really are equal, and there are many.
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-1, 2, (m, 4)).astype(np.float32)
    queries = rng.integers(-1, 2, (n, 4)).astype(np.float32)
    scores, rows = index.search(vectors, queries, k, chunk=chunk)
    expected_scores, expected_rows = reference(vectors, queries, k)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(scores, expected_scores)


def test_faiss_alone_does_not_order_ties() -> None:
    """The control: without the second look the same data come out in another order."""
    vectors = np.random.default_rng(0).integers(-1, 2, (90, 4)).astype(np.float32)
    _, rows = faiss.knn(vectors[:5], vectors, 10, metric=faiss.METRIC_INNER_PRODUCT)
    _, expected = reference(vectors, vectors[:5], 10)
    assert (np.sort(rows, axis=1) != np.sort(expected, axis=1)).any()


def test_more_hits_than_passages_are_pads() -> None:
    scores, rows = index.search(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), 5)
    assert rows[1].tolist() == [1, 0, 2, -1, -1]
    assert scores[1].tolist() == [1, 0, 0, -np.inf, -np.inf]


def test_query_batches_and_memory_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    vectors, queries = rng.normal(size=(300, 8)).astype(np.float16), rng.normal(size=(50, 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    monkeypatch.setattr(index, "QUERIES", 7)
    _, rows = index.search(np.load(tmp_path / "v.npy", mmap_mode="r"), queries, 12, chunk=64)
    np.testing.assert_array_equal(rows, reference(vectors, queries, 12)[1])


def test_index_file_is_what_faiss_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(1).normal(size=(200, 16)).astype(np.float32)
    monkeypatch.setattr(index, "CHUNK", 33)
    index.build_index(vectors, tmp_path / "index.faiss")
    flat = faiss.IndexFlatIP(16)
    flat.add(vectors)
    assert (tmp_path / "index.faiss").read_bytes() == faiss.serialize_index(flat).tobytes()


def test_loaded_index_answers_like_the_vectors(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    vectors, queries = rng.normal(size=(200, 16)).astype(np.float32), rng.normal(size=(4, 16)).astype(np.float32)
    index.build_index(vectors, tmp_path / "index.faiss")
    loaded = index.load_index(tmp_path / "index.faiss")
    for mine, expected in zip(index.search_index(loaded, queries, 7), index.search(vectors, queries, 7), strict=True):
        np.testing.assert_array_equal(mine, expected)
    _, faiss_rows = loaded.search(queries, 7)
    np.testing.assert_array_equal(faiss_rows, index.search_index(loaded, queries, 7)[1])


def test_empty_index(tmp_path: Path) -> None:
    index.build_index(np.empty((0, 4), np.float32), tmp_path / "index.faiss")
    _, rows = index.search_index(index.load_index(tmp_path / "index.faiss"), np.ones((1, 4), np.float32), 2)
    assert rows.tolist() == [[-1, -1]]


@pytest.mark.parametrize("content", [None, b"not an index", b"IxFI\x08\x00"])
def test_broken_index_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "index.faiss"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="no readable FAISS index") as caught:
        index.load_index(path)
    assert "\n" not in str(caught.value)


def test_other_kind_of_index_is_refused(tmp_path: Path) -> None:
    faiss.write_index(faiss.IndexFlatL2(4), str(tmp_path / "l2.faiss"))
    with pytest.raises(UserError, match="IndexFlatL2"):
        index.load_index(tmp_path / "l2.faiss")
