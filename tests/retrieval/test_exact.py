"""Exact search against float64, ties, pads, chunks, and the index file against FAISS's own."""

from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts.arrays import JoinedRows
from gnn_encoder.retrieval import exact


@pytest.fixture(autouse=True, scope="module", params=[False, True], ids=["faiss", "torch"])
def _as_on_a_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Many queries by FAISS, and by torch's product and topk, as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_has_gpu", lambda: request.param)
        yield


def reference(vectors: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Float64 scores, stable sort: ties by ascending row."""
    exact = queries.astype(np.float64) @ vectors.astype(np.float64).T
    scores = np.full((len(queries), k), -np.inf)
    rows = np.full((len(queries), k), -1)
    best = np.argsort(-exact, axis=1, kind="stable")[:, :k]
    rows[:, : best.shape[1]] = best
    scores[:, : best.shape[1]] = np.take_along_axis(exact, best, axis=1)
    return scores, rows


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("n", [1, 30])
@pytest.mark.parametrize("k", [1, 10, 150])
def test_equals_float64_on_random_vectors(n: int, k: int, dtype: type) -> None:
    rng = np.random.default_rng(3)
    vectors, queries = rng.normal(size=(700, 24)).astype(dtype), rng.normal(size=(n, 24)).astype(np.float32)
    scores, rows = exact.search(vectors, queries, k, chunk=128)
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
    dtype=st.sampled_from([np.float32, np.float16]),
)
def test_ties_go_to_the_lower_row_whatever_the_chunks(
    m: int, n: int, k: int, chunk: int, seed: int, dtype: type
) -> None:
    # Small integers: every sum is exact in fp32, so equal scores really are equal, and there are many.
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-1, 2, (m, 4)).astype(dtype)
    queries = rng.integers(-1, 2, (n, 4)).astype(np.float32)
    scores, rows = exact.search(vectors, queries, k, chunk=chunk)
    expected_scores, expected_rows = reference(vectors, queries, k)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(scores, expected_scores)


@pytest.mark.parametrize("n", [1, 30])
def test_no_hit_has_an_undefined_score(n: int) -> None:
    vectors, queries = np.eye(9, 4, dtype=np.float32), np.ones((n, 4), np.float32)
    vectors[2], queries[-1] = np.nan, np.nan
    scores, rows = exact.search(vectors, queries, 7, chunk=4)
    assert set(rows[-1]) == {-1} and set(scores[-1]) == {-np.inf}
    assert n == 1 or rows[0].tolist() == [0, 1, 3, 4, 5, 6, 7]


def test_faiss_alone_does_not_order_ties() -> None:
    """The control: without the second look the same data come out in another order."""
    vectors = np.random.default_rng(0).integers(-1, 2, (90, 4)).astype(np.float32)
    _, rows = faiss.knn(vectors[:5], vectors, 10, metric=faiss.METRIC_INNER_PRODUCT)
    _, expected = reference(vectors, vectors[:5], 10)
    assert (np.sort(rows, axis=1) != np.sort(expected, axis=1)).any()


def test_more_hits_than_passages_are_pads() -> None:
    scores, rows = exact.search(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), 5)
    assert rows[1].tolist() == [1, 0, 2, -1, -1]
    assert scores[1].tolist() == [1, 0, 0, -np.inf, -np.inf]


def test_query_batches_and_memory_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    vectors = rng.integers(-1, 2, size=(300, 8)).astype(np.float16)
    queries = rng.integers(-1, 2, size=(50, 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    monkeypatch.setattr(exact, "QUERIES", 7)
    _, rows = exact.search(np.load(tmp_path / "v.npy", mmap_mode="r"), queries, 12, chunk=64)
    np.testing.assert_array_equal(rows, reference(vectors, queries, 12)[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("n", [1, 30])
def test_parts_have_the_bits_of_the_whole(n: int, dtype: type) -> None:
    rng = np.random.default_rng(5)
    vectors, queries = rng.normal(size=(300, 8)).astype(dtype), rng.normal(size=(n, 8)).astype(np.float32)
    in_parts = exact.search(JoinedRows(np.split(vectors, [10, 200, 200])), queries, 12, chunk=64)
    for in_part, expected in zip(in_parts, exact.search(vectors, queries, 12, chunk=64), strict=True):
        np.testing.assert_array_equal(in_part, expected)
