"""A bundle holds together: round trip, mismatches refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from bundles import fill_bundle

from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.artifacts.arrays import VECTORS
from gnn_encoder.artifacts.bundle import VECTOR_PASSAGES
from gnn_encoder.errors import UserError
from gnn_encoder.settings.outcome import IndexKind


def save_nothing(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text("{}")


def vectors_of(dataset: Dataset) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(dataset.passages), 8)).astype(np.float32)


def test_round_trip(tmp_path: Path, tiny_dataset: Dataset) -> None:
    vectors = vectors_of(tiny_dataset)
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, vectors, tiny_dataset, save_nothing)
    bundle = Bundle.read(tmp_path / "bundle")
    np.testing.assert_array_equal(bundle.vectors, vectors)
    assert isinstance(bundle.vectors, np.memmap) and bundle.vectors.dtype == np.float32
    assert bundle.passages.take(np.array([3])).ids == ["p3"]
    assert bundle.index_files == [] and not list(bundle.path.glob("index*"))
    assert bundle.searched_bytes == (bundle.path / "vectors.npy").stat().st_size
    assert (bundle.query_encoder_path / "config.json").is_file()
    card = json.loads((bundle.path / "bundle.json").read_text())
    assert (card["passages"], card["width"]) == vectors.shape and card["index"] == card["vectors"] == "vectors.npy"
    assert card["dataset_digest"] == tiny_dataset.manifest.digest


@pytest.mark.parametrize("parts", [1, 3])
def test_an_index_lies_beside_the_vectors_where_they_are_not_searched(
    tmp_path: Path, tiny_dataset: Dataset, parts: int
) -> None:
    with drafting(tmp_path / "bundle", "bundle") as draft:
        kind = IndexKind(index="sq8", index_parts=parts)
        fill_bundle(draft, vectors_of(tiny_dataset), tiny_dataset, save_nothing, kind=kind)
    bundle = Bundle.read(tmp_path / "bundle")
    names = [f"index-0000{number}-of-00003.faiss" for number in (1, 2, 3)] if parts > 1 else ["index.faiss"]
    assert (
        [file.name for file in bundle.index_files] == sorted(file.name for file in bundle.path.glob("index*")) == names
    )
    assert json.loads((bundle.path / "bundle.json").read_text())["index"] == (names if parts > 1 else names[0])
    assert bundle.searched_bytes == sum(bundle.searched[name].bytes for name in names)


def test_one_vector_per_passage(tmp_path: Path, tiny_dataset: Dataset) -> None:
    short = vectors_of(tiny_dataset)[:-1]
    with pytest.raises(ValueError, match="99 vectors for 100"), drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, short, tiny_dataset, save_nothing)
    assert list(tmp_path.iterdir()) == []


def test_parts_of_two_bundles_are_refused(tmp_path: Path, tiny_dataset: Dataset) -> None:
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, vectors_of(tiny_dataset), tiny_dataset, save_nothing)
        np.save(draft / VECTORS, np.zeros((5, 8), np.float32))
    with pytest.raises(UserError, match="inconsistent"):
        Bundle.read(tmp_path / "bundle")


def test_a_dataset_is_no_bundle(tiny_dataset: Dataset) -> None:
    with pytest.raises(UserError, match="'dataset' artifact where 'bundle'"):
        Bundle.read(tiny_dataset.path)


@pytest.mark.parametrize(
    ("of", "fits"),
    [
        ([0, 0, *range(1, 100)], True),
        ([*range(100), 99], True),
        ([*range(101)], False),
        ([0, *range(100)][::-1], False),
        ([1, 1, *range(1, 100)], False),
        ([0, 0, *range(1, 98), 99, 99, 99], False),
        ([*range(100)], False),
    ],
)
def test_several_vectors_of_a_passage(of: list[int], fits: bool, tmp_path: Path, tiny_dataset: Dataset) -> None:
    vectors = np.random.default_rng(0).normal(size=(101, 8)).astype(np.float32)

    def save(folder: Path) -> None:
        save_nothing(folder)
        np.save(folder.parent / f"{VECTOR_PASSAGES}.npy", np.array(of, np.int32))

    if not fits:
        with pytest.raises(ValueError, match="vectors"), drafting(tmp_path / "bundle", "bundle") as draft:
            fill_bundle(draft, vectors, tiny_dataset, save)
        return
    with drafting(tmp_path / "bundle", "bundle") as draft:
        fill_bundle(draft, vectors, tiny_dataset, save)
    bundle = Bundle.read(tmp_path / "bundle")
    np.testing.assert_array_equal(bundle.vector_passages, of)
    assert bundle.manifest.rows == {"vectors": 101, "passages": 100}
    card = json.loads((bundle.path / "bundle.json").read_text())
    assert card["vector_passages"] == "vector_passages.npy" and card["passages"] == 100 and card["width"] == 8
