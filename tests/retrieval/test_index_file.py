"""Each kind of index: against FAISS's own file, exact or nearly so, one line for what it cannot open."""

import shutil
from pathlib import Path

import faiss
import numpy as np
import pytest

from gnn_encoder.errors import UserError
from gnn_encoder.retrieval import exact, index_file
from gnn_encoder.retrieval.index_file import build_index, load_index, recall, search_index
from gnn_encoder.settings.outcome import IndexKind

KINDS = ("flat", "flat_fp16", "sq8", "ivf", "hnsw")


def vectors_and_queries(m: int = 900) -> tuple[np.ndarray, np.ndarray]:
    """Random directions around a few centres, as embeddings lie."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(12, 16))
    around = [centres[rng.integers(0, 12, n)] + rng.normal(size=(n, 16)) for n in (m, 20)]
    vectors, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in around)
    return vectors.astype(np.float32), queries.astype(np.float32)


@pytest.mark.parametrize("kind", ["flat", "flat_fp16", "sq8", "ivf"])
def test_index_file_is_what_faiss_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    vectors, _ = vectors_and_queries()
    monkeypatch.setattr(index_file, "CHUNK", 33)
    build_index(vectors, tmp_path / "index.faiss", IndexKind(index=kind, ivf_lists=9))  # type: ignore[arg-type]
    if kind == "ivf":
        ours = faiss.read_index(str(tmp_path / "index.faiss"))
        ours.reset()
        ours.add(vectors)
        assert (tmp_path / "index.faiss").read_bytes() == faiss.serialize_index(ours).tobytes()
        return
    codes = {"flat_fp16": faiss.ScalarQuantizer.QT_fp16, "sq8": faiss.ScalarQuantizer.QT_8bit}
    whole = faiss.IndexScalarQuantizer(16, codes[kind], 0) if kind in codes else faiss.IndexFlatIP(16)
    whole.train(vectors)
    whole.add(vectors)
    assert (tmp_path / "index.faiss").read_bytes() == faiss.serialize_index(whole).tobytes()


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        (IndexKind(index="flat"), 1.0),
        (IndexKind(index="flat_fp16"), 0.99),
        (IndexKind(index="sq8"), 0.95),
        (IndexKind(index="ivf", ivf_lists=16, ivf_probes=16), 0.99),
        (IndexKind(index="ivf", ivf_lists=16, ivf_probes=6), 0.8),
        (IndexKind(index="hnsw"), 0.95),
    ],
)
def test_recall_of_each_kind_in_whatever_folder(tmp_path: Path, kind: IndexKind, least: float) -> None:
    vectors, queries = vectors_and_queries()
    (tmp_path / "built").mkdir()
    build_index(vectors, tmp_path / "built" / "index.faiss", kind)
    shutil.move(tmp_path / "built", tmp_path / "served")
    served = load_index(tmp_path / "served" / "index.faiss")
    assert recall(served, vectors, queries, 10) >= least
    scores, rows = search_index(served, queries, 10)
    exact = np.take_along_axis(queries @ vectors.T, rows.astype(np.int64), axis=1)
    assert np.abs(scores - exact).max() < 0.02 and (np.diff(scores, axis=1) <= 0).all() and rows.dtype == np.int32


def test_recall_tells_a_poor_index(tmp_path: Path) -> None:
    vectors, queries = vectors_and_queries()
    build_index(vectors, tmp_path / "index.faiss", IndexKind(index="ivf", ivf_lists=16, ivf_probes=1))
    assert 0.1 < recall(load_index(tmp_path / "index.faiss"), vectors, queries, 10) < 0.8


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("m", [0, 3])
def test_few_passages_are_padded(tmp_path: Path, name: str, m: int) -> None:
    vectors, queries = vectors_and_queries(m)
    build_index(vectors, tmp_path / "index.faiss", IndexKind(index=name))  # type: ignore[arg-type]
    scores, rows = search_index(load_index(tmp_path / "index.faiss"), queries, 5)
    assert (np.sort(rows[:, :m], axis=1) == np.arange(m)).all()
    assert (rows[:, m:] == -1).all() and np.isneginf(scores[:, m:]).all()


def test_loaded_index_answers_like_the_vectors(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    vectors, queries = rng.normal(size=(200, 16)).astype(np.float32), rng.normal(size=(4, 16)).astype(np.float32)
    build_index(vectors, tmp_path / "index.faiss")
    loaded = load_index(tmp_path / "index.faiss")
    for mine, expected in zip(search_index(loaded, queries, 7), exact.search(vectors, queries, 7), strict=True):
        np.testing.assert_array_equal(mine, expected)
    _, faiss_rows = loaded.search(queries, 7)
    np.testing.assert_array_equal(faiss_rows, search_index(loaded, queries, 7)[1])


@pytest.mark.parametrize("content", [None, b"not an index", b"IxFI\x08\x00"])
def test_broken_index_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "index.faiss"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="no readable FAISS index") as caught:
        load_index(path)
    assert "\n" not in str(caught.value)


def test_other_kind_of_index_is_refused(tmp_path: Path) -> None:
    faiss.write_index(faiss.IndexFlatL2(4), str(tmp_path / "l2.faiss"))
    with pytest.raises(UserError, match="IndexFlatL2"):
        load_index(tmp_path / "l2.faiss")


def test_a_deep_search_leaves_the_next_as_it_was(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    vectors, queries = (generator.standard_normal((rows, 16)).astype(np.float32) for rows in (3000, 20))
    build_index(vectors, tmp_path / "index", IndexKind(index="hnsw", hnsw_links=4, hnsw_breadth=8))
    index = load_index(tmp_path / "index")
    scores, rows = search_index(index, queries, 5)
    _, deep = search_index(index, queries, 1000)
    assert (deep >= 0).all()
    again = search_index(index, queries, 5)
    assert np.array_equal(again[0], scores) and np.array_equal(again[1], rows)
    # The control: a broader search finds other passages here.
    index.hnsw.efSearch = 1000
    assert not np.array_equal(search_index(index, queries, 5)[1], rows)
