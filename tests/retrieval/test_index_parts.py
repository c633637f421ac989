"""An index in parts: against FAISS's indexes over the slices, what memory holds, missing and damaged parts."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_encoder.artifacts.parts import in_parts, stored_parts
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.index_file import build_index, load_index, recall, search_index
from gnn_encoder.settings.outcome import IndexKind

FP16, INT8 = faiss.ScalarQuantizer.QT_fp16, faiss.ScalarQuantizer.QT_8bit
INNER = faiss.METRIC_INNER_PRODUCT


def random_vectors(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def best_of(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The `k` best columns of each row, ties by ascending column, padded."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    missing = k - order.shape[1]
    best = np.take_along_axis(scores, order, axis=1)
    padding = ((0, 0), (0, missing))
    return np.pad(best, padding, constant_values=-np.inf), np.pad(order, padding, constant_values=-1)


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 120), k=st.integers(1, 40), width=st.sampled_from([3, 8, 16, 24]), seed=st.integers(0, 99))
def test_hits_of_all_codes_are_the_same_in_any_number_of_parts(
    tmp_path_factory: pytest.TempPathFactory, m: int, k: int, width: int, seed: int
) -> None:
    random, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("indexes")
    # Small integers: their scores are exact, and many are equal. Copies of real vectors: equal scores, too.
    whole = random.integers(-1, 2, (m, width)).astype(np.float32)
    drawn = random.standard_normal((m, width)).astype(np.float32)[random.integers(0, 1 + m // 4, m)]
    for name, vectors in (("whole", whole), ("drawn", drawn)):
        queries = random.integers(-1, 2, (5, width)) if name == "whole" else random.standard_normal((5, width))
        queries = queries.astype(np.float32)
        hits = []
        for parts in (1, 2, 4):
            path = folder / f"{name}{parts}"
            build_index(vectors, path, IndexKind(index="flat_fp16", index_parts=parts))
            hits.append(search_index(load_index(path, vectors.shape), queries, k))
        if name == "whole":
            hits.append(best_of(queries @ vectors.T, k))
        for scores, rows in hits[1:]:
            np.testing.assert_array_equal(scores, hits[0][0])
            # FAISS keeps any rows of the scores that are equal to the last one, if there are more of them.
            surely = scores > (scores[:, -1:] if k < m else -np.inf)
            np.testing.assert_array_equal(rows[surely], hits[0][1][surely])


def own_index(kind: str, vectors: np.ndarray) -> faiss.Index:
    """FAISS's index of a kind, built by FAISS alone."""
    d = vectors.shape[1]
    index: faiss.Index
    if kind == "hnsw":
        index = faiss.IndexHNSWSQ(d, FP16, 4, INNER)
        index.hnsw.efSearch = 16
    elif kind == "ivf":
        index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatIP(d), d, 6, FP16, INNER, False)
        index.nprobe = 2
    else:
        index = faiss.IndexScalarQuantizer(d, INT8, INNER)
    index.train(vectors[np.linspace(0, len(vectors) - 1, 6 * 40).astype(int)] if kind == "ivf" else vectors)
    index.add(vectors)
    return index


@pytest.fixture
def one_thread() -> Iterator[None]:
    """With several threads FAISS links the vectors of an HNSW in any order."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", ["hnsw", "ivf", "sq8"])
def test_equals_a_merge_of_indexes_over_the_slices(tmp_path: Path, kind: str) -> None:
    vectors, queries = np.split(random_vectors(1223, 12), [1203])
    kind_settings = IndexKind(index=kind, hnsw_links=4, hnsw_breadth=16, ivf_lists=6, ivf_probes=2, index_parts=4)  # type: ignore[arg-type]
    build_index(vectors, tmp_path / "index.faiss", kind_settings)
    index = load_index(tmp_path / "index.faiss", vectors.shape)
    every = np.full((len(queries), len(vectors)), -np.inf, np.float32)
    for start, stop in ((0, 300), (300, 601), (601, 902), (902, 1203)):
        scores, rows = own_index(kind, vectors[start:stop]).search(queries, 10)
        query, rank = np.nonzero(rows >= 0)
        every[query, start + rows[query, rank]] = scores[query, rank]
    expected = best_of(every, 10)
    scores, rows = search_index(index, queries, 10)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(scores, expected[0])
    # The control: one index over all vectors finds something else. More parts lose no recall.
    build_index(vectors, tmp_path / "one.faiss", kind_settings.model_copy(update={"index_parts": 1}))
    one = load_index(tmp_path / "one.faiss", vectors.shape)
    assert not np.array_equal(search_index(one, queries, 10)[0], scores)
    if kind != "sq8":
        assert recall(index, vectors, queries, 10) > recall(one, vectors, queries, 10)


PEAK = """
import sys
from pathlib import Path
import numpy as np
from gnn_encoder.retrieval.index_file import build_index
from gnn_encoder.settings.outcome import IndexKind

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

folder, parts = Path(sys.argv[1]), int(sys.argv[2])
vectors = np.random.default_rng(0).standard_normal((4000, 8)).astype(np.float32)
kind = IndexKind(index="hnsw", hnsw_links=1024, index_parts=parts)
build_index(vectors[:100], folder / "small", kind)
Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size again
before = peak()
build_index(vectors, folder / f"index{parts}", kind)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_memory_holds_one_part_at_a_time(tmp_path: Path) -> None:
    def peak(parts: int) -> float:
        command = [sys.executable, "-c", PEAK, tmp_path, str(parts)]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    one, four = peak(1), peak(4)  # 31 and 8 MiB
    assert one > 25 and four < one / 2.5


def test_missing_and_damaged_parts_are_one_line(tmp_path: Path) -> None:
    vectors, path = random_vectors(50, 8), tmp_path / "index.faiss"
    build_index(vectors, path, IndexKind(index="sq8", index_parts=3))
    files = in_parts(path, 3)
    assert stored_parts(path) == files == sorted(tmp_path.iterdir())
    load_index(path, vectors.shape)
    whole = files[1].read_bytes()
    files[1].unlink()
    with pytest.raises(UserError, match=f"{files[1].name} is no readable FAISS index .*No such file") as missing:
        load_index(path, vectors.shape)
    for wrong in (whole[:-1], whole[:20], b"", files[0].read_bytes()):  # the first part has 16 vectors, this one 17
        files[1].write_bytes(wrong)
        with pytest.raises(UserError, match=f"{files[1].name} is no readable FAISS index") as caught:
            load_index(path, vectors.shape)
        assert "\n" not in str(caught.value) + str(missing.value)
    files[1].write_bytes(whole)
    with pytest.raises(UserError, match="for 17 vectors of 8"):  # parts of 51 vectors
        load_index(path, (51, 8))
