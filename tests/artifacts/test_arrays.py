"""Vectors and graphs are memory-mapped, and the reverse CSR is what a plain loop finds."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts import Graph, create_vectors, drafting, read_vectors, reverse_csr
from gnn_encoder.artifacts.arrays import CHUNK, JoinedRows, at_unit_length, check_range
from gnn_encoder.errors import UserError


@settings(max_examples=80, deadline=None)
@given(n=st.integers(0, 8), k=st.integers(1, 5), passages=st.integers(1, 12), seed=st.integers(0, 1000))
def test_reverse_csr_is_a_loop(n: int, k: int, passages: int, seed: int) -> None:
    edges = np.random.default_rng(seed).integers(-1, passages, (n, k)).astype(np.int32)
    indptr, reverse = reverse_csr(edges, passages)
    assert indptr.dtype == reverse.dtype == np.int64 and len(indptr) == passages + 1
    for passage in range(passages):
        positions = [i * k + j for i in range(n) for j in range(k) if edges[i, j] == passage]
        assert reverse[indptr[passage] : indptr[passage + 1]].tolist() == positions
    assert len(reverse) == (edges >= 0).sum()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_unit_length_is_torchs(dtype: type) -> None:
    vectors = np.random.default_rng(1).normal(size=(50, 64)).astype(dtype)
    vectors[7], vectors[8] = 0, vectors[8] * 1e-3
    unit = at_unit_length(vectors)
    assert np.abs(unit - torch.nn.functional.normalize(torch.from_numpy(vectors).double()).numpy()).max() < 1e-3
    assert unit.dtype == max(np.float32, dtype, key=lambda kind: np.dtype(kind).itemsize) and not unit[7].any()


def test_vectors_round_trip(tmp_path: Path) -> None:
    with drafting(tmp_path / "vectors", "vectors") as draft:
        array = create_vectors(draft, 5, 3, np.float16)
        array[:] = np.arange(15).reshape(5, 3)
        array.flush()
    back = read_vectors(tmp_path / "vectors")
    assert isinstance(back, np.memmap) and back.dtype == np.float16 and back[4].tolist() == [12, 13, 14]
    with pytest.raises(ValueError, match="read-only"):
        back[0, 0] = 1
    with pytest.raises(UserError, match="where 'graph' is needed"):
        Graph.read(tmp_path / "vectors")


def test_a_number_beyond_fp16_is_one_line() -> None:
    vectors = np.zeros((CHUNK + 3, 2), np.float32)
    vectors[CHUNK + 1, 1] = 70_000
    check_range(vectors)
    with np.errstate(over="ignore"):
        halves = vectors.astype(np.float16)
    with pytest.raises(UserError, match=f"^vector {CHUNK + 1:,} has a number beyond fp16.*vector_type: fp32$"):
        check_range(halves)
    check_range(halves[:CHUNK])


@pytest.mark.parametrize("with_features", [True, False])
def test_graph_round_trip(tmp_path: Path, with_features: bool) -> None:
    queries, edges = np.array([4, 8], np.int32), np.array([[2, 0, -1], [0, 1, 2]], np.int32)
    labelled = np.array([[True, False, False], [False, False, True]])
    features = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float16)
    with drafting(tmp_path / "graph", "graph") as draft:
        Graph.write_structure(draft, queries, edges, labelled, edges[:, :2], passages=5)
        if with_features:
            Graph.create_features(draft, "features", features.shape)[:] = features
    graph = Graph.read(tmp_path / "graph")
    for mine, expected in ((graph.queries, queries), (graph.edges, edges), (graph.labelled, labelled)):
        np.testing.assert_array_equal(mine, expected)
    assert graph.indptr.tolist() == [0, 2, 3, 5, 5, 5] and graph.reverse.tolist() == [1, 3, 4, 0, 5]
    assert graph.query_loops is None and graph.passage_loops is None
    if with_features:
        np.testing.assert_array_equal(graph.features, features)
        assert isinstance(graph.features, np.memmap) and graph.features.shape == (2, 3, 4)
    else:
        assert graph.features is None


@settings(max_examples=80, deadline=None)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6), wanted=st.integers(0, 12), seed=st.integers(0, 1000))
def test_joined_rows_are_the_concatenation(sizes: list[int], wanted: int, seed: int) -> None:
    generator, total = np.random.default_rng(seed), sum(sizes)
    parts = [generator.normal(size=(size, 3)).astype(np.float16) for size in sizes]
    joined, whole = JoinedRows(parts), np.concatenate(parts)
    assert joined.shape == whole.shape and len(joined) == total and joined.dtype == whole.dtype
    rows = generator.integers(0, total, wanted) if total else np.empty(0, np.int64)  # unsorted, and some repeated
    assert np.array_equal(joined[rows], whole[rows]) and joined[rows].dtype == np.float16
    for part in (slice(None), slice(1, wanted), slice(None, None, -2), slice(-2, None)):
        assert np.array_equal(joined[part], whole[part])
    for outside in (total, -1):
        with pytest.raises(IndexError, match=f"of an array of {total} rows"):
            joined[np.array([outside])]
