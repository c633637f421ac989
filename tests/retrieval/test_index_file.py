"""Each kind of index: against FAISS's own file, exact or nearly so, one line for what it cannot open."""

import shutil
import subprocess
import sys
from pathlib import Path

import faiss
import numpy as np
import pytest

from gnn_encoder.errors import UserError
from gnn_encoder.retrieval import exact, index_file
from gnn_encoder.retrieval.index_file import Index, build_index, load_index, recall, search_index
from gnn_encoder.settings.outcome import IndexKind

KINDS = ("flat", "flat_fp16", "sq8", "ivf", "hnsw")


def vectors_and_queries(m: int = 900) -> tuple[np.ndarray, np.ndarray]:
    """Random directions around a few centres, as embeddings lie."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(12, 16))
    around = [centres[rng.integers(0, 12, n)] + rng.normal(size=(n, 16)) for n in (m, 20)]
    vectors, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in around)
    return vectors.astype(np.float32), queries.astype(np.float32)


def served(vectors: np.ndarray, folder: Path, kind: IndexKind) -> Index:
    """What a bundle of these vectors is searched by."""
    (folder / "built").mkdir()
    build_index(vectors, folder / "built" / "index.faiss", kind)
    shutil.move(folder / "built", folder / "served")
    if kind.index == "flat":
        assert not list((folder / "served").iterdir()), "a copy of the vectors"
        return vectors
    return load_index(folder / "served" / "index.faiss", vectors.shape)


@pytest.mark.parametrize("kind", ["flat_fp16", "sq8", "ivf"])
def test_index_file_is_what_faiss_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    vectors, _ = vectors_and_queries()
    monkeypatch.setattr(index_file, "CHUNK", 33)
    build_index(vectors, tmp_path / "index.faiss", IndexKind(index=kind, ivf_lists=9))  # type: ignore[arg-type]
    if kind == "ivf":
        faiss.set_deserialization_vector_byte_limit(2**30)  # `load_index` in another test may have lowered it
        ours = faiss.read_index(str(tmp_path / "index.faiss"))
        ours.reset()
        ours.add(vectors)
        assert (tmp_path / "index.faiss").read_bytes() == faiss.serialize_index(ours).tobytes()
        return
    codes = {"flat_fp16": faiss.ScalarQuantizer.QT_fp16, "sq8": faiss.ScalarQuantizer.QT_8bit}
    whole = faiss.IndexScalarQuantizer(16, codes[kind], 0)
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
        (IndexKind(index="flat_fp16", index_parts=4), 0.99),
        (IndexKind(index="sq8", index_parts=4), 0.95),
        (IndexKind(index="ivf", index_parts=4, ivf_lists=4, ivf_probes=2), 0.8),
        (IndexKind(index="hnsw", index_parts=4), 0.95),
    ],
)
def test_recall_of_each_kind_in_whatever_folder(tmp_path: Path, kind: IndexKind, least: float) -> None:
    vectors, queries = vectors_and_queries()
    index = served(vectors, tmp_path, kind)
    assert recall(index, vectors, queries, 10) >= least
    scores, rows = search_index(index, queries, 10)
    exact = np.take_along_axis(queries @ vectors.T, rows.astype(np.int64), axis=1)
    assert np.abs(scores - exact).max() < 0.02 and (np.diff(scores, axis=1) <= 0).all() and rows.dtype == np.int32


def test_recall_tells_a_poor_index(tmp_path: Path) -> None:
    vectors, queries = vectors_and_queries()
    build_index(vectors, tmp_path / "index.faiss", IndexKind(index="ivf", ivf_lists=16, ivf_probes=1))
    assert 0.1 < recall(load_index(tmp_path / "index.faiss", vectors.shape), vectors, queries, 10) < 0.8


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("m", [0, 3])
def test_few_passages_are_padded(tmp_path: Path, name: str, m: int, parts: int) -> None:
    vectors, queries = vectors_and_queries(m)
    index = served(vectors, tmp_path, IndexKind(index=name, index_parts=parts))  # type: ignore[arg-type]
    scores, rows = search_index(index, queries, 5)
    assert (np.sort(rows[:, :m], axis=1) == np.arange(m)).all()
    assert (rows[:, m:] == -1).all() and np.isneginf(scores[:, m:]).all()


@pytest.mark.parametrize("m", [0, 1, 200])
def test_a_flat_index_answers_like_the_vectors(tmp_path: Path, m: int) -> None:
    vectors, queries = vectors_and_queries(m)
    expected = exact.search(vectors, queries, 7)
    index = served(vectors, tmp_path, IndexKind(index_parts=3))
    for mine, wanted in zip(search_index(index, queries, 7), expected, strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize("content", [None, b"", b"not an index", b"IxFI\x08\x00", b"IxSQ" + bytes(200)])
def test_broken_index_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "index.faiss"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="no readable FAISS index") as caught:
        load_index(path, (3, 8))
    assert "\n" not in str(caught.value)


DAMAGE = """
import sys
from pathlib import Path
import numpy as np
from gnn_encoder.errors import UserError
from gnn_encoder.retrieval.index_file import load_index, search_index

def attempt(path, damaged, m):
    path.write_bytes(damaged)
    try:
        _, rows = search_index(load_index(path, (m, 16)), np.ones((2, 16), np.float32), 3)
    except UserError as error:
        assert "\\n" not in str(error)
        return 1
    assert rows.min() >= -1 and rows.max() < m
    return 0

for path in map(Path, sys.argv[1:]):
    print(path.name, flush=True)
    m, content, rng, noticed = int(path.name.split("-")[0]), path.read_bytes(), np.random.default_rng(5), 0
    cuts = {*range(150), *range(len(content) - 100, len(content))} & {*range(len(content))}
    assert sum(attempt(path, content[:cut], m) for cut in cuts) == len(cuts), "a cut file was read"
    assert attempt(path, content, m) == 0
    for turn in range(150):
        damaged, at = bytearray(content), int(rng.integers(min(len(content), 400 if turn % 2 else 45)))
        damaged[at : at + 8] = rng.bytes(8)
        noticed += attempt(path, bytes(damaged[: len(content)]), m)
    assert noticed > 20
"""


@pytest.mark.slow
def test_no_damaged_index_ends_the_process(tmp_path: Path) -> None:
    """A bundle's digests are checked before; this is for those that somebody made to fit."""
    files = []
    for m in (3, 60):
        vectors = vectors_and_queries(m)[0]
        for name in KINDS[1:]:
            files.append(tmp_path / f"{m}-{name}")
            build_index(vectors, files[-1], IndexKind(index=name))  # type: ignore[arg-type]
    command = [sys.executable, "-c", DAMAGE, *files]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, f"{ended.returncode} after {ended.stdout[-80:]}: {ended.stderr[-2000:]}"


@pytest.mark.parametrize("shape", [(4, 16), (3, 8)])
@pytest.mark.parametrize("name", KINDS[1:])
def test_an_index_of_other_vectors_is_refused(tmp_path: Path, name: str, shape: tuple[int, int]) -> None:
    build_index(vectors_and_queries(3)[0], tmp_path / "index.faiss", IndexKind(index=name))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"for {shape[0]} vectors of {shape[1]}"):
        load_index(tmp_path / "index.faiss", shape)


def test_other_kind_of_index_is_refused(tmp_path: Path) -> None:
    l2 = faiss.IndexScalarQuantizer(4, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2)
    for index, says in ((faiss.IndexFlatL2(4), "IxF2"), (faiss.IndexFlatIP(4), "IxFI"), (l2, "IxSQ")):
        faiss.write_index(index, str(tmp_path / "l2.faiss"))
        with pytest.raises(UserError, match=says):
            load_index(tmp_path / "l2.faiss", (0, 4))


def test_a_deep_search_leaves_the_next_as_it_was(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    vectors, queries = (generator.standard_normal((rows, 16)).astype(np.float32) for rows in (3000, 20))
    build_index(vectors, tmp_path / "index", IndexKind(index="hnsw", hnsw_links=4, hnsw_breadth=8))
    index = load_index(tmp_path / "index", vectors.shape)
    scores, rows = search_index(index, queries, 5)
    _, deep = search_index(index, queries, 1000)
    assert (deep >= 0).all()
    again = search_index(index, queries, 5)
    assert np.array_equal(again[0], scores) and np.array_equal(again[1], rows)
    # The control: a broader search finds other passages here.
    index.hnsw.efSearch = 1000
    assert not np.array_equal(search_index(index, queries, 5)[1], rows)
