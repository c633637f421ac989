"""Fills the draft of a bundle with given vectors."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gnn_encoder.artifacts import Bundle, Dataset, Draft, create_vectors
from gnn_encoder.artifacts.bundle import BM25, INDEX, QUERY_ENCODER
from gnn_encoder.retrieval.bm25 import Bm25
from gnn_encoder.retrieval.index_file import FLAT, build_index
from gnn_encoder.settings.outcome import IndexKind


def fill_bundle(
    draft: Draft,
    vectors: np.ndarray,
    dataset: Dataset,
    save_query_encoder: Callable[[Path], None],
    *,
    kind: IndexKind = FLAT,
    bm25: Bm25 | None = None,
) -> None:
    """Write all files of a bundle, as `encode_corpus` does."""
    stored = create_vectors(draft, *vectors.shape)
    stored[:] = vectors
    build_index(stored, draft / INDEX, kind)
    save_query_encoder(draft / QUERY_ENCODER)
    if bm25:
        (draft / BM25).mkdir()
        bm25.save(draft / BM25)
    Bundle.complete(draft, dataset)


def damaged(path: Path, folder: Path) -> Path:
    """Copies a bundle to `folder`, and spoils its last vector."""
    shutil.copytree(path, folder)
    with (folder / "vectors.npy").open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"\xff" * 8)
    return folder
